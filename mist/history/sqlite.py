"""`sqlite:///…`: a log in a file that one server writes and others may read.

Work is done in threads: one that writes, and a few that read, each on a connection of its own.
A thread shares the interpreter lock with the event loop and waits for it after every
statement. So an append is one statement, which is a transaction by itself, and a page of a
replay is a handful.

How long it waits is the interpreter's *switch interval*, 5 ms by default, and that is more
than it seems. The interval begins anew whenever the loop lets go of the lock for a moment, as
it does each time it polls; and it mostly has it back before the thread has woken up. Beside a
loop that polls every 0.5 ms, four waits of a thread took 30 s with the default, 4.5 s with an
interval of 0.5 ms, and 3 ms with 0.1 ms, which is shorter than a busy loop's turns. So who
opens a log to write it sets the interval to that.
"""

import heapq
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import msgspec
import trio

from mist.errors import HistoryDamaged, HistoryUnavailable, StartupError
from mist.history import Durability, History
from mist.history.chores import Traffic, due, missing
from mist.history.columns import MASKS, unpack_all
from mist.history.database import (
    boot_id,
    connect,
    explained,
    lock,
    path_of,
    prepare,
    touch,
    transaction,
    translated,
)
from mist.history.directory import mask_of, part_of, set_bits
from mist.history.layout import Head, Row
from mist.history.log import Log, Survey, Workshop, random_epoch
from mist.history.record import Problem
from mist.history.selection import Selection
from mist.history.shelf import Change, Shelf, State, Totals

__all__ = ["open_sqlite"]

log = logging.getLogger("mist.history")

T = TypeVar("T")

_READERS: Final = 4  # threads; each holds a page or so
_SWITCH_INTERVAL: Final = 0.0001  # seconds; see above

_HEAD: Final = "first, last, start, messages, oldest, newest, size"
_INSERT: Final = f"INSERT INTO block ({_HEAD}, checksum, hashes, body) VALUES (?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
_SELECT: Final = f"SELECT {_HEAD}, checksum, hashes, body FROM block"  # noqa: S608


_HeadValues = tuple[int, int, int, int, int, int, int]
_RowValues = tuple[int, int, int, int, int, int, int, int, bytes, bytes]
_StateValues = tuple[str, int, int, int, int, int, str]
_decode_heads: Final = msgspec.json.Decoder(list[_HeadValues]).decode


