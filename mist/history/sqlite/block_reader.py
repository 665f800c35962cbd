"""What a block store reads of its database; see `mist.history.block_store`."""

import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import reduce
from itertools import takewhile
from typing import Final, TypeVar

import msgspec

from mist.errors import HistoryDamaged
from mist.history import Durability
from mist.history.block_store import BlockStore, State, Totals
from mist.history.commits import Commit
from mist.history.continuity import MISSING, follow, follow_down, stop_at
from mist.history.erasure import PendingErasure
from mist.history.layout import Head, Row
from mist.history.leaps import ClockRecord
from mist.history.numbering import ChannelPosition
from mist.history.pieces import AnyRow
from mist.history.record import MAX_ID, KeyRecord
from mist.history.selection import Selection
from mist.history.sqlite.channels import channels_above, read_channels, read_numbers
from mist.history.sqlite.clock import read_clock_record
from mist.history.sqlite.commits import read_commit, read_commits
from mist.history.sqlite.damage import read_down, read_up, readable_heads
from mist.history.sqlite.database import translated
from mist.history.sqlite.gaps import find_gap, removed_upto
from mist.history.sqlite.idempotency import crowding_keys, keys_above, outdated_keys, read_key
from mist.history.sqlite.mirroring import read_erasures, read_mirrored, read_notes
from mist.history.sqlite.removals import removals
from mist.history.sqlite.rows import checked, fetch, open_rows, read_heads, read_rows
from mist.history.sqlite.search import condition, find, settled
from mist.sqlite import DAMAGED

__all__ = ["BlockReader"]

R = TypeVar("R", bound=AnyRow)
_Read = Callable[[sqlite3.Connection, str, Sequence[object]], Generator[R, None, None]]

# Up to here, the text of a block's lists is searched for each; with more, the hashes of a block
# tell which are in it, and it is read as a whole.
_FEW_LOOKUPS: Final = 8

# Blocks by their ids, with a condition on the others of their columns.
_BEHIND: Final = (
    "WHERE first >= coalesce((SELECT max(first) FROM block WHERE first <= ?), 0) "
    "AND first <= ? AND last > ? AND {} ORDER BY first"
)
_BEFORE: Final = "WHERE first <= ? AND first > ? AND {} ORDER BY first DESC"

_StateValues = tuple[str, int, int, int, int, int, str]


class BlockReader(BlockStore):
    """See the module.

    Args:
        connection: to a database that is known to be a log.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    # beside the blocks

    def mirrored(self) -> tuple[str, int] | None:
        return read_mirrored(self._connection)

    def notes(self) -> dict[bytes, bytes]:
        return read_notes(self._connection)

    def pending_erasures(self) -> Sequence[PendingErasure]:
        return read_erasures(self._connection)

    def keys(self, after: int, limit: int) -> Sequence[KeyRecord]:
        return keys_above(self._connection, after, limit)

    def commits(self) -> Sequence[tuple[str, str, Commit]]:
        return read_commits(self._connection)

    def all_channels(self, after: str, limit: int) -> Sequence[tuple[str, ChannelPosition]]:
        return channels_above(self._connection, after, limit)

    def removals(self, limit: int) -> Sequence[tuple[int, int, int]]:
        return removals(self._connection, limit)

    def clock(self) -> ClockRecord | None:
        return read_clock_record(self._connection)

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

    # blocks

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
            with closing(self._ascend(after, upto, selection, removed, read)) as rows:
                for row in rows:
                    yield row
                    place = row.head.last
        except HistoryDamaged:
            # Somewhere behind the last block. Where, and what lies behind it, is found slowly.
            yield from read_up(self._connection, place, upto, removed)

    def _ascend(
        self, after: int, upto: int, selection: Selection | None, removed: int, read: _Read[R]
    ) -> Generator[R, None, None]:
        connection = self._connection
        if selection is None or selection.lookups is None:
            found = read(connection, _BEHIND.format("TRUE"), (after + 1, upto, after))
            yield from follow(found, after, upto, removed)
            return
        # Gaps are looked for as far as the search has come: most end before the newest blocks.
        indexed = self.settled()
        if after < indexed:
            last = min(upto, indexed)
            gap = find_gap(connection, after, last, removed, indexed=True)
            found = self._indexed(selection.lookups, after, last, removed, read, descending=False)
            yield from stop_at(gap, found, removed, descending=False)
        after = max(after, indexed)
        if after < upto:
            gap = find_gap(connection, after, upto, removed, indexed=False)
            where, parameters = condition(selection.lookups)
            found = read(connection, _BEHIND.format(where), (after + 1, upto, after, *parameters))
            yield from stop_at(gap, found, removed, descending=False)

    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        yield from self._down(upto, selection, read_rows)

    def _down(
        self, upto: int, selection: Selection | None, read: _Read[R]
    ) -> Generator[R | Row, None, None]:
        removed = removed_upto(self._connection)
        place = upto
        try:
            with closing(self._descend(upto, selection, removed, read)) as rows:
                for row in rows:
                    yield row
                    place = row.head.first - 1
        except HistoryDamaged:  # as in `ascend`
            yield from read_down(self._connection, place, removed)

    def _descend(
        self, upto: int, selection: Selection | None, removed: int, read: _Read[R]
    ) -> Generator[R, None, None]:
        connection = self._connection
        if selection is None or selection.lookups is None:
            yield from follow_down(read(connection, _BEFORE.format("TRUE"), (upto, 0)), removed)
            return
        indexed = self.settled()
        if indexed < upto:
            gap = find_gap(connection, indexed, upto, removed, indexed=False, descending=True)
            where, parameters = condition(selection.lookups)
            found = read(connection, _BEFORE.format(where), (upto, indexed, *parameters))
            yield from stop_at(gap, found, removed, descending=True)
        if indexed:
            last = min(upto, indexed)
            gap = find_gap(connection, 0, last, removed, indexed=True, descending=True)
            found = self._indexed(selection.lookups, 0, last, removed, read, descending=True)
            yield from stop_at(gap, found, removed, descending=True)

    def _indexed(
        self,
        lookups: Sequence[Collection[int]],
        after: int,
        upto: int,
        removed: int,
        read: _Read[R],
        *,
        descending: bool,
    ) -> Generator[R, None, None]:
        """Blocks found through the directory. It may list some that were removed since."""
        which = "WHERE first IN (SELECT value FROM json_each(?)) ORDER BY first"
        if descending:
            which += " DESC"
        for firsts in find(self._connection, lookups, after, upto, descending=descending):
            listed = iter(firsts)
            keys = msgspec.json.encode(firsts).decode()
            with closing(read(self._connection, which, (keys,))) as rows:
                for row in rows:
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


def _check_listed(missing: Iterable[int], removed: int) -> None:
    """Check that blocks with these keys, which are listed and not there, were removed."""
    for first in missing:
        if first > removed:
            raise HistoryDamaged(first, MISSING)
