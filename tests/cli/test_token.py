"""`mist token`, over the line protocol and over HTTP: the same commands with the same words."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.processes import Process, dial, mist, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
SECRET = {"MIST_SECRET": "s3cret"}


@pytest.fixture(scope="module", params=["tcp", "http"])
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A server, whose first URL is that by which it is asked."""
    with serving(tmp_path_factory.mktemp("data"), listen=LISTEN, **SECRET) as process:
        if request.param == "http":
            process.urls.reverse()
        yield process


def run(
    process: Process, *arguments: str, stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    return mist(*arguments, stdin=stdin, MIST_SERVER=process.urls[0], **SECRET)


def test_to_revoke_a_token_that_does_not_exist_is_an_error(process: Process) -> None:
    for token in ("nosuch", "-"):
        done = run(process, "token", "unregister", token, stdin="nosuch")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "mist token unregister: Token not found\n"
        assert run(process, "token", "unregister", "--if-exists", token, stdin="x").returncode == 0
    run(process, "token", "register", "a", "twice")
    assert [run(process, "token", "unregister", "twice").returncode for _ in range(2)] == [0, 1]
    run(process, "token", "register", "a", "twice")
    assert run(process, "token", "unregister", "twice", "--if-exists").stderr == ""
    assert run(process, "token", "tags", "twice").returncode == 1


def test_tokens_are_administered(process: Process) -> None:
    assert run(process, "token", "register", "a,b", "t1").returncode == 0
    assert run(process, "token", "register", "a", "t1").returncode == 1
    assert run(process, "token", "set", "c*", "t1").returncode == 0
    assert run(process, "token", "unset", "a", "t1").returncode == 0
    assert run(process, "token", "tags", "-", stdin="t1\n").stdout == "b,c*\n"
    assert run(process, "token", "unregister", "t1").returncode == 0
    done = run(process, "token", "tags", "t1")
    assert (done.returncode, done.stderr) == (1, "mist token tags: Token not found\n")


def test_a_token_may_expire(process: Process) -> None:
    made = run(process, "token", "new", "a", "--expires", "30d", "--name", "nightly export")
    assert (made.returncode, len(made.stdout.strip())) == (0, 32)
    token = made.stdout.strip()
    done = run(process, "token", "change", "-", "--expires", "2099-01-01T00:00+02:00", stdin=token)
    assert (done.returncode, done.stderr) == (0, "")
    assert run(process, "token", "change", token, "--expires", "never").returncode == 0
    for arguments, text in [
        (("change", token), "nothing to change"),
        (("change", token, "--expires", "2099-01-01"), "a moment with its time zone"),
        (("new", "a", "--expires", "30 days"), "'30 days': expected 90s, 15m, 12h, 30d or 8w from"),
        (("new", "a", "--expires", "never"), "'never': expected 90s, 15m"),
        (("new", "a", "--name", "a\tb"), "Invalid name"),
    ]:
        done = run(process, "token", *arguments)
        assert done.returncode == 2
        assert text in done.stderr
    done = run(process, "token", "new", "a", "--expires", "2020-01-01T00:00Z")
    assert (done.returncode, done.stderr) == (1, "mist token new: Invalid expiry: it has passed\n")


def test_tokens_are_listed_shown_and_revoked_by_id_or_text(process: Process) -> None:
    arguments = (
        "create",
        "a,b",
        "--name",
        "job \u00e4",
        "--expires",
        "2099-01-01T00:00Z",
        "--json",
    )
    made = json.loads(run(process, "token", *arguments).stdout)
    assert (made["tags"], made["name"], made["expires"]) == (["a", "b"], "job ä", 4_070_908_800)
    text, id_ = made.pop("token"), made["id"]
    lines = [
        json.loads(line) for line in run(process, "token", "list", "--json").stdout.splitlines()
    ]
    assert made in lines
    listed = run(process, "token", "list").stdout
    assert id_ in listed
    assert "2099-01-01T00:00Z" in listed
    assert text not in listed
    for which in (id_, text):
        assert json.loads(run(process, "token", "show", which, "--json").stdout) == made
    assert "name        job ä\n" in run(process, "token", "show", "-", stdin=id_).stdout
    assert run(process, "token", "grant", "c", id_).returncode == 0
    assert run(process, "token", "ungrant", "a", id_).returncode == 0
    assert run(process, "token", "tags", id_).stdout == "b,c\n"
    assert run(process, "token", "revoke", id_).returncode == 0
    for command in ("revoke", "show"):
        done = run(process, "token", command, id_)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"mist token {command}: Token not found\n"
    assert run(process, "token", "revoke", "--if-exists", id_).returncode == 0


def test_a_weak_token_is_warned_of_and_registered(process: Process) -> None:
    done = run(process, "token", "create", "a", "weak")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("warning: the token is short")
    assert run(process, "token", "revoke", "weak").returncode == 0
    assert run(process, "token", "create", "a", "").returncode == 2


def test_attributes_of_a_token_are_set_and_shown(process: Process) -> None:
    assert run(process, "token", "register", "a", "t2").returncode == 0
    done = run(process, "token", "set-attr", "t2", "user=a&b=c", "groups=x,y", "--unset", "plan")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = run(process, "token", "tags", "t2").stdout
    assert shown == "a\ngroups=x;y&user=a%26b%3Dc\n"
    shown = json.loads(run(process, "token", "tags", "t2", "--json").stdout)
    assert shown == {"tags": ["a"], "attributes": {"user": "a&b=c", "groups": ["x", "y"]}}
    assert run(process, "token", "set-attr", "-", "--unset", "user", stdin="t2\n").returncode == 0
    assert run(process, "token", "tags", "t2").stdout == "a\ngroups=x;y\n"
    done = run(process, "token", "set-attr", "t3", "user=1")
    assert (done.returncode, done.stderr) == (1, "mist token set-attr: Token not found\n")


def test_what_was_issued_elsewhere_is_revoked(process: Process) -> None:
    for flags, name in ((["--jti", "5f3a"], "jti 5f3a"), (["--sub", "auth0|7"], "sub auth0|7")):
        assert run(process, "token", "revoke", *flags).returncode == 0
        assert f"revoked: {name}" in run(process, "token", "list").stdout
    for flags in ([], ["--jti", "a", "--sub", "b"], ["t", "--jti", "a"]):
        done = run(process, "token", "revoke", *flags)
        assert done.returncode == 2
        assert "give ID|TOKEN, --jti ID or --sub USER" in done.stderr


def test_a_token_may_be_named_by_what_looks_like_an_id(process: Process) -> None:
    """A text is looked for before an id, so that no text is out of reach."""
    text = "0123456789abcdef"
    assert run(process, "token", "create", "a", text).returncode == 0
    assert run(process, "token", "grant", "b", text).returncode == 0
    assert run(process, "token", "tags", text).stdout == "a,b\n"
    assert run(process, "token", "revoke", text).returncode == 0


def test_all_pages_are_listed(process: Process) -> None:
    lines = b"".join([b"register a page-%03d\n" % number for number in range(150)])
    [url] = [each for each in process.urls if each.startswith("tcp:")]
    with dial(url) as sock:
        sock.sendall(b"auth s3cret\n" + lines + b"ping\n")
        read = b""
        while b"pong" not in read:
            read += sock.recv(1000)
    listed = run(process, "token", "list", "--json").stdout.splitlines()
    found = {json.loads(line)["id"] for line in listed}
    assert len(found) == len(listed) >= 150


def test_a_wrong_secret_is_told(process: Process) -> None:
    done = mist("token", "list", MIST_SERVER=process.urls[0], MIST_SECRET="geheim")
    assert done.returncode == 1
    assert "geheim" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_token_s_text_is_in_no_log_of_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("logged")
    options = ("--log-level", "debug")
    with serving(folder, *options, listen=LISTEN, **SECRET) as process:
        text = "a-text-that-is-secret"
        for command in (["create", "a", text], ["grant", "b", text], ["revoke", text]):
            done = mist("token", *command, MIST_SERVER=process.urls[1], **SECRET)
            assert done.returncode == 0, done.stderr
        process.stop()
        assert process.popen.stderr is not None
        said = process.popen.stderr.read()
    assert "/v1/tokens" in said
    assert text not in said
