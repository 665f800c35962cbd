"""`mist config show` and `check`."""

import json
import os
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from mist.certificate_validity import validity
from mist.config import OPTIONS
from tests.processes import dial, mist, serving, token_key

LISTEN = ("--listen", "tcp://127.0.0.1:0")


def shown(*arguments: str, **variables: str) -> dict[str, dict[str, Any]]:
    done = mist("config", "show", "--json", *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return {each["name"]: each for each in json.loads(done.stdout)["settings"]}


def checked(*arguments: str, cwd: Path, **variables: str) -> tuple[int, list[tuple[str, str, str]]]:
    """The exit code, and (check, status, text) of each."""
    done = mist("config", "check", "--json", *LISTEN, *arguments, cwd=cwd, **variables)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    return done.returncode, [
        (each["check"], each["status"], each["text"]) for each in found["checks"]
    ]


def errors(*arguments: str, cwd: Path, **variables: str) -> list[tuple[str, str]]:
    code, found = checked(*arguments, cwd=cwd, **variables)
    bad = [(check, text) for check, status, text in found if status == "error"]
    assert code == (2 if bad else 0)
    return bad


def test_each_value_has_its_source(tmp_path: Path) -> None:
    file = tmp_path / "mist.toml"
    file.write_text('max_data = "2MiB"\nlog_level = "debug"\nkeep = ["a=1", "b=2"]\n')
    found = shown(
        *("--config", str(file), "--node", "eu-1"),
        MIST_LOG_LEVEL="warning",
        MIST_NODE="elsewhere",
        MIST_SECRET="geheim",
    )
    assert list(found) == [option.name for option in OPTIONS if option.name != "config"]
    assert found["max_data"]["value"] == "2MiB"
    assert found["max_data"]["source"] == "file"
    assert found["max_data"]["origin"] == f"{file}: max_data"
    assert found["keep"]["value"] == ["a=1", "b=2"]
    assert (found["log_level"]["value"], found["log_level"]["source"]) == ("warning", "environment")
    assert (found["node"]["value"], found["node"]["origin"]) == ("eu-1", "--node")
    assert found["secret"]["value"] == "(hidden)"
    assert found["tokens"] == {
        "name": "tokens",
        "value": "sqlite:///mist-data/tokens.db",
        "source": "default",
        "origin": None,
    }


def test_nothing_secret_is_shown(tmp_path: Path) -> None:
    key = str(token_key(tmp_path))
    secrets = {"MIST_SECRET": "geheim", "MIST_ENGINE": "redis://user:geheim@127.0.0.1"}
    for form in ((), ("--json",), ("--given",)):
        done = mist("config", "show", "--token-key-file", key, *form, **secrets)
        assert done.returncode == 0
        assert "***@127.0.0.1" in done.stdout
        assert "geheim" not in done.stdout + done.stderr


def test_only_what_is_given_where_asked() -> None:
    done = mist("config", "show", "--given", "--node", "a", MIST_LOG_LEVEL="error")
    assert done.stdout == "node       a  (--node)\nlog_level  error  (MIST_LOG_LEVEL)\n"


@pytest.mark.parametrize("command", ["show", "check"])
def test_wrong_settings_are_one_line_and_code_2(command: str, tmp_path: Path) -> None:
    done = mist("config", command, "--max-data", "much", cwd=tmp_path)
    assert done.returncode == 2
    [line] = (done.stdout + done.stderr).splitlines()
    assert "--max-data: 'much': expected bytes from" in line


def test_what_is_in_order_is_code_0_and_changes_nothing(tmp_path: Path) -> None:
    code, found = checked("--data", "new", "--archive", "new/archive", cwd=tmp_path)
    assert code == 0
    assert {check for check, _, _ in found} >= {
        *("data directory", "archive", "disk", "open files", "listener", "clock"),
        *("history", "tokens"),
    }
    assert list(tmp_path.iterdir()) == []
    done = mist("config", "check", *LISTEN, "--quiet", "--max-connections", "10", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_beside_a_running_server_what_it_has_is_in_order(tmp_path: Path) -> None:
    with serving(tmp_path / "d", *LISTEN) as server:
        with dial(server.urls[0]) as sock:
            sock.sendall(b"register a t\nping\n")
            assert sock.recv(100)
        found = errors("--data", "d", "--listen", server.urls[0], cwd=tmp_path)
    assert found == []
    # It has ended; nobody else may listen there, or write what it left.
    code, found = checked("--data", "d", cwd=tmp_path)
    assert code == 0
    assert any(check == "tokens" and "1 tokens" in text for check, _, text in found)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [check for check, _ in errors("--data", "file/d", cwd=tmp_path)] == ["data directory"]
    check, text = errors("--data", "/proc/mist", cwd=tmp_path)[0]
    assert check == "data directory"
    assert text.startswith("/proc/mist: ")


def test_a_listener_in_use_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "a", *LISTEN) as server:
        found = errors("--data", "b", "--listen", server.urls[0], cwd=tmp_path)
    assert found == [("listener", f"{server.urls[0]}: the address is in use")]


def test_stores_that_are_not_ours_are_errors(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    for name in ("history.db", "tokens.db"):
        (tmp_path / "d" / name).write_bytes(b"not a database, " * 100)
    found = errors("--data", "d", cwd=tmp_path)
    assert [check for check, _ in found] == ["history", "tokens"]
    assert all(str(tmp_path) in text for _, text in found)


def test_a_key_that_is_missing_or_another_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "d", *LISTEN) as server:
        with dial(server.urls[0]) as sock:
            sock.sendall(b"register a t\nping\n")
            assert sock.recv(100)
    key = tmp_path / "d" / "tokens.db.key"
    key.write_bytes(b"k" * 32)
    [(check, text)] = errors("--data", "d", cwd=tmp_path)
    assert check == "tokens"
    assert "tokens.db.key is another key" in text
    done = mist("serve", "--data", str(tmp_path / "d"), *LISTEN)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "tokens.db.key is another key" in done.stderr
    key.unlink()
    [(check, text)] = errors("--data", "d", cwd=tmp_path)
    assert (check, "tokens.db.key is missing" in text) == ("tokens", True)


def test_an_engine_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    engine = (
        "--engine",
        "redis://:geheim@127.0.0.1:1",
        "--token-key-file",
        str(token_key(tmp_path)),
    )
    found = errors(*engine, cwd=tmp_path)
    assert [check for check, _ in found] == ["engine", "tokens"]
    assert not any("geheim" in text for _, text in found)
    _, fine = checked("--engine", "memory://", "--tokens", "memory://", cwd=tmp_path)
    [text] = [text for check, _, text in fine if check == "engine"]
    assert text.startswith("reachable and fit")


def test_keys_of_jwts_are_fetched(tmp_path: Path) -> None:
    pytest.importorskip("joserfc")
    (tmp_path / "jwks.json").write_text("{}")
    expected = ("--jwt-issuer", "x", "--jwt-audience", "y")
    code, found = checked("--jwt-jwks", "jwks.json", *expected, cwd=tmp_path)
    assert code == 2
    assert ("JWKS", "error", "jwks.json can't be used") in found
    assert any("it is no JWKS" in text for _, status, text in found if status == "warning")


def test_keys_of_jwts_that_cannot_be_reached_are_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("joserfc")
    url = "https://127.0.0.1:1/jwks.json"
    expected = ("--jwt-issuer", "x", "--jwt-audience", "y")
    code, found = checked("--jwt-jwks", url, *expected, cwd=tmp_path)
    assert code == 0
    assert ("JWKS", "warning", f"{url} can't be used") in found


# Certificates


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certificate(folder: Path, authority: trustme.CA, name: str, end: datetime) -> tuple[Path, Path]:
    issued = authority.issue_cert(f"{name}.example", not_after=end)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    key.chmod(0o600)
    return cert, key


@pytest.fixture
def secure(tmp_path: Path) -> list[str]:
    return ["--listen", "https://127.0.0.1:0", "--data", str(tmp_path / "d")]


@pytest.mark.parametrize(
    ("days", "status", "text"),
    [(300, "ok", "valid until"), (10, "warning", "ends at"), (-1, "error", "ended at")],
)
def test_the_end_of_a_certificate_is_told(
    tmp_path: Path, authority: trustme.CA, secure: list[str], days: int, status: str, text: str
) -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    cert, key = certificate(tmp_path, authority, "a", end)
    _, found = checked(*secure, "--tls-cert", str(cert), "--tls-key", str(key), cwd=tmp_path)
    [(told, words)] = [(status, text) for check, status, text in found if check == "certificate"]
    assert told == status
    assert text in words
    assert f"{end:%Y-%m-%d}" in words


def test_a_key_of_another_certificate_is_an_error(
    tmp_path: Path, authority: trustme.CA, secure: list[str]
) -> None:
    end = datetime.now(UTC) + timedelta(days=300)
    cert, _ = certificate(tmp_path, authority, "a", end)
    _, key = certificate(tmp_path, authority, "b", end)
    found = errors(*secure, "--tls-cert", str(cert), "--tls-key", str(key), cwd=tmp_path)
    text = f"{cert} and {key}: no usable certificate and key: the key is another certificate's"
    assert found == [("certificate", text)]
    key.chmod(0o644)
    _, all_found = checked(*secure, "--tls-cert", str(cert), "--tls-key", str(key), cwd=tmp_path)
    assert any("chmod 600" in text for _, status, text in all_found if status == "warning")


def test_what_is_wrong_with_a_certificate_or_key_is_told(
    tmp_path: Path, authority: trustme.CA, secure: list[str]
) -> None:
    cert, key = certificate(tmp_path, authority, "a", datetime.now(UTC) + timedelta(days=300))
    encrypted, empty = tmp_path / "encrypted.key", tmp_path / "empty"
    plain = load_pem_private_key(key.read_bytes(), None)
    encryption = BestAvailableEncryption(b"passphrase")
    encrypted.write_bytes(
        plain.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, encryption)
    )
    empty.touch()
    for a_cert, a_key, text in [
        (cert, encrypted, f"{encrypted} is encrypted; mist takes one without a passphrase"),
        (empty, key, f"{empty} has no certificate in PEM"),
        (key, cert, f"{key} has no certificate in PEM"),
        (cert, empty, f"{empty} has no key in PEM"),
    ]:
        found = errors(*secure, "--tls-cert", str(a_cert), "--tls-key", str(a_key), cwd=tmp_path)
        [(check, told)] = found
        assert check == "certificate"
        assert told.endswith(f"no usable certificate and key: {text}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another group")