@contextmanager
def _checked() -> Iterator[None]:
    """Have values of other types than were written count as damage."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise HistoryDamaged(0, f"the database is damaged: {error}") from error


def _values(row: Row) -> tuple[object, ...]:
    return (*attrs.astuple(row.head), row.checksum, row.hashes, row.body)


def _row(values: Sequence[object]) -> Row:
    with _checked():
        *head, checksum, hashes, body = msgspec.convert(values, _RowValues)
    return Row(Head(*head), hashes, checksum, body)


class SqliteShelf(Shelf):
    """See the module.

    Args:
        connection: to a database that is known to be a log.
        traffic: shared by all connections of one log.
    """

    def __init__(self, connection: sqlite3.Connection, traffic: Traffic) -> None:
        self._connection = connection
        self._traffic = traffic

    def load(self) -> tuple[State, dict[str, int]]:
        with translated():
            states = self._connection.execute(
                "SELECT epoch, newest, latest, floor, trimmed, untracked, patterns FROM log"
            ).fetchall()
            tracked = self._connection.execute("SELECT tag, id FROM tracked").fetchall()
        with _checked():
            state = msgspec.convert(states[0] if states else None, _StateValues)
            known = msgspec.convert(tracked, list[tuple[str, int]])
        epoch, newest, latest, floor, trimmed, untracked, joined = state
        patterns = tuple(joined.split("\n")) if joined else ()
        return State(epoch, newest, latest, floor, trimmed, untracked, patterns), dict(known)

    def append(self, row: Row) -> None:
        with translated():
            self._connection.execute(_INSERT, _values(row))
        self._traffic.written += row.head.size

    def change(self, change: Change) -> None:
        execute = self._connection.execute
        self._traffic.written += sum(row.head.size for row in change.put)
        with translated(), transaction(self._connection):
            # Lists go in as one parameter: an append is waiting, and statements add up.
            if change.remove:
                execute(
                    "DELETE FROM block WHERE first IN (SELECT value FROM json_each(?))",
                    (_json(change.remove),),
                )
            for row in change.put:
                execute(_INSERT, _values(row))
            if change.forget:
                execute("DELETE FROM tracked")
            if change.tracked:
                execute(
                    "INSERT INTO tracked (tag, id) "
                    "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') "
                    "FROM json_each(?) WHERE TRUE "
                    "ON CONFLICT (tag) DO UPDATE SET id = excluded.id",
                    (_json(list(change.tracked.items())),),
                )
            if change.state is not None:
                state = change.state
                execute(
                    "UPDATE log SET epoch = ?, newest = ?, latest = ?, floor = ?, trimmed = ?, "
                    "untracked = ?, patterns = ?",
                    (*attrs.astuple(state)[:-1], "\n".join(state.patterns)),
                )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with translated():
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:  # some errors have ended it already
                with translated():
                    self._connection.execute("ROLLBACK")  # nothing was written

    def ascend(
        self, after: int, upto: int, selection: Selection | None
    ) -> Generator[Row, None, None]:
        lookups = None if selection is None else selection.lookups
        if lookups is not None:
            indexed = self.settled()
            if after < indexed:
                for first in self._find(lookups, after, min(upto, indexed), descending=False):
                    yield from self._rows(f"{_SELECT} WHERE first = ?", (first,))
                after = indexed
        where, parameters = _where(lookups)
        yield from self._rows(
            f"{_SELECT} WHERE first >= coalesce("  # noqa: S608  # marks only
            "(SELECT max(first) FROM block WHERE first <= ?), 0) "
            f"AND first <= ? AND last > ? AND {where} ORDER BY first",
            (after + 1, upto, after, *parameters),
        )

    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        lookups = None if selection is None else selection.lookups
        indexed = 0 if lookups is None else self.settled()
        where, parameters = _where(lookups)
        yield from self._rows(
            f"{_SELECT} WHERE first <= ? AND first > ? AND {where} ORDER BY first DESC",
            (upto, indexed, *parameters),
        )
        if lookups is not None:
            for first in self._find(lookups, 0, min(upto, indexed), descending=True):
                yield from self._rows(f"{_SELECT} WHERE first = ?", (first,))

    def _find(
        self, lookups: Sequence[Sequence[int]], after: int, upto: int, *, descending: bool
    ) -> Iterator[int]:
        """Keys of the blocks in the directory that may match, one segment after the other."""
        found = [self._masks(lookup, after, upto, descending=descending) for lookup in lookups]
        merged = heapq.merge(*found, key=itemgetter(0), reverse=descending)
        try:
            for segment, masks in groupby(merged, key=itemgetter(0)):
                mask = reduce(or_, [each for _, each in masks])
                blocks = self._blocks(segment, mask, after, upto)
                yield from reversed(blocks) if descending else blocks
        except (ValueError, IndexError) as error:
            raise HistoryDamaged(0, f"its directory can't be read: {error}") from error

    def _blocks(self, segment: int, mask: int, after: int, upto: int) -> list[int]:
        """Keys of a segment's blocks that `mask` names and that have ids in `(after, upto]`."""
        ((packed, last),) = self._fetch(
            "SELECT blocks, last FROM segment WHERE first = ?", (segment,)
        )
        firsts = unpack_all(MASKS, packed)
        # A block ends where the next begins, or before.
        ends = [*(first - 1 for first in firsts[1:]), last]
        return [
            firsts[number]
            for number in set_bits(mask)
            if firsts[number] <= upto and ends[number] > after
        ]

    def _masks(
        self, lookup: Sequence[int], after: int, upto: int, *, descending: bool
    ) -> Iterator[tuple[int, int]]:
        """Segments in which some block may have all tags of `lookup`, and which blocks."""
        others = "".join(
            f" JOIN directory d{n} ON d{n}.part = ? AND d{n}.segment = d0.segment "
            f"AND instr(d{n}.hashes, ?)"
            for n in range(1, len(lookup))
        )
        columns = ", ".join(f"d{n}.hashes, d{n}.masks" for n in range(len(lookup)))
        statement = (
            f"SELECT d0.segment, {columns} FROM directory d0{others} WHERE d0.part = ? "  # noqa: S608
            "AND d0.segment >= coalesce((SELECT max(first) FROM segment WHERE first <= ?), 0) "
            "AND d0.segment <= ? AND instr(d0.hashes, ?) "
            f"ORDER BY d0.segment{' DESC' if descending else ''}"
        )
        first, *rest = lookup
        parameters: list[object] = []
        for wanted in rest:
            parameters += [part_of(wanted), _bytes(wanted)]
        parameters += [part_of(first), after + 1, upto, _bytes(first)]
        with translated(), closing(self._connection.execute(statement, parameters)) as cursor:
            for segment, *parts in cursor:
                mask = -1
                for wanted, hashes, masks in zip(lookup, parts[::2], parts[1::2], strict=True):
                    mask &= mask_of(wanted, hashes, masks)
                if mask:
                    yield segment, mask

    def _fetch(self, statement: str, parameters: Sequence[object] = ()) -> list[Sequence[Any]]:
        with translated():
            return self._connection.execute(statement, parameters).fetchall()

    def _rows(self, statement: str, parameters: Sequence[object]) -> Generator[Row, None, None]:
        with translated(), closing(self._connection.execute(statement, parameters)) as cursor:
            for values in cursor:
                yield _row(values)

    def heads(self, after: int, limit: int) -> Sequence[Head]:
        # One row that holds them all: each row is a wait for the interpreter lock, and beside
        # a busy event loop five hundred of them take seconds.
        return self._heads("WHERE first > ? ORDER BY first LIMIT ?", (after, limit))

    def _heads(self, which: str, parameters: Sequence[object] = ()) -> Sequence[Head]:
        ((packed,),) = self._fetch(
            f"SELECT json_group_array(json_array({_HEAD})) FROM "  # noqa: S608
            f"(SELECT {_HEAD} FROM block {which})",
            parameters,
        )
        with _checked():
            return [Head(*values) for values in sorted(_decode_heads(packed))]

    def rows(self, heads: Sequence[Head]) -> list[Row]:
        return list(
            self._rows(
                f"{_SELECT} WHERE first BETWEEN ? AND ? ORDER BY first",
                (heads[0].first, heads[-1].first),
            )
        )

    def last(self) -> Head | None:
        heads = self._heads("ORDER BY first DESC LIMIT 1")
        return heads[0] if heads else None

    def totals(self, after: int = 0) -> Totals:
        with translated():
            values = self._connection.execute(
                "SELECT count(*), total(messages), total(size) FROM block WHERE first > ?",
                (after,),
            ).fetchall()
        return Totals(*map(int, values[0]))

    def settled(self) -> int:
        ((last,),) = self._fetch("SELECT coalesce(max(last), 0) FROM segment")
        return int(last)

    def chore(self) -> Callable[[Shelf], None] | None:
        with translated():
            chore = due(self._connection, self._traffic)
        if chore is None:
            return None

        def work(shelf: Shelf) -> None:
            assert isinstance(shelf, SqliteShelf)
            with translated():
                chore(shelf._connection)

        return work

    def file_size(self) -> int:
        with translated():
            ((_, _, path), *_) = self._connection.execute("PRAGMA database_list").fetchall()
        return sum(
            file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists()
        )

    def check(self) -> Iterator[Problem]:
        try:
            for (text,) in self._fetch("PRAGMA quick_check(20)"):
                if text != "ok":
                    yield Problem(0, 0, f"the database is damaged: {text}")
            with self.snapshot(), translated():
                for first, last in missing(self._connection):
                    yield Problem(first, last, "the directory doesn't lead to it")
        except (HistoryUnavailable, ValueError) as error:
            yield Problem(0, 0, str(error))

    def durability(self) -> Durability:
        """What the process that wrote last promised."""
        ((value,),) = self._fetch("SELECT durability FROM log")
        try:
            return Durability(value)
        except ValueError as error:
            raise HistoryDamaged(0, "the database is damaged") from error

    def seal(self) -> None:
        """Bring everything home, and note that nothing of it can be lost any more."""
        with translated():
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("UPDATE log SET clean = 1")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _bytes(wanted: int) -> bytes:
    return wanted.to_bytes(4, "little")


