"""Appends to the log alone, in turns with SQLite's own bare appends of as many bytes.

The bare ones are what the disk and SQLite take; the share is how much of that is left once
messages are packed, indexed by their tags and given ids. Rates are of medians of wall time,
beside which the slowest stands.
"""

import os
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from mist.bench.errors import BenchError
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.loops import beside, run
from mist.bench.history.stored import SIZE, groups, script_of, url_of
from mist.bench.script import tag_lists
from mist.history import Durability, History, Policy, Publication
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history

__all__ = ["Appends", "measure_appends", "time_appends"]

_LEAST: Final = 5  # appends, however short the time

Groups = Iterator[list[Publication]]


@attrs.frozen(kw_only=True)
class Appends:
    """How fast one kind of group is appended.

    Attributes:
        durability: what an append waits for.
        file_system: that the log is on; None where that can't be told.
        busy: whether the event loop was saturated meanwhile.
        group: messages of an append.
        tag_lists: different ones among them.
        size: bytes of data in a message.
        ours: seconds that each append took.
        bare: seconds that SQLite took for as many bytes, one after each of `ours`.
    """

    durability: Durability
    file_system: str | None
    busy: bool
    group: int
    tag_lists: int
    size: int
    ours: list[float] = attrs.field(repr=False)
    bare: list[float] = attrs.field(repr=False)

    @property
    def messages_per_second(self) -> float:
        """Durable messages a second, by the median append."""
        return self.group / statistics.median(self.ours)

    @property
    def bare_messages_per_second(self) -> float:
        """What it would be if SQLite's part were all there is."""
        return self.group / statistics.median(self.bare)


def measure_appends(
    folder: Path | None,
    *,
    durability: Durability,
    group: int,
    lists: int,
    seconds: float = 1.0,
    busy: bool = True,
) -> Appends:
    """Append groups of `group` messages for `seconds`, each followed by a bare append.

    Args:
        folder: where files are made and removed; None for the system's place for such.
        lists: different tag lists, that messages carry in turns, also from one append to the next.

    Raises:
        BenchError: the log can't be written.
    """
    tags = tag_lists(lists)
    appended = groups(script_of(tags, group), tags, None, group)
    with scratch(folder) as place:
        ours, bare = run(partial(_in_turns, place, appended, durability, seconds, busy))
        return Appends(
            durability=durability,
            file_system=file_system(place),
            busy=busy,
            group=group,
            tag_lists=lists,
            size=SIZE,
            ours=ours,
            bare=bare,
        )


async def _in_turns(
    folder: Path, appended: Groups, durability: Durability, seconds: float, busy: bool
) -> tuple[list[float], list[float]]:
    """Seconds that each append took: the log's, and the bare one right after it."""
    url = url_of(folder / "history.db")
    with closing(_open_bare(folder / "bare.db", durability)) as connection:
        async with (
            await open_history(url, durability=durability) as history,
            beside(busy, partial(run_maintenance, history, Policy())),
        ):
            return await time_appends(history, appended, partial(_append_bare, connection), seconds)


async def time_appends(
    history: History, appended: Groups, append_bare: Callable[[bytes], None], seconds: float
) -> tuple[list[float], list[float]]:
    """Append one group after the other for `seconds`, and as many bytes bare after each.

    Groups are made between the appends, as other reads bring other messages; that isn't timed.

    Returns:
        Seconds that each of the log's appends took, and each of the others.
    """
    ours: list[float] = []
    bare: list[float] = []
    row = b""
    end = time.perf_counter() + seconds
    for group in appended:
        size = sum(each.batch.size for each in group)
        if len(row) != size:
            row = os.urandom(size)
        start = time.perf_counter()
        await history.append(group)
        middle = time.perf_counter()
        await trio.to_thread.run_sync(append_bare, row)
        ours.append(middle - start)
        bare.append(time.perf_counter() - middle)
        if time.perf_counter() >= end and len(ours) >= _LEAST:
            break
    return ours, bare


def _open_bare(path: Path, durability: Durability) -> sqlite3.Connection:
    """A database with the settings of the log, in which a row is nothing but bytes."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in ("page_size = 8192", "journal_mode = WAL", "wal_autocheckpoint = 2048"):
        connection.execute(f"PRAGMA {pragma}")
    if durability is Durability.PROCESS:
        connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB)")
    return connection


def _append_bare(connection: sqlite3.Connection, row: bytes) -> None:
    try:
        connection.execute("INSERT INTO row (body) VALUES (?)", (row,))
    except sqlite3.Error as error:
        raise BenchError(f"appending to SQLite itself: {error}") from error
