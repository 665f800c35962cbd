"""Generations: of several writers one succeeds, also where one was stopped in between."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mist.archive import Archive, ArchiveError, Manifest, Segment
from mist.archive.generations import Generations, Taken


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    return Generations(tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive", lock_timeout=0.05)


def segment(number: int) -> Segment:
    return Segment(f"date=2026-11-21/{number}.parquet", number, number, 1, 1, number, number)


def listing(number: int) -> Callable[[Manifest], Manifest]:
    return lambda manifest: manifest.plus(segment(number))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_number_is_taken_once(generations: Generations) -> None:
    generations.add(b"one", 1, locked=False)
    with pytest.raises(Taken):
        generations.add(b"two", 1, locked=False)
    assert generations.path(1).read_bytes() == b"one"
    assert names(generations.folder) == {f"{1:020}.json"}


def test_no_number_is_left_out(generations: Generations) -> None:
    with pytest.raises(Taken):
        generations.add(b"two", 2, locked=False)
    assert generations.newest() == 0


@pytest.mark.parametrize("later", [1, 7, 8, 9, 30])
@pytest.mark.parametrize("step", ["before it looks", "before it links"])
def test_a_writer_that_was_stopped_changes_nothing(
    generations: Generations, monkeypatch: pytest.MonkeyPatch, later: int, step: str
) -> None:
    """Stopped with its manifest written aside, while others have added so many."""
    generations.add(b"1", 1, locked=False)

    def others() -> None:
        monkeypatch.undo()
        for number in range(2, 2 + later):
            generations.add(b"%d" % number, number, locked=False)

    if step == "before it looks":

        def newest() -> int:
            others()
            return generations.newest()

        monkeypatch.setattr(generations, "newest", newest)
    else:

        def link(one: Path, two: Path) -> None:
            others()
            os.link(one, two)

        monkeypatch.setattr("mist.archive.generations.os.link", link)
    with pytest.raises(Taken):
        generations.add(b"stopped", 2, locked=False)
    assert generations.newest() == 1 + later
    assert b"stopped" not in [path.read_bytes() for path in generations.folder.iterdir()]
    assert len(names(generations.folder)) == min(1 + later, 8)


def test_what_dead_writers_left_is_deleted(generations: Generations) -> None:
    left = generations.folder / f".{2:020}.00ff.json"
    left.write_bytes(b"half")
    for number in range(1, 12):
        generations.add(b"x", number, locked=False)
    assert not left.exists()


def test_a_link_whose_answer_was_lost_counts(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(one: Path, two: Path) -> None:
        monkeypatch.undo()
        os.link(one, two)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr("mist.archive.generations.os.link", link)
    generations.add(b"one", 1, locked=False)
    assert generations.path(1).read_bytes() == b"one"


def no_links(one: Path, two: Path) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_the_lock_is_needed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.check_shareable()
    monkeypatch.setattr("mist.archive.generations.os.link", no_links)
    assert archive.messages.change(listing(1)).generation == 1
    with (
        archive.messages.locked() as is_locked,
        pytest.raises(ArchiveError, match="not permitted"),
    ):
        assert is_locked
        archive.messages.change(listing(2))
    with pytest.raises(ArchiveError, match="nodes need hard links to share it: Operation not"):
        archive.check_shareable()
    assert archive.messages.current().segments == (segment(1),)
    assert names(archive.folder / "_manifest") == {"lock", f"{1:020}.json"}


def test_a_stopped_process_that_has_the_lock_keeps_nobody(archive: Archive) -> None:
    handle = os.open(archive.folder / "_manifest" / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert archive.messages.change(listing(1)).generation == 1
        old = archive.folder / "date=2026-11-21" / "orphan.parquet"
        old.parent.mkdir()
        old.touch()
        os.utime(old, (0, 0))
        # What may be listed at any moment is not deleted without the lock.
        assert archive.messages.sweep() == []
    finally:
        os.close(handle)
    assert archive.messages.sweep() == ["date=2026-11-21/orphan.parquet"]


def test_a_manifest_that_is_known_is_not_read_again(archive: Archive) -> None:
    table = archive.messages
    assert table.current(Manifest()) == Manifest()
    known = table.change(listing(1))
    assert table.current(known) is known
    newer = Archive.open(archive.folder).messages.change(listing(2))
    assert table.current(known) == newer


WRITER = """
import sys
from pathlib import Path
from mist.archive import Archive, Segment

archive = Archive(Path(sys.argv[1]), lock_timeout=0.0)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    segment = Segment(f"{number}", number, number, 1, 1, number, number)
    archive.messages.change(lambda manifest: manifest.plus(segment))
"""


def test_many_writers_without_a_lock_lose_nothing(archive: Archive) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(archive.folder), str(at), str(at + 20)])
        for at in (0, 20, 40)
    ]
    found: list[Manifest] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found.append(archive.messages.current())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert [each.wait(60) for each in writers] == [0, 0, 0]
    finally:
        done.set()
        reader.join()
    last = archive.messages.current()
    assert [each.first for each in last.segments] == list(range(60))
    assert last.generation == 60
    sizes = [len(each.segments) for each in found]
    assert sizes == sorted(sizes)
    assert msgspec.json.decode(msgspec.json.encode(last), type=Manifest) == last