def _where(lookups: Sequence[Sequence[int]] | None) -> tuple[str, list[bytes]]:
    """A condition on the hashes of a block that lets every match pass, and mostly only them.

    `instr` also finds four bytes that two hashes happen to share; what passes wrongly costs a
    look into the block.
    """
    if lookups is None:
        return "TRUE", []
    parameters = [_bytes(wanted) for lookup in lookups for wanted in lookup]
    alternatives = [" AND ".join(["instr(hashes, ?)"] * len(lookup)) for lookup in lookups]
    return f"({' OR '.join(alternatives)})", parameters


class _Threads(Workshop):
    """One thread that writes, a few that read."""

    def __init__(self, files: "_Files") -> None:
        self._files = files
        self._free = list(files.readers)
        self._writing = trio.CapacityLimiter(1)
        self._reading = trio.CapacityLimiter(len(files.readers))

    async def write(self, work: Callable[[Shelf], T]) -> T:
        writer = self._files.writer
        assert writer is not None, "the log sees to it"
        return await trio.to_thread.run_sync(work, writer, limiter=self._writing)

    async def read(self, work: Callable[[Shelf], T]) -> T:
        def run() -> T:
            shelf = self._free.pop()  # there is one: the limiter counts them
            try:
                return work(shelf)
            finally:
                self._free.append(shelf)

        return await trio.to_thread.run_sync(run, limiter=self._reading)

    async def close(self) -> None:
        all_readers = [object() for _ in self._files.readers]
        for each in all_readers:
            await self._reading.acquire_on_behalf_of(each)
        try:
            await trio.to_thread.run_sync(self._files.close, limiter=self._writing)
        finally:
            for each in all_readers:
                self._reading.release_on_behalf_of(each)


