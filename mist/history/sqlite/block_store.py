"""A block store of blocks over one connection to the database; see `mist.history.block_store`."""

import os
import sqlite3
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, contextmanager, suppress
from functools import reduce
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import attrs
import msgspec

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import Durability
from mist.history.block_store import BlockStore, Change, State, Totals
from mist.history.commits import Commit, Mark
from mist.history.continuity import MISSING, follow, follow_down, stop_at
from mist.history.erasure import PendingErasure
from mist.history.layout import Head, Row
from mist.history.leaps import ClockRecord
from mist.history.numbering import ChannelPosition
from mist.history.pieces import AnyRow
from mist.history.record import MAX_ID, KeyRecord, Problem
from mist.history.selection import Selection
from mist.history.sqlite.channels import (
    add,
    channels_above,
    put_channels,
    put_numbers,
    read_channels,
    read_numbers,
)
from mist.history.sqlite.clock import put_clock_record, read_clock_record
from mist.history.sqlite.commits import put_commit, read_commit, read_commits
from mist.history.sqlite.damage import (
    damaged_pages,
    read_down,
    read_up,
    readable_heads,
    unreadable,
)
from mist.history.sqlite.database import FileCheck, translated
from mist.history.sqlite.gaps import find_gap, note_skipped, removed_upto
from mist.history.sqlite.idempotency import (
    crowding_keys,
    forget_keys,
    insert_keys,
    keys_above,
    outdated_keys,
    read_key,
)
from mist.history.sqlite.maintenance import WalUsage, empty_wal, missing, next_step, return_space
from mist.history.sqlite.mirroring import (
    begin_mirror,
    forget_erasure,
    note_left_out,
    put_erasures,
    put_notes,
    put_offset,
    read_erasures,
    read_mirrored,
    read_notes,
    rename_mirror,
)
from mist.history.sqlite.rows import checked, fetch, insert, open_rows, read_heads, read_rows
from mist.history.sqlite.search import condition, find, settled
from mist.sqlite import DAMAGED, transaction

__all__ = ["SqliteBlockStore"]

R = TypeVar("R", bound=AnyRow)
_Read = Callable[[sqlite3.Connection, str, Sequence[object]], Generator[R, None, None]]

# Up to here, the text of a block's lists is searched for each; with more, the hashes of a block
# tell which are in it, and it is read as a whole.
_FEW_LOOKUPS: Final = 8

_StateValues = tuple[str, int, int, int, int, int, str]


