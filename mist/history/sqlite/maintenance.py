"""Housekeeping of a `sqlite:///` log, in pieces short enough for an append to wait for one.

What is due is found out on a connection that only reads, beside the appends; what comes of it
is then done on the one that writes:

    wal         what stands in SQLite's write-ahead log is brought home, so that it begins anew
    segment     the oldest blocks that have settled get their directory; see `directory`
    rest        the directory of blocks that retention has taken is taken as well
    space       pages that are free are given back to the file system
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from mist.history.columns import INDEXES, MASKS, fixed, unpack_all
from mist.history.sqlite.directory import PARTS, WIDTH, build
from mist.sqlite import transaction

__all__ = ["MaintenanceStep", "WalUsage", "empty_wal", "give_back", "missing", "next_step"]

MaintenanceStep = Callable[[sqlite3.Connection], None]

_AHEAD: Final = 32  # blocks that stay without a directory, since neighbours may yet be joined
_SPARE: Final = 1024  # free pages that are kept for what comes next
_GIVEN_BACK: Final = 256  # pages at a time: 2 MiB
_WAL_BYTES: Final = 8 * 1024 * 1024


@attrs.define
class WalUsage:
    """What a log's connections tell each other.

    Attributes:
        written: bytes written to SQLite's log since it was last brought home.
    """

    written: int = 0


def next_step(connection: sqlite3.Connection, wal_usage: WalUsage) -> MaintenanceStep | None:
    """The next piece of housekeeping, if there is one."""
    return (
        _wal(connection, wal_usage)
        or _segment(connection)
        or _rest(connection)
        or _space(connection)
    )


_UNSETTLED: Final = (
    # Thinned blocks below the floor as well: up to the end of the last segment, no block may
    # be without one.
    "FROM block WHERE first > (SELECT coalesce(max(last), 0) FROM segment) ORDER BY first LIMIT ?"
)


def _segment(connection: sqlite3.Connection) -> MaintenanceStep | None:
    ((count,),) = connection.execute(
        f"SELECT count(*) FROM (SELECT first {_UNSETTLED})",  # noqa: S608
        (WIDTH + _AHEAD,),
    ).fetchall()
    if count < WIDTH + _AHEAD:
        return None
    rows = connection.execute(f"SELECT first, last, hashes {_UNSETTLED}", (WIDTH,)).fetchall()
    segment, last = rows[0][0], rows[-1][1]
    parts = build([hashes for _, _, hashes in rows])
    blocks = fixed(MASKS, [first for first, _, _ in rows])

    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO segment VALUES (?, ?, ?)", (segment, last, blocks))
            marks = ",".join(["(?, ?, ?, ?)"] * len(parts))
            connection.execute(
                f"INSERT OR REPLACE INTO directory VALUES {marks}",  # noqa: S608  # marks only
                [
                    value
                    for part, hashes, masks in parts
                    for value in (part, segment, hashes, masks)
                ],
            )

    return write


def missing(connection: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """First and last id of blocks that their directory would not lead to.

    O(tags of all blocks), with one segment in memory at a time.
    """
    covered = 0
    for segment, last, packed in connection.execute(
        "SELECT first, last, blocks FROM segment ORDER BY first"
    ).fetchall():
        rows = connection.execute(
            "SELECT hashes, masks FROM directory WHERE segment = ? ORDER BY part", (segment,)
        ).fetchall()
        known = {
            each: mask
            for hashes, masks in rows
            for each, mask in zip(
                unpack_all(INDEXES, hashes), unpack_all(MASKS, masks), strict=True
            )
        }
        bits = {first: 1 << number for number, first in enumerate(unpack_all(MASKS, packed))}
        for first, end, hashes in connection.execute(
            "SELECT first, last, hashes FROM block WHERE first > ? AND first <= ? ORDER BY first",
            (covered, last),
        ).fetchall():
            bit = bits.get(first, 0)
            if not all(known.get(each, 0) & bit for each in unpack_all(INDEXES, hashes)):
                yield first, end
        covered = last


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
    # A log in balance frees what it is about to need.
    if free <= max(_SPARE, pages // 8):
        return None

    return _vacuum


def _vacuum(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA incremental_vacuum({_GIVEN_BACK})").fetchall()


def give_back(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the file system, with whatever still stands in them.

    Returns:
        Whether there were any.
    """
    ((free,),) = connection.execute("PRAGMA freelist_count").fetchall()
    if free:
        _vacuum(connection)
    return bool(free)


def empty_wal(connection: sqlite3.Connection) -> None:
    """Have the write-ahead log hold nothing any more.

    Raises:
        sqlite3.OperationalError: somebody has been reading for too long.
    """
    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if busy:
        raise sqlite3.OperationalError("another process is reading what was erased; try again")


def _wal(connection: sqlite3.Connection, wal_usage: WalUsage) -> MaintenanceStep | None:
    if wal_usage.written < _WAL_BYTES:
        return None
    wal_usage.written = 0
    # The bulk is brought home from here, beside the appends: on the writer's connection it
    # would keep one of them waiting for a tenth of a second. What came meanwhile is little.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def write(connection: sqlite3.Connection) -> None:
        # A reader in the way is waited for no longer than an append may be; next time, then.
        ((busy_timeout,),) = connection.execute("PRAGMA busy_timeout").fetchall()
        connection.execute("PRAGMA busy_timeout = 50")
        try:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")

    return write
