"""Durability: a server process with a history, killed, restarted and started wrongly.

pytest tests/system/test_durability.py --slow -s -k hundred     kills it 100 times in each
                                                                durability; prints its figures
"""

import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.processes import LISTEN, dial, mist, serving

BATCH = 200  # stores in flight at a time


def store_until_the_end(
    url: str,
    name: str,
    stored: dict[int, str],
    repeated: list[int],
    refused: list[str] | None = None,
) -> None:
    """Store messages as fast as they are acknowledged; what was acknowledged goes to `stored`.

    Args:
        refused: gets what was refused, which may have been stored; None where nothing may be.
    """
    number = 0
    with dial(url) as sock, sock.makefile("rb") as replies:
        try:
            while True:
                texts = [f"{name}.{number + n}" for n in range(BATCH)]
                number += BATCH
                sock.sendall("".join(f"store a,{name} {text}\n" for text in texts).encode())
                for text in texts:
                    line = replies.readline()
                    if not line.endswith(b"\n"):
                        return
                    if refused is not None and line == b"error History is unavailable\n":
                        refused.append(text)
                        continue
                    id_ = int(line.removeprefix(b"stored "))
                    if id_ in stored:
                        repeated.append(id_)
                    stored[id_] = text
        except OSError:
            return


class Unavailable(Exception):
    """A server does not tell what it has now."""


def read_back(url: str) -> list[tuple[int, str]]:
    with dial(url) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"ids on\nsubscribe a 0\nping\n")
        found = []
        while (line := replies.readline()) != b"pong\n":
            if line == b"error History is unavailable\n":
                raise Unavailable
            word, id_, _, data = line.decode().split()
            assert word == "message"
            found.append((int(id_), data))
        return found


def store_through_kills(
    folder: Path, *options: str, kills: int, writers: int, goals: Callable[[], int]
) -> dict[int, str]:
    """Kill a server in full flight again and again; what was acknowledged, no id twice.

    Args:
        writers: store at once.
        goals: after how many more acknowledged messages to kill.
    """
    stored: dict[int, str] = {}
    repeated: list[int] = []
    for kill in range(kills):
        with serving(folder, *options) as server:
            threads = [
                threading.Thread(
                    target=store_until_the_end,
                    args=(server.urls[0], f"k{kill}w{n}", stored, repeated),
                )
                for n in range(writers)
            ]
            for thread in threads:
                thread.start()
            goal = len(stored) + goals()
            while len(stored) < goal:
                threads[0].join(0.001)
                assert all(thread.is_alive() for thread in threads)
            server.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
    assert repeated == []
    return stored


def assert_all_there_once(found: list[tuple[int, str]], stored: dict[int, str]) -> None:
    ids = [id_ for id_, _ in found]
    assert ids == sorted(set(ids))
    assert stored.items() <= dict(found).items()


def survive_kills(folder: Path, durability: str, kills: int) -> None:
    goals = partial(Random(kills).randint, 1, 3_000)
    options = ("--history", f"sqlite:///{folder}/history.db", "--durability", durability)
    stored = store_through_kills(folder, *options, kills=kills, writers=3, goals=goals)
    with serving(folder, *options) as server:
        found = read_back(server.urls[0])
        assert server.stop() == 0
    texts = [text for _, text in found]
    print(
        f"\n{durability}: {kills} kills, {len(stored):,} messages acknowledged, "
        f"{len(stored.items() - dict(found).items())} of them lost, "
        f"{len(texts) - len(set(texts))} there twice; {len(found) - len(stored):,} more were "
        "stored and not acknowledged"
    )
    assert_all_there_once(found, stored)
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("durability", ["power", "process"])
def test_no_acknowledged_message_is_lost_to_kills(tmp_path: Path, durability: str) -> None:
    survive_kills(tmp_path, durability, 5)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["power", "process"])
def test_no_acknowledged_message_is_lost_to_a_hundred_kills(
    tmp_path: Path, durability: str
) -> None:
    survive_kills(tmp_path, durability, 100)


