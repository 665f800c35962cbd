"""A copy of a log that a server has open, kept up to date by what has changed since.

Everything is read in one transaction, so it is the log of one moment; the server's appends go on
beside it, in SQLite's write-ahead log. The first copy is written by SQLite as a whole. Later ones
compare rows by their keys and, of blocks, by their heads and checksums: bodies, which are nearly
all of a log, are read and written only where they are new. That too is one transaction: a copy that
is interrupted is what it was before.

What is deleted from a copy is overwritten, so that an erasure reaches it.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import attrs

from mist import sqlite
from mist.errors import HistoryDamaged, HistoryUnavailable, StartupError
from mist.history.inspection import inspect_block
from mist.history.record import Problem
from mist.history.sqlite.block_store import SqliteBlockStore
from mist.history.sqlite.database import LOG, connect, startup_errors, translated
from mist.history.sqlite.maintenance import WalUsage
from mist.history.tag_lists import TagLists

__all__ = ["Copied", "check_blocks", "copy_log"]

_HEAD: Final = ("last", "start", "messages", "oldest", "newest", "size", "checksum")
_BUSY_TIMEOUT: Final = 10_000  # milliseconds
_SPARE: Final = 1024  # free pages that a copy keeps


@attrs.frozen
class Copied:
    """What was copied.

    Attributes:
        blocks: keys of those that were written; None where the whole log was.
        size: bytes of these, or of the file.
    """

    blocks: Sequence[int] | None
    size: int


def copy_log(source: Path, target: Path) -> Copied:
    """Make `target` a copy of the log in `source`, or bring it up to date. Blocks; O(changes) of
    writing, O(blocks) of reading.

    Args:
        target: nobody has it open. A file that is no log of this version is replaced.

    Raises:
        HistoryUnavailable: the log can't be read, or the copy not written; it is as it was.
        StartupError: `source` is no log of this version.
    """
    with startup_errors(source):
        source.stat()
        with closing(connect(source, read_only=True)) as connection:
            LOG.is_new(connection, source)
            tables = _tables(connection, "main")
    if _is_copy(target, tables):
        return _update(source, target, tables)
    return _write(source, target)


def _is_copy(target: Path, tables: dict[str, str]) -> bool:
    if not target.exists():
        return False
    try:
        with closing(sqlite3.connect(target)) as connection:
            return not LOG.is_new(connection, target) and _tables(connection, "main") == tables
    except (sqlite3.Error, StartupError):
        return False


def _tables(connection: sqlite3.Connection, schema: str) -> dict[str, str]:
    """How each table was made, by its name."""
    rows = connection.execute(
        f"SELECT name, sql FROM {schema}.sqlite_schema "  # noqa: S608
        "WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    )
    return dict(rows.fetchall())


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _write(source: Path, target: Path) -> Copied:
    fresh = target.with_name(f"{target.name}.new")
    for left in (fresh, fresh.with_name(f"{fresh.name}-journal")):  # by one that was killed
        left.unlink(missing_ok=True)
    sqlite.create(fresh)  # readable by its owner only; SQLite takes an empty file
    with translated(), closing(sqlite3.connect(_read_only(source), uri=True)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT}")
        # A URI, since a name may not be UTF-8.
        connection.execute("VACUUM INTO ?", (fresh.absolute().as_uri(),))
    with translated(), closing(sqlite3.connect(fresh)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    size = fresh.stat().st_size
    _sync(fresh)
    fresh.replace(target)
    sqlite.sync_directory(target.parent)
    return Copied(None, size)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _update(source: Path, target: Path, tables: Iterable[str]) -> Copied:
    with translated(), closing(sqlite3.connect(target, uri=True, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = FULL")
        copy.execute("PRAGMA secure_delete = ON")
        copy.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT}")
        copy.execute("ATTACH ? AS source", (_read_only(source),))
        with _transaction(copy):
            changed = [_take(copy, table) for table in tables]
        blocks = [key for keys in changed for key in keys]
        size = 0
        if blocks:
            ((size,),) = copy.execute(
                "SELECT sum(size) FROM block WHERE first IN (SELECT value FROM json_each(?))",
                (str(blocks),),
            ).fetchall()
        ((free,),) = copy.execute("PRAGMA freelist_count").fetchall()
        ((pages,),) = copy.execute("PRAGMA page_count").fetchall()
        if free > max(_SPARE, pages // 8):
            copy.execute("PRAGMA incremental_vacuum").fetchall()
    return Copied(blocks, size)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # Deferred: one that is immediate would ask for the source's lock, too.
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _take(copy: sqlite3.Connection, table: str) -> list[int]:
    """Make one table the source's; the keys of blocks that are new."""
    columns = copy.execute(f"PRAGMA main.table_info({table})").fetchall()
    keys = [name for _, name, _, _, _, key in columns if key]
    compared = _HEAD if table == "block" else [name for _, name, *_ in columns]
    same = " AND ".join(f"theirs.{name} IS ours.{name}" for name in {*keys, *compared})
    key = " AND ".join(f"theirs.{name} = ours.{name}" for name in keys)
    copy.execute(
        f"DELETE FROM main.{table} AS ours WHERE NOT EXISTS "  # noqa: S608
        f"(SELECT 1 FROM source.{table} AS theirs WHERE {key} AND {same})"
    )
    missing = (
        f"FROM source.{table} AS theirs WHERE NOT EXISTS "  # noqa: S608
        f"(SELECT 1 FROM main.{table} AS ours WHERE {key})"
    )
    blocks: list[int] = []
    if table == "block":
        blocks = [first for (first,) in copy.execute(f"SELECT first {missing}")]
    copy.execute(f"INSERT INTO main.{table} SELECT * {missing}")
    return blocks


def check_blocks(path: Path, blocks: Sequence[int]) -> list[Problem]:
    """Read blocks of a log that nobody writes to, and report what isn't as it was written.

    Raises:
        HistoryUnavailable: the log can't be read.
    """
    problems: list[Problem] = []
    with translated(), closing(connect(path, read_only=True)) as connection:
        store = SqliteBlockStore(connection, WalUsage())
        tag_lists = TagLists()
        for first in blocks:
            try:
                heads = store.heads(first - 1, 1)
                if not heads or heads[0].first != first:
                    problems.append(Problem(first, 0, "the block is not in the copy"))
                    continue
                problems += inspect_block(store, tag_lists, heads[0])
            except (HistoryDamaged, HistoryUnavailable) as error:
                problems.append(Problem(first, 0, str(error)))
    return problems
