"""Maintenance of a `sqlite:///` log, in steps short enough for an append to wait for one.

The next step is determined on a connection that only reads, beside the appends, and then run on
the one that writes:

    wal         checkpoint of SQLite's write-ahead log, so that its file is reused
    segment     the oldest blocks without a directory are indexed; see `directory`
    rest        the directory of blocks that retention has removed is deleted
    space       free pages are returned to the file system
"""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import attrs

from mist.history.columns import INDEXES, MASKS, fixed, unpack_all
from mist.history.postings import PARTS
from mist.history.sqlite.directory import WIDTH, build, hashes_of
from mist.history.sqlite.gaps import removed_upto
from mist.sqlite import is_damage, transaction

__all__ = ["MaintenanceStep", "WalUsage", "empty_wal", "missing", "next_step", "return_space"]

MaintenanceStep = Callable[[sqlite3.Connection], None]

_AHEAD: Final = 32  # newest blocks that are not indexed yet, since they may be joined
_SPARE: Final = 1024  # free pages that are kept for the next appends
_VACUUMED: Final = 256  # pages at a time: 2 MiB
_WAL_BYTES: Final = 8 * 1024 * 1024


@attrs.define
class WalUsage:
    """Use of the write-ahead log, shared by a log's connections.

    Attributes:
        written: bytes written to it since the last checkpoint.
    """

    written: int = 0


def next_step(connection: sqlite3.Connection, wal_usage: WalUsage) -> MaintenanceStep | None:
    """The next step of maintenance; None where none is due."""
    return (
        _wal(connection, wal_usage)
        or _readable_segment(connection)
        or _rest(connection)
        or _space(connection)
    )


_UNSETTLED: Final = (
    # Thinned blocks below the floor as well: up to the end of the last segment, every block
    # must be in one.
    "FROM block WHERE first > (SELECT coalesce(max(last), 0) FROM segment) ORDER BY first LIMIT ?"
)


def _readable_segment(connection: sqlite3.Connection) -> MaintenanceStep | None:
    # A directory without the blocks that can't be read would hide that they are lost. So none is
    # made behind damage; blocks there are searched one after the other.
    try:
        return _segment(connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_damage(error):
            return None
        raise


def _segment(connection: sqlite3.Connection) -> MaintenanceStep | None:
    ((count,),) = connection.execute(
        f"SELECT count(*) FROM (SELECT first {_UNSETTLED})",  # noqa: S608
        (WIDTH + _AHEAD,),
    ).fetchall()
    if count < WIDTH + _AHEAD:
        return None
    rows = connection.execute(f"SELECT first, last, hashes {_UNSETTLED}", (WIDTH,)).fetchall()
    removed = removed_upto(connection)
    if any(after[0] > max(row[1], removed) + 1 for row, after in pairwise(rows)):
        return None  # as behind other damage
    segment, last = rows[0][0], rows[-1][1]
    parts = list(build([hashes for _, _, hashes in rows]))
    blocks = fixed(MASKS, [first for first, _, _ in rows])

    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO segment VALUES (?, ?, ?)", (segment, last, blocks))
            marks = ",".join(["(?, ?, ?, ?)"] * len(parts))
            connection.execute(
                f"INSERT OR REPLACE INTO directory VALUES {marks}",  # noqa: S608  # marks only
                [value for part, hashes, ends in parts for value in (part, segment, hashes, ends)],
            )

    return write


def missing(connection: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """First and last id of blocks that are missing in their directory.

    O(tags of all blocks), with one segment in memory at a time.
    """
    covered = 0
    for segment, last, packed in connection.execute(
        "SELECT first, last, blocks FROM segment ORDER BY first"
    ).fetchall():
        rows = connection.execute(
            "SELECT hashes, ends FROM directory WHERE segment = ? ORDER BY part", (segment,)
        ).fetchall()
        known = dict(zip(unpack_all(MASKS, packed), hashes_of(rows), strict=False))
        for first, end, hashes in connection.execute(
            "SELECT first, last, hashes FROM block WHERE first > ? AND first <= ? ORDER BY first",
            (covered, last),
        ).fetchall():
            listed = known.get(first, b"")
            if hashes != listed and not _contains(listed, hashes):
                yield first, end
        covered = last


def _contains(listed: bytes, hashes: bytes) -> bool:
    return set(unpack_all(INDEXES, listed)).issuperset(unpack_all(INDEXES, hashes))


def _rest(connection: sqlite3.Connection) -> MaintenanceStep | None:
    rows = connection.execute(
        "SELECT first FROM segment WHERE last <= (SELECT floor FROM log) AND NOT EXISTS "
        "(SELECT 1 FROM block WHERE block.first BETWEEN segment.first AND segment.last) LIMIT 1"
    ).fetchall()
    if not rows:
        return None
    ((segment,),) = rows
    parts = ",".join(map(str, range(PARTS)))

    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute(
                f"DELETE FROM directory WHERE segment = ? AND part IN ({parts})",  # noqa: S608
                (segment,),
            )
            connection.execute("DELETE FROM segment WHERE first = ?", (segment,))

    return write


def _space(connection: sqlite3.Connection) -> MaintenanceStep | None:
    ((free,),) = connection.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    # A log of constant size reuses the pages it frees.
    if free <= max(_SPARE, pages // 8):
        return None

    return _vacuum


def _vacuum(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA incremental_vacuum({_VACUUMED})").fetchall()


def return_space(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the file system, with any data still in them.

    Returns:
        Whether there were any.
    """
    ((free,),) = connection.execute("PRAGMA freelist_count").fetchall()
    if free:
        _vacuum(connection)
    return bool(free)


def empty_wal(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log.

    Raises:
        sqlite3.OperationalError: a reader has kept it in use for too long.
    """
    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if busy:
        raise sqlite3.OperationalError("another process is reading what was erased; try again")


def _wal(connection: sqlite3.Connection, wal_usage: WalUsage) -> MaintenanceStep | None:
    if wal_usage.written < _WAL_BYTES:
        return None
    wal_usage.written = 0
    # The bulk of the checkpoint is done here, beside the appends: on the writer's connection it
    # would delay one of them by 0.1 s. Little is left for that one.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def write(connection: sqlite3.Connection) -> None:
        # Wait for readers no longer than an append may wait; otherwise retry next time.
        ((busy_timeout,),) = connection.execute("PRAGMA busy_timeout").fetchall()
        connection.execute("PRAGMA busy_timeout = 50")
        try:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")

    return write
