"""A server whose archive's disk is full: it goes on, says so once, and seals when there is room."""

from pathlib import Path

import pytest

from mist.archive import Archive
from tests.archive.test_sealer import rows
from tests.processes import Process, serving
from tests.system.test_faults import FileLimit, Peer, SmallDisk, disk, noise

__all__ = ["disk"]  # a fixture

SIZE = 700_000  # of which a single one is more than what is left, compressed or not
TOLD = "the archive can't be kept up"
LISTEN = ("--listen", "tcp://127.0.0.1:0")


@pytest.fixture
def options(tmp_path: Path, disk: FileLimit | SmallDisk) -> tuple[str, ...]:
    # A quarter of that makes a segment.
    archive = ("--archive", str(disk.folder / "archive"), "--keep-bytes", "8MiB")
    return (*archive, "--history", "memory://", "--log-format", "json")


def until_told(server: Process) -> None:
    """Read what the server logs up to the line that says so."""
    assert server.popen.stderr is not None
    for line in server.popen.stderr:
        if TOLD in line:
            return
    raise AssertionError("it never was")


def test_a_full_disk_ends_no_server_and_is_told_once(
    tmp_path: Path,
    disk: FileLimit | SmallDisk,
    options: tuple[str, ...],
) -> None:
    with serving(tmp_path / "data", *options, listen=LISTEN) as server:
        with Peer(server.urls[0]) as peer:
            stored = [peer.store("a", b"before")]
            disk.fill(server)
            stored += [peer.store("a", noise(SIZE)) for _ in range(5)]
            assert stored == [1, 2, 3, 4, 5, 6]
            until_told(server)
            assert peer.ask(b"ping") == b"pong\n"
            assert rows(Archive(disk.folder / "archive")) == []
            disk.free(server)
            stored.append(peer.store("a", b"after"))
        assert server.stop() == 0
        assert server.popen.stderr is not None
        assert TOLD not in server.popen.stderr.read()
    assert rows(Archive.open(disk.folder / "archive")) == stored
