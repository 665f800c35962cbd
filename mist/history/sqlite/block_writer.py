"""What a block store writes into its database; see `mist.history.block_store`."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import attrs
import msgspec

from mist.history.block_store import Change, State
from mist.history.commits import Commit, Mark
from mist.history.erasure import PendingErasure
from mist.history.layout import Row
from mist.history.leaps import ClockRecord
from mist.history.numbering import ChannelPosition
from mist.history.record import KeyRecord
from mist.history.sqlite.block_reader import BlockReader
from mist.history.sqlite.channels import add, put_channels, put_numbers
from mist.history.sqlite.clock import put_clock_record
from mist.history.sqlite.commits import put_commit
from mist.history.sqlite.database import FileCheck, translated
from mist.history.sqlite.gaps import note_skipped
from mist.history.sqlite.idempotency import forget_keys, insert_keys
from mist.history.sqlite.maintenance import WalUsage
from mist.history.sqlite.mirroring import (
    begin_mirror,
    forget_erasure,
    note_left_out,
    put_erasures,
    put_notes,
    put_offset,
    rename_mirror,
)
from mist.history.sqlite.removals import (
    are_noted,
    forget_removals,
    note_removals,
    put_removed,
    put_reset,
)
from mist.history.sqlite.rows import fetch, insert
from mist.sqlite import transaction

__all__ = ["BlockWriter"]

# Of SQLite's `synchronous`: no commit waits for the disk, and none overtakes another.
_NORMAL: Final = 1


class BlockWriter(BlockReader):
    """See the module. Each method is one transaction.

    Args:
        connection: as for a `BlockReader`.
        wal_usage: shared by all connections of one log.
        file_check: of the file, where this store is written.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        wal_usage: WalUsage,
        file_check: FileCheck | None = None,
    ) -> None:
        super().__init__(connection)
        self._wal_usage = wal_usage
        self._file_check = file_check
        self._notes_removals: bool | None = None  # None where that wasn't looked at yet

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

    def begin_mirror(self, epoch: str, offset: int, newest: int) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            if self._are_removals_noted():
                put_reset(self._connection)
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
        with (
            translated(),
            self._wiping(change.wipe),
            self._lazily(change.state is None),
            transaction(self._connection),
        ):
            # Lists are passed as one parameter: an append is waiting, and statements add up.
            if change.remove:
                if change.state is not None and self._are_removals_noted():
                    put_removed(self._connection, change.remove)
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
    def _lazily(self, is_lazy: bool) -> Iterator[None]:
        """Have a transaction not wait for the disk, if that is true; the next append does.

        Blocks that were joined hold what those before did. Where that is lost with the machine's
        power, these are still there; and while it is written, all who publish would wait.
        """
        if not is_lazy:
            yield
            return
        ((synchronous,),) = fetch(self._connection, "PRAGMA synchronous")
        if synchronous <= _NORMAL:
            yield
            return
        self._connection.execute(f"PRAGMA synchronous = {_NORMAL}")
        try:
            yield
        finally:
            self._connection.execute(f"PRAGMA synchronous = {synchronous}")

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

    def note_removals(self, *, on: bool) -> bool:
        before = self._are_removals_noted()
        if on != before:
            self._check_file()
            with translated():
                note_removals(self._connection, on=on)
            self._notes_removals = on
        return before

    def forget_removals(self, upto: int) -> None:
        self._check_file()
        with translated():
            forget_removals(self._connection, upto)

    def _are_removals_noted(self) -> bool:
        if self._notes_removals is None:
            self._notes_removals = are_noted(self._connection)
        return self._notes_removals

    def forget(self, upto: int, owner: bytes = b"") -> None:
        self._check_file()
        with translated():
            forget_keys(self._connection, upto, owner)

    def record_clock(self, record: ClockRecord) -> None:
        self._check_file()
        with translated(), transaction(self._connection):
            put_clock_record(self._connection, record)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