def test_a_draining_server_stores_what_it_has_read(tmp_path: Path) -> None:
    options = ("--history", f"sqlite:///{tmp_path}/history.db")
    with serving(tmp_path, *options) as server, dial(server.urls[0]) as sock:
        sock.sendall(b"ping\n" + b"".join(b"publish a %d\n" % n for n in range(5_000)))
        assert sock.recv(5) == b"pong\n"
        sock.sendall(b"ping\n")
        assert sock.recv(5) == b"pong\n"
        assert server.stop() == 0
    with serving(tmp_path, *options) as server:
        assert [data for _, data in read_back(server.urls[0])] == [str(n) for n in range(5_000)]


def test_a_second_server_on_the_same_log_is_told_in_one_line(tmp_path: Path) -> None:
    options = ("--history", f"sqlite:///{tmp_path}/history.db")
    with serving(tmp_path / "one", *options) as server:
        second = mist("serve", "--data", str(tmp_path / "two"), *LISTEN, *options)
        assert second.returncode == 2
        assert len(second.stderr.strip().splitlines()) == 1
        assert "history" in second.stderr
        assert read_back(server.urls[0]) == []


def test_readers_pass_over_a_damaged_page_with_a_gap(tmp_path: Path) -> None:
    count, page = 3_000, 8_192
    options = ("--history", f"sqlite:///{tmp_path}/history.db")
    with serving(tmp_path, *options) as server, dial(server.urls[0]) as sock:
        for start in range(0, count, 30):
            messages = [b"publish a %d %b\n" % (n, b"x" * 300) for n in range(start, start + 30)]
            sock.sendall(b"".join(messages) + b"ping\n")
            assert sock.recv(5, socket.MSG_WAITALL) == b"pong\n"
        assert server.stop() == 0
    path = tmp_path / "history.db"
    content = bytearray(path.read_bytes())
    # A page that lists some of the blocks, neither the first nor the last of them.
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'block'"
        ((root,),) = database.execute(query).fetchall()
    tree = (root - 1) * page
    assert content[tree] == 5  # an interior page, whose cells begin with a page's number
    cells = int.from_bytes(content[tree + 3 : tree + 5])
    cell = int.from_bytes(content[tree + 12 + cells // 2 * 2 :][:2])
    child = int.from_bytes(content[tree + cell :][:4])
    content[(child - 1) * page : child * page] = bytes(page)
    path.write_bytes(content)
    with serving(tmp_path, *options) as server:
        for _ in range(2):
            with dial(server.urls[0]) as sock, sock.makefile("rb") as replies:
                sock.sendall(b"ids on\nsubscribe a 0\nping\n")
                ids, gaps = [0], []
                while (line := replies.readline()) != b"pong\n":
                    word, *fields = line.split()
                    if word == b"gap":
                        gaps.append((ids[-1], int(fields[1])))
                    else:
                        ids.append(int(fields[0]))
            ((before, behind),) = gaps
            assert ids[1:] == [*range(1, before + 1), *range(behind, count + 1)]
            assert 0 < behind - before < count / 2
        server.popen.terminate()
        _, log = server.popen.communicate(timeout=20)
    assert log.count("history is damaged") == 1
    result = mist("history", "verify", "--history", options[1])
    assert result.returncode == 1
    assert f"{before + 1}-{behind - 1}: " in result.stdout


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b""])
def test_a_file_that_is_no_log_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history.db").write_bytes(content)
    (tmp_path / "history.db").chmod(0o600)
    result = mist("serve", "--data", str(tmp_path), *LISTEN, "--history", "nonsense:///history.db")
    assert result.returncode == 2
    assert re.fullmatch(r"mist serve: .*history.*\n", result.stderr)
    if content:
        url = f"sqlite:///{tmp_path}/history.db"
        result = mist("serve", "--data", str(tmp_path), *LISTEN, "--history", url)
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert (tmp_path / "history.db").read_bytes() == content
