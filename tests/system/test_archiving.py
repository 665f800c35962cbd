"""Archiving: a server process that keeps an archive, killed, restarted and started wrongly."""

import random
from functools import partial
from pathlib import Path

import pytest

from mist.archive import Archive
from mist.archive.segments import read_segment
from tests.processes import LISTEN, dial, mist, serving
from tests.system.test_durability import assert_all_there_once, store_through_kills


def archived(folder: Path) -> list[tuple[int, str]]:
    table = Archive.open(folder).messages
    return [
        (row["id"], row["data"].decode())
        for segment in table.current().segments
        for row in read_segment(table, segment, ["id", "data"]).to_pylist()
    ]


def survive_kills(folder: Path, kills: int) -> None:
    """Kill a server in full flight again and again: all that was acknowledged is archived once."""
    archive = folder / "archive"
    # So little is kept that segments are made, and their messages trimmed, all the time.
    options = ("--archive", str(archive), "--keep-bytes", "2MiB", "--durability", "process")
    goals = partial(random.randint, 15_000, 30_000)
    stored = store_through_kills(folder / "data", *options, kills=kills, writers=2, goals=goals)
    with serving(folder / "data", *options) as server:
        assert server.stop() == 0
    assert_all_there_once(archived(archive), stored)
    assert len(Archive.open(archive).messages.current().segments) > kills
    assert Archive.open(archive).messages.current().lost == ()


def test_what_was_acknowledged_is_archived_once_whatever_kills_the_server(tmp_path: Path) -> None:
    survive_kills(tmp_path, 2)


@pytest.mark.slow
def test_what_was_acknowledged_is_archived_once_through_ten_kills(tmp_path: Path) -> None:
    survive_kills(tmp_path, 10)


def test_a_server_that_stops_leaves_a_whole_archive(tmp_path: Path) -> None:
    options = ("--archive", str(tmp_path / "archive"))
    with serving(tmp_path, *options) as server, dial(server.urls[0]) as sock:
        sock.sendall(b"ping\n" + b"".join(b"publish a %d\n" % n for n in range(500)) + b"ping\n")
        while not sock.recv(100).endswith(b"pong\n"):
            pass
        sock.sendall(b"ping\n")
        assert sock.recv(5) == b"pong\n"
        assert server.stop() == 0
    assert archived(tmp_path / "archive") == [(n + 1, str(n)) for n in range(500)]


def test_two_servers_on_one_archive_are_told_in_one_line(tmp_path: Path) -> None:
    options = ("--archive", str(tmp_path / "archive"))
    with serving(tmp_path / "one", *options):
        second = mist("serve", "--data", str(tmp_path / "two"), *LISTEN, *options)
    assert second.returncode == 2
    assert second.stderr.strip().endswith("another server uses it")
    assert len(second.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--history", "none"), "an archive is made of the history: keep one"),
        (("--archive", "/dev/null/archive"), "archive /dev/null/archive: Not a directory"),
    ],
)
def test_an_archive_that_cannot_be_is_told_in_one_line(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    given = ("--archive", str(tmp_path / "archive"), *options)
    result = mist("serve", "--data", str(tmp_path), *LISTEN, *given)
    assert result.returncode == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("history", "says"),
    [
        ("memory://", "memory:// is a new one at each start"),
        ("sqlite:///{}/other.db", "restore that one, or use another directory for this one"),
    ],
)
def test_an_archive_of_another_history_is_told_in_one_line(
    tmp_path: Path, history: str, says: str
) -> None:
    archive = tmp_path / "archive"
    url = history.format(tmp_path)
    first = "memory://" if url == "memory://" else f"sqlite:///{tmp_path}/history.db"
    options = ("--archive", str(archive), "--history")
    with serving(tmp_path, *options, first) as server, dial(server.urls[0]) as sock:
        sock.sendall(b"publish a 1\nping\n")
        assert sock.recv(5) == b"pong\n"
        assert server.stop() == 0
    for _ in range(2):
        result = mist("serve", "--data", str(tmp_path), *LISTEN, *options, url)
        assert result.returncode == 2
        assert f"archive {archive}: of another history" in result.stderr
        assert says in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert archived(archive) == [(1, "1")]


def test_a_server_without_pyarrow_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no', name='pyarrow')")
    result = mist(
        *("serve", "--data", str(tmp_path), *LISTEN, "--archive", str(tmp_path / "archive")),
        PYTHONPATH=str(tmp_path),
    )
    assert result.returncode == 2
    assert "pyarrow is missing; pip install 'mist-pubsub[archive]'" in result.stderr
