"""`mist backup` of running servers, and `mist restore`."""

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mist.backup.manifest import MANIFEST, BackupError, read_manifest
from mist.client import sync
from tests.engine.redis_server import RedisServer
from tests.processes import dial, joined, mist, serving, token_key


def backed_up(folder: Path, data: Path, *options: str) -> dict[str, Any]:
    done = mist("backup", str(folder), "--data", str(data), "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["problems"] == []
    return found


def token_of(url: str) -> str:
    return mist("token", "new", "a", "--server", url).stdout.strip()


def grants(url: str, token: str) -> str:
    return mist("token", "tags", token, "--server", url).stdout.strip()


@contextlib.contextmanager
def stored(url: str, acknowledged: list[int]) -> Iterator[None]:
    """Store ascending numbers for the length of the block; those that were acknowledged."""
    end = threading.Event()

    def store() -> None:
        with dial(url) as sock, sock.makefile("rb") as answers:
            while not end.is_set():
                group = range(len(acknowledged), len(acknowledged) + 20)
                sock.sendall(b"".join(b"store a %d\n" % number for number in group))
                assert all(answers.readline().startswith(b"stored ") for _ in group)
                acknowledged.extend(group)

    with joined(threading.Thread(target=store)):
        try:
            yield
        finally:
            end.set()


def numbers(url: str, count: int) -> list[int]:
    """The first messages that are kept."""
    with sync.connect(url) as client, client.subscribe(["a"], since=0, timeout=60) as messages:
        return [int(next(messages).text) for _ in range(count)]


def test_what_was_stored_before_a_backup_is_in_it(tmp_path: Path) -> None:
    data, folder, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    acknowledged: list[int] = []
    with serving(data) as server:
        token = token_of(server.urls[0])
        with stored(server.urls[0], acknowledged):
            assert backed_up(folder, data)["blocks"] is None
            for _ in range(3):
                before = len(acknowledged)
                made = backed_up(folder, data)
                assert made["blocks"] is not None
                assert made["backup"]["history"]["messages"] >= before
        assert not list(data.glob("backup-*"))
        with dial(server.urls[0]) as sock:
            sock.sendall(b"last\n")
            _, epoch, newest = sock.recv(100).split()
    count = made["backup"]["history"]["messages"]
    assert 0 < before <= count < int(newest)

    done = mist("restore", str(folder), "--data", str(restored))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{count:,} messages, up to id {count} of epoch {epoch.decode()}" in done.stdout
    assert mist("history", "verify", "--data", str(restored)).returncode == 0
    with serving(restored) as server:
        assert grants(server.urls[0], token) == "a"
        assert numbers(server.urls[0], count) == list(range(count))
        with dial(server.urls[0]) as sock:  # whose position is ahead of the backup
            sock.sendall(b"subscribe a %b:%b\nping\n" % (epoch, newest))
            assert sock.recv(100).startswith(b"gap ")


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "backup"
    with serving(
        data, "--keep-age", "2d", "--allow-origin", "https://a.example", MIST_SECRET="hush-hush-1"
    ):
        backed_up(folder, data)
    assert not [each for each in folder.iterdir() if b"hush-hush-1" in each.read_bytes()]
    settings = (folder / "mist.toml").read_text()
    assert 'keep_age = "2d"' in settings
    assert 'allow_origin = ["https://a.example"]' in settings
    assert "# secret: left out" in settings
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    with serving(tmp_path / "again", "--config", str(folder / "mist.toml")) as server:
        assert server.popen.poll() is None


def test_folders_may_have_any_name(tmp_path: Path) -> None:
    """Also one that is not UTF-8, which settings in TOML can't say."""
    place = tmp_path / os.fsdecode(b"b\xff")
    data, folder, restored = place / "data", place / "backup", place / "restored"
    with serving(data) as server:
        with sync.connect(server.urls[0]) as client:
            client.store(["a"], "0")
        assert backed_up(folder, data)["blocks"] is None
        assert backed_up(folder, data)["blocks"] == 0
    settings = (folder / "mist.toml").read_text()
    assert "# data: left out, since it is not UTF-8" in settings
    done = mist("restore", str(folder), "--data", str(restored))
    assert (done.returncode, done.stderr) == (0, "")
    with serving(restored) as server:
        assert numbers(server.urls[0], 1) == [0]


def test_a_first_backup_that_was_killed_is_made_again(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "backup"
    folder.mkdir()
    for name in ("lock", "history.db.new", "history.db.new-journal"):  # what SIGKILL leaves
        (folder / name).write_bytes(b"half of it")
    with serving(data) as server:
        assert mist("publish", "a", "x", "--store", MIST_SERVER=server.urls[0]).returncode == 0
        backed_up(folder, data)
    assert not list(folder.glob("*.new*"))
    log = f"sqlite:///{folder}/history.db"
    assert '"x"' in mist("history", "show", "--history", log).stdout


@pytest.mark.parametrize("text", [b"{", b'{"mist": "\xfa"}'])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(BackupError, match=MANIFEST) as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    data, folder, foreign = tmp_path / "data", tmp_path / "backup", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()

    def line(*arguments: str, code: int) -> str:
        done = mist(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        return done.stderr

    with serving(data):
        assert "other files" in line("backup", str(foreign), "--data", str(data), code=1)
        backed_up(folder, data)
        assert "in use" in line("restore", str(folder), "--data", str(data), code=2)
    assert "no server runs" in line("backup", str(folder), "--data", str(data), code=3)
    new = tmp_path / "new"
    assert "no backup is there" in line("restore", str(foreign), "--data", str(new), code=2)
    (folder / "history.db").write_bytes(b"garbage" * 2000)
    assert "not a database" in line("restore", str(folder), "--data", str(new), code=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "data", "foreign"]


def test_a_server_that_has_lost_its_data_does_not_replace_their_backup(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "backup"
    acknowledged: list[int] = []
    with serving(data) as server:
        token = token_of(server.urls[0])
        with stored(server.urls[0], acknowledged):
            while len(acknowledged) < 100:
                time.sleep(0.01)
        backed_up(folder, data)
        assert server.stop() == 0
    shutil.rmtree(data)
    with serving(data) as server:
        token_of(server.urls[0])
        with dial(server.urls[0]) as sock:
            sock.sendall(b"store a 1\n")
            assert sock.recv(100) == b"stored 1\n"
        done = mist("backup", str(folder), "--data", str(data))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"up to id {len(acknowledged)}, and this server another one, up to 1" in done.stderr
    restored = tmp_path / "restored"
    assert mist("restore", str(folder), "--data", str(restored)).returncode == 0
    with serving(restored) as server:
        assert numbers(server.urls[0], len(acknowledged)) == acknowledged
        assert grants(server.urls[0], token) == "a"
        backed_up(folder, restored)  # it goes on where that ended


def test_nor_the_backup_of_its_tokens(tmp_path: Path) -> None:
    data, folder, options = tmp_path / "data", tmp_path / "backup", ("--history", "none")
    with serving(data, *options) as server:
        token, _ = [token_of(server.urls[0]) for _ in range(2)]
        backed_up(folder, data)
        assert server.stop() == 0
    shutil.rmtree(data)
    with serving(data, *options) as server:
        token_of(server.urls[0])
        done = mist("backup", str(folder), "--data", str(data))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "it has 2 tokens of another registry than this server's, which has 1" in done.stderr
    restored = tmp_path / "restored"
    assert mist("restore", str(folder), "--data", str(restored)).returncode == 0
    with serving(restored, *options) as server:
        assert grants(server.urls[0], token) == "a"
        assert mist("token", "revoke", token, "--server", server.urls[0]).returncode == 0
        backed_up(folder, restored)  # fewer, but of the same registry


def test_tokens_are_backed_up_and_restored_with_their_own_key_only(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "backup"
    key = data / "tokens.db.key"
    with serving(data) as server:
        token = token_of(server.urls[0])
        backed_up(folder, data)
        own = key.read_bytes()
        key.write_bytes(b"k" * 32)
        done = mist("backup", str(folder), "--data", str(data))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert f"{key} is another key than the one this server has begun with" in done.stderr
        key.write_bytes(own)
    (folder / "tokens.db.key").write_bytes(b"k" * 32)
    done = mist("restore", str(folder), "--data", str(tmp_path / "restored"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{folder / 'tokens.db'}: tokens.db.key is another key" in done.stderr
    (folder / "tokens.db.key").write_bytes(own)
    assert mist("restore", str(folder), "--data", str(tmp_path / "restored")).returncode == 0
    with serving(tmp_path / "restored") as server:
        assert grants(server.urls[0], token) == "a"


def test_the_archive_is_named_and_goes_on_behind_a_restored_log(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    data, folder, archive = tmp_path / "data", tmp_path / "backup", tmp_path / "archive"
    options = (
        *("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0"),
        "--archive",
        str(archive),
    )

    def seal(url: str, first: int, count: int) -> None:
        with dial(url) as sock, sock.makefile("rb") as answers:
            sock.sendall(b"".join(b"store a %d\n" % n for n in range(first, first + count)))
            assert all(answers.readline().startswith(b"stored ") for _ in range(count))
        headers = {"Content-Type": "application/json"}
        http = server.urls[1].rstrip("/")
        request = urllib.request.Request(f"{http}/v1/log/seal", b"{}", headers)
        urllib.request.urlopen(request, timeout=30).close()

    with serving(data, *options) as server:
        seal(server.urls[0], 0, 10)
        found = backed_up(folder, data)["backup"]["archive"]
        assert (found["sealed"], found["segments"]) == (10, 1)
        assert Path(found["manifest"]).exists()
        seal(server.urls[0], 10, 10)
        assert server.stop() == 0
    restored = tmp_path / "restored"
    assert mist("restore", str(folder), "--data", str(restored)).returncode == 0
    with serving(restored, *options) as server, dial(server.urls[0]) as sock:
        sock.sendall(b"store a 20\n")
        assert sock.recv(100) == b"stored 21\n"  # the archive has the ids up to 20


def test_of_nodes_the_tokens_are_backed_up(tmp_path: Path) -> None:
    data, folder, key = tmp_path / "data", tmp_path / "backup", token_key(tmp_path)
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis", "wheel", "--appendfsync", "always") as redis:
        options = "--engine", redis.url(), "--token-key-file", str(key)
        with serving(data, *options) as server:
            token = token_of(server.urls[0])
            done = mist("backup", str(folder), "--data", str(data))
            assert "back that up as you do others" in done.stdout
            assert "tokens: 1, and their key" in done.stdout
    restored = tmp_path / "restored"
    done = mist("restore", str(folder), "--data", str(restored))
    assert "history: not in the backup" in done.stdout
    with serving(restored) as server:
        assert grants(server.urls[0], token) == "a"


def test_an_empty_directory_is_filled_and_stays_what_it_is(tmp_path: Path) -> None:
    """It may be a volume, which can't be replaced, or one that only the server's user may enter."""
    folder, place = tmp_path / "backup", tmp_path / "place"
    with serving(tmp_path / "data") as server:
        token = token_of(server.urls[0])
        backed_up(folder, tmp_path / "data")
    place.mkdir(mode=0o750)
    (place / "lost+found").mkdir()
    (place / ".restoring").mkdir()  # of a restore that was killed
    if os.geteuid() == 0:
        os.chown(place, 12345, 12346)
    before = place.stat()
    with contextlib.chdir(place):  # where `.` has no name
        done = mist("restore", str(folder), "--data", ".")
    assert (done.returncode, done.stderr) == (0, "")
    after = place.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    files = {each.name: each.stat() for each in place.iterdir() if each.is_file()}
    assert {"history.db", "tokens.db", "tokens.db.key"} <= files.keys()
    assert {(each.st_uid, each.st_gid) for each in files.values()} == {(after.st_uid, after.st_gid)}
    assert {each.st_mode & 0o777 for each in files.values()} == {0o600}
    assert not (place / ".restoring").exists()
    with serving(place) as server:
        assert grants(server.urls[0], token) == "a"


def test_a_directory_that_can_not_be_filled_stays_empty(tmp_path: Path) -> None:
    folder, place = tmp_path / "backup", tmp_path / "place"
    with serving(tmp_path / "data"):
        backed_up(folder, tmp_path / "data")
    place.mkdir()
    (folder / "tokens.db").write_bytes(b"garbage" * 2000)
    done = mist("restore", str(folder), "--data", str(place))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not list(place.iterdir())


def test_a_backup_that_was_copied_in_part_is_not_restored(tmp_path: Path) -> None:
    """An empty file of tokens would be a registry without any."""
    data, folder, former = tmp_path / "data", tmp_path / "backup", tmp_path / "former.db"
    with serving(data) as server:
        token = token_of(server.urls[0])
        assert mist("publish", "a", "0", "--store", MIST_SERVER=server.urls[0]).returncode == 0
        backed_up(folder, data)
        shutil.copy(folder / "history.db", former)
        assert mist("publish", "a", "1", "--store", MIST_SERVER=server.urls[0]).returncode == 0
        backed_up(folder, data)

    def refused(name: str) -> str:
        done = mist("restore", str(folder), "--data", str(tmp_path / "new"))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"{folder / name}: it " in done.stderr
        assert not (tmp_path / "new").exists()
        return done.stderr

    for name in ("tokens.db", "history.db"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(b"")
        assert "is empty; the backup was copied in part" in refused(name)
        (folder / name).write_bytes(whole)
    shutil.copy(former, folder / "history.db")
    assert "ends with id 1, and backup.json lists ids up to 2" in refused("history.db")
    (folder / "history.db").write_bytes(whole)
    assert mist("restore", str(folder), "--data", str(tmp_path / "new")).returncode == 0
    with serving(tmp_path / "new") as server:
        assert grants(server.urls[0], token) == "a"
        assert numbers(server.urls[0], 2) == [0, 1]


@pytest.mark.parametrize("file", ["history.db", "tokens.db"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_backup_of_a_later_version_is_named_where_it_is(
    tmp_path: Path, file: str, is_there: bool
) -> None:
    data, folder, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    with serving(data) as server:
        token_of(server.urls[0])
        backed_up(folder, data)
    with contextlib.closing(sqlite3.connect(folder / file)) as connection:
        (known,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {known + 1}")
    if is_there:
        restored.mkdir()
    done = mist("restore", str(folder), "--data", str(restored))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{folder / file}: schema version {known + 1}, but this mist knows {known}" in (
        done.stderr
    )
    assert restored.exists() == is_there


def test_a_backup_goes_to_the_top_of_a_volume(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    (folder / "lost+found").mkdir(parents=True)
    with serving(tmp_path / "data"):
        backed_up(folder, tmp_path / "data")