class SqliteBlockStore(BlockStore):
    """See the module.

    Args:
        connection: to a database that is known to be a log.
        wal_usage: shared by all connections of one log.
        file_check: of the file, where this store is written.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        wal_usage: WalUsage,
        file_check: FileCheck | None = None,
    ) -> None:
        self._connection = connection
        self._wal_usage = wal_usage
        self._file_check = file_check

    # writing

    def append(self, rows: Sequence[Row], keys: Sequence[KeyRecord] = ()) -> None:
        self._check_file()
        with translated():
            if keys or len(rows) > 1 or rows[0].tally:
                with transaction(self._connection):
                    self._add_all(rows, keys)
            else:  # the usual case: one statement, and one wait for the interpreter lock
                insert(self._connection, rows[0])
        self._wal_usage.written += sum([row.head.size for row in rows])

    def commit(
        self, rows: Iterable[Row], mark: Mark, commit: Commit, offset: int | None = None
    ) -> None:
        self._check_file()
        written = 0
        with translated(), transaction(self._connection):
            for row in rows:
                self._add(row)
                written += row.head.size
            put_commit(self._connection, mark, commit)
            if offset is not None:
                put_offset(self._connection, offset)
        self._wal_usage.written += written

    def mirrored(self) -> tuple[str, int] | None:
        return read_mirrored(self._connection)

    def begin_mirror(self, epoch: str, offset: int, newest: int) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            begin_mirror(self._connection, epoch, offset, newest)

    def rename_mirror(self, epoch: str, offset: int) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            rename_mirror(self._connection, epoch, offset)

    def mirror(
        self,
        rows: Sequence[Row],
        keys: Sequence[KeyRecord],
        offset: int,
        left_out: int,
        erasures: Sequence[PendingErasure] = (),
        notes: Mapping[bytes, bytes | None] = MappingProxyType({}),
    ) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            self._add_all(rows, keys)
            if left_out:
                note_left_out(self._connection, left_out)
            put_offset(self._connection, offset)
            put_erasures(self._connection, erasures)
            put_notes(self._connection, notes)
        self._wal_usage.written += sum([row.head.size for row in rows])

    def notes(self) -> dict[bytes, bytes]:
        return read_notes(self._connection)

    def pending_erasures(self) -> Sequence[PendingErasure]:
        return read_erasures(self._connection)

    def forget_erasure(self, offset: int) -> None:
        self._check_file()
        with translated():
            forget_erasure(self._connection, offset)

    def _add_all(self, rows: Sequence[Row], keys: Sequence[KeyRecord]) -> None:
        for row in rows:
            self._add(row)
        if keys:
            insert_keys(self._connection, keys)

    def _add(self, row: Row) -> None:
        insert(self._connection, row)
        if row.tally:
            add(self._connection, row.head, row.tally)

    def _check_file(self) -> None:
        if self._file_check is not None:
            self._file_check.check()

    def change(self, change: Change) -> None:
        self._check_file()
        execute = self._connection.execute
        self._wal_usage.written += sum(row.head.size for row in change.put)
        with translated(), self._wiping(change.wipe), transaction(self._connection):
            # Lists are passed as one parameter: an append is waiting, and statements add up.
            if change.remove:
                for table in ("block", "numbering"):
                    execute(
                        f"DELETE FROM {table} WHERE first IN (SELECT value FROM json_each(?))",  # noqa: S608
                        (_json(change.remove),),
                    )
            for row in change.put:
                self._put(row)
            if change.forget:
                execute("DELETE FROM tracked")
            if change.tracked:
                self._put_tracked(change.tracked)
            if change.state is not None:
                execute("UPDATE log SET epoch = ?", (change.state.epoch,))
                self._put_state(change.state)
                if change.skipped:
                    note_skipped(self._connection, change.skipped)

    def keys(self, after: int, limit: int) -> Sequence[KeyRecord]:
        return keys_above(self._connection, after, limit)

    def commits(self) -> Sequence[tuple[str, str, Commit]]:
        return read_commits(self._connection)

    def all_channels(self, after: str, limit: int) -> Sequence[tuple[str, ChannelPosition]]:
        return channels_above(self._connection, after, limit)

    def restore(
        self,
        state: State | None,
        tracked: Mapping[str, int],
        rows: Sequence[Row],
        keys: Sequence[KeyRecord],
        commits: Sequence[tuple[str, str, Commit]],
        channels: Sequence[tuple[str, ChannelPosition]],
        notes: Mapping[bytes, bytes],
    ) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            if state is not None:
                self._put_state(state)
                note_skipped(self._connection, state.newest)
            self._put_tracked(tracked)
            for row in rows:
                self._put(row)
            insert_keys(self._connection, keys)
            for owner, writer, commit in commits:
                put_commit(self._connection, Mark(owner, writer, commit.batch), commit)
            put_channels(self._connection, channels)
            put_notes(self._connection, notes)
        self._wal_usage.written += sum([row.head.size for row in rows])

    def _put(self, row: Row) -> None:
        insert(self._connection, row)
        if row.numbers is not None:
            put_numbers(self._connection, row.head.first, row.numbers)

    def _put_tracked(self, tracked: Mapping[str, int]) -> None:
        # Passed as one parameter: an append is waiting, and statements add up.
        self._connection.execute(
            "INSERT INTO tracked (tag, id) "
            "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') "
            "FROM json_each(?) WHERE TRUE "
            "ON CONFLICT (tag) DO UPDATE SET id = excluded.id",
            (_json(list(tracked.items())),),
        )

    def _put_state(self, state: State) -> None:
        """All of it but the epoch."""
        _, *numbers, patterns, erased = attrs.astuple(state)
        self._connection.execute(
            "UPDATE log SET newest = ?, latest = ?, floor = ?, trimmed = ?, untracked = ?, "
            "patterns = ?",
            (*numbers, "\n".join(patterns)),
        )
        if erased:
            self._connection.execute(
                "INSERT OR REPLACE INTO erasure (id, upto) VALUES (1, ?)", (erased,)
            )

    @contextmanager
    def _wiping(self, wipe: bool) -> Iterator[None]:
        if not wipe:
            yield
            return
        self._connection.execute("PRAGMA secure_delete = ON").fetchall()
        try:
            yield
        finally:
            self._connection.execute("PRAGMA secure_delete = OFF").fetchall()

    def forget(self, upto: int, owner: bytes = b"") -> None:
        self._check_file()
        with translated():
            forget_keys(self._connection, upto, owner)

    # reading

    def clock(self) -> ClockRecord | None:
        return read_clock_record(self._connection)

    def record_clock(self, record: ClockRecord) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            put_clock_record(self._connection, record)

    def committed(self, owner: str, writer: str) -> Commit | None:
        return read_commit(self._connection, owner, writer)

    def channels(self, keys: Sequence[str]) -> dict[str, ChannelPosition]:
        return read_channels(self._connection, keys)

    def numbers(self, first: int) -> bytes | None:
        return read_numbers(self._connection, first)

    def recall(self, name: bytes) -> KeyRecord | None:
        return read_key(self._connection, name)

    def outdated(self, before: int, most: int, step: int) -> int:
        return outdated_keys(self._connection, before, most, step)

    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        return crowding_keys(self._connection, most, step)

    def load(self) -> tuple[State, dict[str, int]]:
        states = fetch(
            self._connection,
            "SELECT epoch, newest, latest, floor, trimmed, untracked, patterns FROM log",
        )
        tracked = fetch(self._connection, "SELECT tag, id FROM tracked")
        ((erased,),) = fetch(self._connection, "SELECT coalesce(max(upto), 0) FROM erasure")
        with checked():
            state = msgspec.convert(states[0] if states else None, _StateValues)
            known = msgspec.convert(tracked, list[tuple[str, int]])
        epoch, newest, latest, floor, trimmed, untracked, joined = state
        patterns = tuple(joined.split("\n")) if joined else ()
        return State(epoch, newest, latest, floor, trimmed, untracked, patterns, int(erased)), dict(
            known
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

    def search(
        self, after: int, upto: int, selection: Selection | None, *, descending: bool = False
    ) -> Generator[AnyRow, None, None]:
        lookups = None if selection is None else selection.lookups
        if lookups is None or len(lookups) > _FEW_LOOKUPS:
            yield from super().search(after, upto, selection, descending=descending)
        elif descending:
            yield from self._down(upto, selection, open_rows)
        else:
            yield from self._up(after, upto, selection, open_rows)

    def ascend(
        self, after: int, upto: int, selection: Selection | None
    ) -> Generator[Row, None, None]:
        yield from self._up(after, upto, selection, read_rows)

    def _up(
        self, after: int, upto: int, selection: Selection | None, read: _Read[R]
    ) -> Generator[R | Row, None, None]:
        removed = removed_upto(self._connection)
        place = after
        try:
            with closing(self._ascend(after, upto, selection, removed, read)) as found:
                if selection is None or selection.lookups is None:
                    rows = follow(found, after, upto, removed)
                else:
                    gap = find_gap(self._connection, after, upto, removed)
                    rows = stop_at(gap, found, removed, descending=False)
                for row in rows:
                    yield row
                    place = row.head.last
        except HistoryDamaged:
            # Somewhere behind the last block. Where, and what lies behind it, is found slowly.
            yield from read_up(self._connection, place, upto, removed)

    def _ascend(
        self, after: int, upto: int, selection: Selection | None, removed: int, read: _Read[R]
    ) -> Generator[R, None, None]:
        lookups = None if selection is None else selection.lookups
        if lookups is not None:
            indexed = self.settled()
            if after < indexed:
                last = min(upto, indexed)
                yield from self._indexed(lookups, after, last, removed, read, descending=False)
                after = indexed
        where, parameters = condition(lookups)
        yield from read(
            self._connection,
            "WHERE first >= coalesce((SELECT max(first) FROM block WHERE first <= ?), 0) "  # noqa: S608
            f"AND first <= ? AND last > ? AND {where} ORDER BY first",
            (after + 1, upto, after, *parameters),
        )

    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        yield from self._down(upto, selection, read_rows)

    def _down(
        self, upto: int, selection: Selection | None, read: _Read[R]
    ) -> Generator[R | Row, None, None]:
        removed = removed_upto(self._connection)
        place = upto
        try:
            with closing(self._descend(upto, selection, removed, read)) as found:
                if selection is None or selection.lookups is None:
                    rows = follow_down(found, removed)
                else:
                    gap = find_gap(self._connection, 0, upto, removed, descending=True)
                    rows = stop_at(gap, found, removed, descending=True)
                for row in rows:
                    yield row
                    place = row.head.first - 1
        except HistoryDamaged:  # as in `ascend`
            yield from read_down(self._connection, place, removed)

    def _descend(
        self, upto: int, selection: Selection | None, removed: int, read: _Read[R]
    ) -> Generator[R, None, None]:
        lookups = None if selection is None else selection.lookups
        indexed = 0 if lookups is None else self.settled()
        where, parameters = condition(lookups)
        yield from read(
            self._connection,
            f"WHERE first <= ? AND first > ? AND {where} ORDER BY first DESC",
            (upto, indexed, *parameters),
        )
        if lookups is not None:
            last = min(upto, indexed)
            yield from self._indexed(lookups, 0, last, removed, read, descending=True)

    def _indexed(
        self,
        lookups: Sequence[Collection[int]],
        after: int,
        upto: int,
        removed: int,
        read: _Read[R],
        *,
        descending: bool,
    ) -> Iterator[R]:
        """Blocks found through the directory. It may list some that were removed since."""
        which = "WHERE first IN (SELECT value FROM json_each(?)) ORDER BY first"
        if descending:
            which += " DESC"
        for firsts in find(self._connection, lookups, after, upto, descending=descending):
            listed = iter(firsts)
            for row in read(self._connection, which, (_json(firsts),)):
                _check_listed(takewhile(row.head.first.__ne__, listed), removed)
                yield row
            _check_listed(listed, removed)

    def heads(self, after: int, limit: int) -> Sequence[Head]:
        try:
            return read_heads(
                self._connection, "WHERE first > ? ORDER BY first LIMIT ?", (after, limit)
            )
        except HistoryDamaged:
            return readable_heads(self._connection, after, limit)

    def rows(self, heads: Sequence[Head]) -> list[Row]:
        return list(
            read_rows(
                self._connection,
                "WHERE first BETWEEN ? AND ? ORDER BY first",
                (heads[0].first, heads[-1].first),
            )
        )

    def last(self) -> Head | None:
        heads = read_heads(self._connection, "ORDER BY first DESC LIMIT 1")
        return heads[0] if heads else None

    def totals(self, after: int = 0) -> Totals:
        try:
            (values,) = fetch(
                self._connection,
                "SELECT count(*), total(messages), total(size) FROM block WHERE first > ?",
                (after,),
            )
        except HistoryDamaged:
            heads = readable_heads(self._connection, after, MAX_ID)
            return reduce(Totals.plus, heads, Totals())
        return Totals(*map(int, values))

    def settled(self) -> int:
        return settled(self._connection)

    def durability(self) -> Durability:
        """The durability chosen by the process that wrote last."""
        try:
            ((value,),) = fetch(self._connection, "SELECT durability FROM log")
            return Durability(value)
        except ValueError as error:  # an unknown value, or no row
            raise HistoryDamaged(0, DAMAGED) from error

    # maintenance and verification

    def next_maintenance(self) -> Callable[[BlockStore], None] | None:
        with translated():
            step = next_step(self._connection, self._wal_usage)
        if step is None:
            return None

        def work(store: BlockStore) -> None:
            assert isinstance(store, SqliteBlockStore)
            with translated():
                step(store._connection)

        return work

    def sync(self) -> None:
        # What is no longer in the write-ahead log was synced by a checkpoint. SQLite holds no lock
        # on that file, which closing it here would release.
        path = Path(f"{self._path()}-wal")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HistoryUnavailable(f"History is unavailable: {error.strerror}") from error

    def wipe(self) -> bool:
        with translated():
            if return_space(self._connection):
                return True
            empty_wal(self._connection)
        self._wal_usage.written = 0
        return False

    def file_size(self) -> int:
        path = self._path()
        return sum(
            file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists()
        )

    def _path(self) -> str:
        ((_, _, path), *_) = fetch(self._connection, "PRAGMA database_list")
        return str(path)

    def check(self) -> Iterator[Problem]:
        yield from self._check_pages()
        with suppress(HistoryUnavailable):  # without `removed`: of that, the pages tell
            yield from unreadable(self._connection, removed_upto(self._connection))
        try:
            with self.snapshot(), translated():
                for first, last in missing(self._connection):
                    yield Problem(first, last, "the directory doesn't list it")
        except (HistoryUnavailable, ValueError) as error:
            yield Problem(0, 0, f"the directory can't be read: {error}")

    def _check_pages(self) -> Iterator[Problem]:
        pages = list(damaged_pages(self._connection))
        for table, offset in pages:
            yield Problem(0, 0, f"a page of the table {table} is damaged, at byte {offset:,}")
        try:
            for (text,) in fetch(self._connection, "PRAGMA quick_check(20)"):
                if text != "ok":
                    yield Problem(0, 0, f"the database is damaged: {text}")
        except HistoryUnavailable as error:
            if not pages:
                yield Problem(0, 0, str(error))

    def mark_clean(self) -> None:
        """Checkpoint the write-ahead log, and record a clean stop."""
        with translated():
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("UPDATE log SET clean = 1")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()


def _check_listed(missing: Iterable[int], removed: int) -> None:
    """Check that blocks with these keys, which are listed and not there, were removed."""
    for first in missing:
        if first > removed:
            raise HistoryDamaged(first, MISSING)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
