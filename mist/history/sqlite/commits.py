"""The table `writer`: the statements that write and read it; see `mist.history.commits`."""

import sqlite3
from typing import Final

import attrs
import msgspec

from mist.history.commits import MAX_WRITERS, Commit, Mark
from mist.history.sqlite.rows import checked, fetch

__all__ = ["put_commit", "read_commit", "read_commits"]

_CommitValues = tuple[int, int, int, int, int]

# Usually a commit replaces the writer's last one; this bounds owners that use many writers.
_FORGET_IDLE: Final = (
    "DELETE FROM writer WHERE owner = ?1 AND writer IN (SELECT writer FROM writer "
    "WHERE owner = ?1 ORDER BY time DESC, last DESC LIMIT -1 OFFSET ?2)"
)


def put_commit(connection: sqlite3.Connection, mark: Mark, commit: Commit) -> None:
    """Store the commit of a batch. Part of a transaction.

    Raises:
        sqlite3.Error: untranslated, since the caller's transaction translates it.
    """
    connection.execute(
        "INSERT OR REPLACE INTO writer (batch, first, last, messages, time, owner, writer) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*attrs.astuple(commit), mark.owner, mark.writer),
    )
    ((known,),) = connection.execute(
        "SELECT count(*) FROM writer WHERE owner = ?", (mark.owner,)
    ).fetchall()
    if known > MAX_WRITERS:
        connection.execute(_FORGET_IDLE, (mark.owner, MAX_WRITERS))


def read_commits(connection: sqlite3.Connection) -> list[tuple[str, str, Commit]]:
    """See `BlockStore.commits`."""
    rows = fetch(connection, "SELECT owner, writer, batch, first, last, messages, time FROM writer")
    with checked():
        found = msgspec.convert(rows, list[tuple[str, str, int, int, int, int, int]])
    return [(owner, writer, Commit(*values)) for owner, writer, *values in found]


def read_commit(connection: sqlite3.Connection, owner: str, writer: str) -> Commit | None:
    """The last commit of a writer."""
    rows = fetch(
        connection,
        "SELECT batch, first, last, messages, time FROM writer WHERE owner = ? AND writer = ?",
        (owner, writer),
    )
    with checked():
        found = msgspec.convert(rows, list[_CommitValues])
    return Commit(*found[0]) if found else None
