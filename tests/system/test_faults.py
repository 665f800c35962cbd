"""Fault injection around a server process, and what is left of its history."""

import ctypes
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import attrs
import pytest

from tests.processes import LISTEN, Process, dial, environment, mist, serving

REFUSED = b"error History is unavailable\n"
_CAP_DAC_OVERRIDE = 1
_PR_CAPBSET_DROP = 24


class Peer:
    """A connection that speaks lines, and waits for answers."""

    def __init__(self, url: str) -> None:
        self._sock = dial(url)
        self._lines = self._sock.makefile("rb")

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._sock.close()

    def send(self, text: bytes) -> None:
        self._sock.sendall(text)

    def line(self) -> bytes:
        return self._lines.readline()

    def ask(self, text: bytes) -> bytes:
        self.send(text + b"\n")
        return self.line()

    def rest(self) -> list[bytes]:
        """Every line up to the answer to a ping, or to the end of the connection."""
        self.send(b"ping\n")
        lines = []
        while (line := self.line()) not in (b"pong\n", b""):
            lines.append(line)
        return lines

    def store(self, tags: str, data: bytes) -> int | None:
        """Store a message; its id, or None where it was refused."""
        answer = self.ask(b"store %b %b" % (tags.encode(), data))
        return None if answer == REFUSED else int(answer.removeprefix(b"stored "))

    def replay(self, tags: str, since: int = 0) -> dict[int, bytes]:
        """Subscribe, and what came of it: id to data. It may be told of a gap on the way."""
        self.send(b"ids on\nsubscribe %b %d\n" % (tags.encode(), since))
        return messages([line for line in self.rest() if not line.startswith(b"gap ")])


def messages(lines: list[bytes]) -> dict[int, bytes]:
    found = {}
    for line in lines:
        word, id_, _, data = line.rstrip(b"\n").split(b" ", 3)
        assert word == b"message"
        assert int(id_) not in found
        found[int(id_)] = data
    return found