def test_a_secret_that_only_a_group_may_read_stays_as_it_is(tmp_path: Path) -> None:
    """As root's file for the server's group: after `chmod 600` the server could not read it."""
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-tests")
    options = ("--secret-file", str(secret), "--data", str(tmp_path / "d"))

    def told() -> tuple[str, str]:
        _, found = checked(*options, cwd=tmp_path)
        [(status, text)] = [(status, text) for check, status, text in found if "secret" in check]
        return status, text

    secret.chmod(0o640)
    assert told()[0] == "warning"
    os.chown(secret, -1, 12345)
    assert told() == ("ok", f"{secret} can be read by its owner and group alone")
    secret.chmod(0o660)
    assert told()[0] == "warning"


def test_a_secret_of_callouts_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    secret = tmp_path / "callouts"
    secret.write_text("0123456789abcdef0123456789abcdef")
    options = ("--auth-url", "http://127.0.0.1:1/", "--auth-url-secret-file", str(secret))
    secret.chmod(0o644)
    _, found = checked(*options, "--data", str(tmp_path / "d"), cwd=tmp_path)
    text = f"{secret} can be read or written by others: chmod 600 it"
    assert ("auth url secret file", "warning", text) in found


def test_validity_is_that_of_the_first_certificate(authority: trustme.CA) -> None:
    pem = authority.cert_pem.bytes().decode()
    begin, end = validity("some text\n" + pem)
    assert begin < datetime.now(UTC) < end
    der = ssl.PEM_cert_to_DER_cert(pem)
    for cut in range(0, 200, 3):
        with pytest.raises(ValueError, match=r"cut off|not a certificate|PEM|time data"):
            validity(ssl.DER_cert_to_PEM_cert(der[:cut]))
    for wrong in ("", pem[:100], ssl.DER_cert_to_PEM_cert(b"\x30\x03\x02\x01\x00")):
        with pytest.raises(ValueError):
            validity(wrong)


def test_the_clock_is_looked_at(tmp_path: Path) -> None:
    _, found = checked(cwd=tmp_path)
    [text] = [text for check, _, text in found if check == "clock"]
    assert time.strftime("%Y-%m-%d", time.gmtime()) in text
    assert os.listdir(tmp_path) == []