class _Files:
    """What is open: connections, and the lock of the one who writes."""

    def __init__(self, path: Path, durability: Durability, *, read_only: bool) -> None:
        self.writer: SqliteShelf | None = None
        self.readers: list[SqliteShelf] = []
        self._lock: int | None = None
        self._traffic = Traffic()
        try:
            with explained(path):
                if read_only:
                    path.stat()
                    with closing(connect(path, read_only=True)) as connection:
                        prepare(connection, path, None)
                else:
                    touch(path)
                    self._lock = lock(path)
                    if path.stat().st_mode & 0o077:
                        log.warning("others can read the history", extra={"path": str(path)})
                    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
                    self._open_writer(path, durability)
                for _ in range(_READERS):
                    self.readers.append(SqliteShelf(connect(path, read_only=True), self._traffic))
                self.survey = Survey.of(self.readers[0])
                self.durability = self.readers[0].durability()
        except BaseException:
            self._let_go()
            raise

    def _open_writer(self, path: Path, durability: Durability) -> None:
        connection = connect(path)
        self.writer = SqliteShelf(connection, self._traffic)
        prepare(connection, path, random_epoch())
        rows = connection.execute("SELECT durability, boot, clean FROM log").fetchall()
        if not rows:
            raise HistoryDamaged(0, "the database is damaged")
        ((before, boot, clean),) = rows
        now = boot_id()
        if before == Durability.PROCESS.value and not clean and (boot != now or not now):
            # The machine stopped with messages that were acknowledged but not on the disk.
            # Their ids may be given again, so they must not be taken for the same.
            epoch = random_epoch()
            connection.execute("UPDATE log SET epoch = ?", (epoch,))
            log.warning("the machine stopped uncleanly: new epoch", extra={"epoch": epoch})
        connection.execute(
            "UPDATE log SET durability = ?, boot = ?, clean = 0", (durability.value, now)
        )
        if durability is Durability.PROCESS:
            connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Let go of everything; note that nothing was lost. Idempotent."""
        if self.writer is not None:
            with suppress(HistoryUnavailable):  # then it counts as an unclean stop
                self.writer.seal()
        self._let_go()

    def _let_go(self) -> None:
        for shelf in self.readers:
            shelf.close()
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


async def open_sqlite(location: str, durability: Durability, *, read_only: bool) -> History:
    """See `open_history`. Cancellation leaves nothing open.

    Args:
        location: `/` and the path, which is taken as it is.
        durability: POWER or PROCESS.
    """
    if durability is Durability.NOTHING:
        raise StartupError("history: a file can't be less durable than process")
    await trio.lowlevel.checkpoint()
    path = path_of(location)
    # The last await: no cancellation can come between the open files and their owner.
    files = await trio.to_thread.run_sync(lambda: _Files(path, durability, read_only=read_only))
    return Log(_Threads(files), files.survey, files.durability, read_only=read_only)