def noise(size: int) -> bytes:
    """`size` letters that no compression makes fewer of."""
    return os.urandom(size // 2).hex().encode()


def history_at(path: Path) -> tuple[str, str]:
    return "--history", f"sqlite:///{path}"


def fill(folder: Path, count: int = 20, size: int = 20_000) -> dict[int, bytes]:
    """Have a server make a log `folder`/history.db, and stop; what is in it."""
    stored = {}
    with serving(folder, "--tokens", "memory://") as server:
        with Peer(server.urls[0]) as peer:
            for _ in range(count):
                data = noise(size)
                id_ = peer.store("a", data)
                assert id_ is not None
                stored[id_] = data
        assert server.stop() == 0
    return stored


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


def verify(path: Path) -> tuple[int, str]:
    result = mist("history", "verify", *history_at(path))
    assert result.stderr == ""
    return result.returncode, result.stdout


def check_sound(path: Path) -> None:
    code, text = verify(path)
    assert (code, text.endswith("no damage\n")) == (0, True), text


def check_refusal(result: "subprocess.CompletedProcess[str]", reason: str) -> None:
    """It ended at once, with one line that says why not."""
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.fullmatch(f"mist serve: [^\n]*{reason}[^\n]*\n", result.stderr), result.stderr


# a full disk


@attrs.frozen
class FileLimit:
    """A bound on the size of every file that a server writes. Needs no rights at all."""

    folder: Path

    def fill(self, server: Process) -> None:
        self._limit(server, 256 * 1024)

    def free(self, server: Process) -> None:
        self._limit(server, resource.RLIM_INFINITY)

    def _limit(self, server: Process, size: int) -> None:
        pid = server.popen.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@attrs.frozen
class SmallDisk:
    """A file system of its own, with a file that takes what room there is."""

    folder: Path

    def fill(self, server: Process) -> None:
        with open(self.folder / "ballast", "wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self, server: Process) -> None:
        (self.folder / "ballast").unlink()


@pytest.fixture(params=["limit", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileLimit | SmallDisk]:
    """A place for a log that can be full. Where nothing may be mounted, both are limits."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if request.param == "limit" or not runs(*command):
        yield FileLimit(folder)
        return
    try:
        yield SmallDisk(folder)
    finally:
        assert runs("umount", "-l", str(folder))


def runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_refuses_what_it_can_not_hold_and_nothing_else(
    tmp_path: Path, disk: FileLimit | SmallDisk
) -> None:
    options = history_at(disk.folder / "history.db")
    stored: dict[int, bytes] = {}
    with serving(tmp_path / "data", *options) as server:
        with (
            Peer(server.urls[0]) as publisher,
            Peer(server.urls[0]) as subscriber,
            Peer(server.urls[0]) as bystander,
        ):
            subscriber.send(b"ids on\nsubscribe a\n")
            assert subscriber.rest() == []

            def store() -> bool:
                data = noise(20_000)
                id_ = publisher.store("a", data)
                if id_ is not None:
                    assert id_ > max(stored, default=0)
                    stored[id_] = data
                return id_ is not None

            assert store()
            disk.fill(server)
            for _ in range(1_000):
                if not store():
                    break
            refused = noise(20_000)
            for word in (b"store", b"publish"):
                publisher.send(word + b" a " + refused + b"\nping\n")
                assert [publisher.line(), publisher.line()] == [REFUSED, b"pong\n"]
            assert messages(subscriber.rest()) == stored
            assert bystander.replay("a") == stored
            assert not store()

            disk.free(server)
            assert store()
            publisher.send(b"publish a after\nping\n")
            assert publisher.line() == b"pong\n"
            *found, last = subscriber.rest()
            assert messages(found) == {max(stored): stored[max(stored)]}
            assert last == b"message %d a after\n" % (max(stored) + 1)
            stored[max(stored) + 1] = b"after"
            server.stop(signal.SIGKILL)
    check_sound(disk.folder / "history.db")
    with serving(tmp_path / "data", *options) as server:
        with Peer(server.urls[0]) as peer:
            assert peer.replay("a") == stored
            assert peer.store("b", b"on") == max(stored) + 1
        assert server.stop() == 0


def test_a_full_disk_is_told_once_in_the_log(tmp_path: Path) -> None:
    disk = FileLimit(tmp_path)
    with serving(tmp_path) as server:
        with Peer(server.urls[0]) as peer:
            disk.fill(server)
            for _ in range(1_000):
                if peer.store("a", noise(20_000)) is None:
                    break
            for _ in range(5):
                assert peer.store("a", noise(20_000)) is None
            disk.free(server)
            assert peer.store("a", b"") is not None
        assert server.stop() == 0
        assert server.popen.stderr is not None
        lines = server.popen.stderr.read().splitlines()
    for told in ("history can't be written", "history can be written again"):
        assert len([line for line in lines if told in line]) == 1
    assert not [line for line in lines if "Traceback" in line]


# what is no log, or not this server's


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(100_000))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: run_sql(path, "PRAGMA user_version = 7"), "version 7, but this mist knows"),
        (lambda path: run_sql(path, "PRAGMA application_id = 7"), "a database of another program"),
        (cut, "the database is damaged"),
        (scramble, "not a database"),
        (lambda path: path.write_text("dear diary\n" * 1000), "not a database"),
        (lambda path: run_sql(path, "DELETE FROM log"), "the database is damaged"),
    ],
    ids=["version", "program", "cut", "garbage", "text", "no state"],
)
def test_what_is_no_log_is_refused_in_one_line_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    fill(tmp_path, 5)
    path = tmp_path / "history.db"
    spoil(path)
    before = path.read_bytes()
    for _ in range(2):
        check_refusal(mist("serve", "--data", str(tmp_path), *LISTEN), reason)
    assert path.read_bytes() == before


def test_a_damaged_page_is_named_and_takes_nothing_else_along(tmp_path: Path) -> None:
    stored = fill(tmp_path, 9, 100_000)
    path = tmp_path / "history.db"
    place = path.read_bytes().index(stored[5][70_000:70_100])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 512)
    assert verify(path) == (1, "5-5: its checksum differs\n")
    with serving(tmp_path) as server:
        with Peer(server.urls[0]) as peer:
            assert peer.replay("a", since=5) == {id_: stored[id_] for id_ in (6, 7, 8, 9)}
            assert peer.store("b", b"on") == 10
            assert peer.rest() == []
        for _ in range(3):
            with Peer(server.urls[0]) as peer:
                # What is lost is told where it was, and all the rest is delivered.
                peer.send(b"ids on\nsubscribe a 0\n")
                lines = peer.rest()
                assert [line.split()[:2] for line in lines if b"gap" not in line] == [
                    [b"message", b"%d" % id_] for id_ in (1, 2, 3, 4, 6, 7, 8, 9)
                ]
                assert lines[4].startswith(b"gap ")
                assert lines[4].endswith(b" 6\n")
        assert server.stop() == 0
        assert server.popen.stderr is not None
        told = [line for line in server.popen.stderr if "history is damaged" in line]
    assert len(told) == 1
    assert "first=5" in told[0]


# places


@contextmanager
def only(folder: Path, mode: int) -> Iterator[None]:
    before = folder.stat().st_mode
    folder.chmod(mode)
    try:
        yield
    finally:
        folder.chmod(before)


def serve_with_common_rights(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """`mist serve`, to its end, by one who is held to the modes of files, root included."""

    def give_up() -> None:
        if os.geteuid() == 0:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)

    return subprocess.run(
        [sys.executable, "-m", "mist", "serve", *LISTEN, *arguments],
        preexec_fn=give_up,  # this process has no other threads
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=False,
    )


def test_a_folder_that_can_not_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    stored = fill(tmp_path / "log")
    data = ("--data", str(tmp_path / "data"))
    path = tmp_path / "log" / "history.db"
    (tmp_path / "log" / "history.db-lock").unlink()
    with only(tmp_path / "log", 0o500):
        check_refusal(serve_with_common_rights(*data, *history_at(path)), "Permission denied")
        check_refusal(
            serve_with_common_rights(*data, *history_at(path.with_name("new.db"))),
            "new.db: Permission denied",
        )
    with only(path, 0o400):
        check_refusal(serve_with_common_rights(*data, *history_at(path)), "Permission denied")
    with only(tmp_path / "log", 0o500):
        check_refusal(
            serve_with_common_rights("--data", str(tmp_path / "log")), "[Pp]ermission denied"
        )
    check_sound(path)
    with serving(tmp_path / "data", *history_at(path)) as server, Peer(server.urls[0]) as peer:
        assert peer.replay("a") == stored


def test_a_second_server_is_refused_in_one_line_however_it_gets_there(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    (tmp_path / "folder").symlink_to(one)
    (two / "link.db").symlink_to(one / "history.db")
    with serving(one) as server, Peer(server.urls[0]) as peer:
        assert peer.store("a", b"1") == 1
        check_refusal(mist("serve", "--data", str(one), *LISTEN), "another server uses it")
        for path in (one / "history.db", tmp_path / "folder" / "history.db", two / "link.db"):
            check_refusal(
                mist("serve", "--data", str(two), *LISTEN, *history_at(path)),
                "in use by another process",
            )
        assert peer.store("a", b"2") == 2
        assert peer.replay("a") == {1: b"1", 2: b"2"}
        assert server.stop() == 0
    check_sound(one / "history.db")


def test_a_folder_that_vanishes_refuses_what_would_be_lost_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with serving(tmp_path / "data", *history_at(folder / "history.db")) as server:
        with Peer(server.urls[0]) as peer:
            stored = {}
            for number in range(5):
                id_ = peer.store("a", b"%d" % number)
                assert id_ is not None
                stored[id_] = b"%d" % number
            moved = folder.rename(tmp_path / "moved")
            for _ in range(100_000):
                id_ = peer.store("a", b"late")
                if id_ is None:
                    break
                stored[id_] = b"late"  # still in the file, wherever it is
            assert peer.ask(b"publish a lost") == REFUSED
            assert peer.ask(b"ping") == b"pong\n"
            moved.rename(folder)
            for _ in range(100_000):
                id_ = peer.store("a", b"back")
                if id_ is not None:
                    break
            assert id_ is not None
            stored[id_] = b"back"
            assert id_ == len(stored)
            shutil.rmtree(folder)
            for _ in range(100_000):
                if peer.store("a", b"gone") is None:
                    break
            assert peer.store("a", b"gone") is None
            assert peer.ask(b"ping") == b"pong\n"
        with Peer(server.urls[0]) as peer:
            assert peer.ask(b"ping") == b"pong\n"
        assert server.stop() == 0
        assert server.popen.stderr is not None
        lines = server.popen.stderr.read()
    assert "Traceback" not in lines
    assert not folder.exists()


# clocks


# A server whose clock is set by a file: seconds that it is ahead.
CLOCK = """
import pathlib, runpy, sys, time
ahead, real = pathlib.Path(sys.argv.pop(1)), time.time
time.time = lambda: real() + float(ahead.read_text())
time.time_ns = lambda: int(time.time() * 1e9)
runpy.run_module("mist", run_name="__main__", alter_sys=True)
"""
HOUR = 3600.0


def serving_by(
    clock: Path, data: Path, *options: str, listen: Sequence[str] = LISTEN
) -> AbstractContextManager[Process]:
    """A server that goes by a clock; see `serving`."""
    return serving(data, *options, listen=listen, program=("-c", CLOCK, str(clock)))


def put(clock: Path, ahead: float) -> None:
    """Set a clock; whole, since the server may look at any moment."""
    new = clock.with_suffix(".new")
    new.write_text(str(ahead))
    new.rename(clock)


def times(path: Path) -> list[float]:
    result = mist("history", "show", "--json", *history_at(path))
    return [float(each) for each in re.findall(r'"time": ?"?([0-9.]+)', result.stdout)]


def test_times_never_go_back_though_the_clock_does(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    data = tmp_path / "data"
    for start in (0.0, -5.0, -1000 * HOUR):
        put(clock, start * HOUR)
        with serving_by(clock, data, "--keep-age", "1d") as server:
            with Peer(server.urls[0]) as peer:
                for ahead in (start, start - 3, start + 1):
                    put(clock, ahead * HOUR)
                    for _ in range(10):
                        assert peer.store("a", b"x") is not None
            assert server.stop() == 0
    found = times(data / "history.db")
    assert len(found) == 90  # none was taken for older than a day
    assert found == sorted(found)
    check_sound(data / "history.db")


# kills in the middle of chores


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_log_is_sound_after_kills_while_it_is_trimmed_and_joined(
    tmp_path: Path, durability: str
) -> None:
    chance = random.Random(durability)
    path = tmp_path / "history.db"
    stored: dict[int, bytes] = {}
    limits = ("--keep-bytes", "20000", "--keep", "odd=200", "--durability", durability)
    for round_ in range(4):
        # Every start begins with a pass of retention, over what the one before has left.
        with serving(tmp_path, *limits) as server:
            with Peer(server.urls[0]) as peer:
                for number in range(chance.randrange(200, 500)):
                    # One at a time, so that each is a block of its own, to be joined.
                    data = b"%d.%d" % (round_, number)
                    id_ = peer.store("odd" if number % 2 else "even", data)
                    assert id_ is not None
                    assert id_ > max(stored, default=0)
                    stored[id_] = data
            server.stop(signal.SIGKILL)
        check_sound(path)
    with serving(tmp_path, *limits) as server:
        with Peer(server.urls[0]) as peer:
            odd = [id_ for id_, data in stored.items() if int(data.partition(b".")[2]) % 2]
            found = peer.replay("odd")
            assert list(found)[-200:] == odd[-200:]
            assert found.items() <= stored.items()
            id_ = peer.store("b", b"on")
            assert id_ is not None
            assert id_ > max(stored)
        assert server.stop() == 0
    check_sound(path)
