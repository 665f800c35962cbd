"""File size: what a message takes on the disk, beside a bare row in SQLite.

The log's file is looked at when all maintenance is done and the log is closed, so that blocks are
joined, the directory of their tags is built and the write-ahead log is empty; free pages count.
Each append has what one read brings: larger ones make larger blocks, of which less is lost at the
end of a page.

The bare table has a row for each of the same messages, with its id, time, tags and data, and no
index of tags: a search by them would read all of it.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from mist.bench.errors import BenchError
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.loops import run
from mist.bench.history.stored import READ, SIZE, groups, script_of, tidy_up, url_of
from mist.bench.script import tag_lists
from mist.history import Durability, Publication
from mist.history.opening import open_history
from mist.wire import split_run

__all__ = ["FileSize", "measure_size"]

_PAGE: Final = 8192  # bytes of a page, as the log has them
_TIDY_EVERY: Final = 50  # appends; as often as a server's maintenance runs under load
_MICROSECONDS: Final = 1_000_000  # what the log stores times by

Groups = Iterator[list[Publication]]
Row = tuple[int, str, bytes]  # time in microseconds, tag list, data


@attrs.frozen(kw_only=True)
class FileSize:
    """How much the same messages take in two files.

    Attributes:
        file_system: that the files are on; None where that can't be told.
        messages: stored in each.
        tag_lists: different ones among them.
        size: bytes of data in a message.
        ours: bytes of the log's file.
        bare: bytes of a SQLite database with a row a message.
    """

    file_system: str | None
    messages: int
    tag_lists: int
    size: int
    ours: int
    bare: int

    @property
    def times(self) -> float:
        """How many times the bare one's size ours is."""
        return self.ours / self.bare


def measure_size(folder: Path | None, *, messages: int = 500_000, lists: int = 1) -> FileSize:
    """Store messages in a log and as bare rows, and look at the files.

    Args:
        folder: where files are made and removed; None for the system's place for such.
        lists: different tag lists, that messages carry in turns.

    Raises:
        BenchError: one of them can't be written.
    """
    tags = tag_lists(lists)
    stored = partial(groups, script_of(tags, messages), tags, messages, READ)
    with scratch(folder) as place:
        log, bare = place / "history.db", place / "bare.db"
        run(partial(_store, log, stored()))
        store_bare(bare, rows(stored()))
        return FileSize(
            file_system=file_system(place),
            messages=messages,
            tag_lists=lists,
            size=SIZE,
            ours=log.stat().st_size,
            bare=bare.stat().st_size,
        )


async def _store(path: Path, stored: Groups) -> None:
    """A log of these messages; closing it empties the write-ahead log."""
    async with await open_history(url_of(path), durability=Durability.PROCESS) as history:
        for number, group in enumerate(stored, 1):
            await history.append(group)
            if number % _TIDY_EVERY == 0:
                await tidy_up(history)
        await tidy_up(history)


def rows(stored: Groups) -> Iterator[Row]:
    """A row for each message."""
    for group in stored:
        for each in group:
            time = int(each.time * _MICROSECONDS)
            for tag_list, wire, count in each.batch.runs:
                tags = tag_list.decode()
                for data in split_run(tag_list, wire, count):
                    yield time, tags, data


def store_bare(path: Path, rows: Iterable[Row]) -> None:
    """A database with these rows and the log's settings, its write-ahead log emptied.

    Raises:
        BenchError: it can't be written.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            for pragma in (f"page_size = {_PAGE}", "journal_mode = WAL", "synchronous = NORMAL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute(
                "CREATE TABLE message (id INTEGER PRIMARY KEY, time INTEGER, tags TEXT, data BLOB)"
            )
            insert = "INSERT INTO message (time, tags, data) VALUES (?, ?, ?)"
            with connection:
                connection.executemany(insert, rows)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise BenchError(f"writing to SQLite itself: {error}") from error
