"""Mirroring: a log whose messages come with their ids, from a log that other servers mirror, too.

    mirror = await history.mirror()
    await mirror.go_on(epoch)                       # or begin_anew
    applied = await mirror.apply(arrivals)          # of those behind `mirror.offset`

What arrives is applied in the order of that log, each once: how far a mirror is, is stored with
the messages. So it may be stopped at any time, and be behind. It does the same as every other
mirror: what one of them leaves out, such as a publication whose key is known, none of them has.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Final

import attrs

from mist.change import Change
from mist.errors import HistoryUnavailable, MistError
from mist.history.arrivals import Applied, Arrival, BatchArrival, Piece, check_next
from mist.history.block_store import BlockStore
from mist.history.checkpoints import dump, newest_of, restore
from mist.history.commits import Commit
from mist.history.encoding import with_channel_counts
from mist.history.erasure import PendingErasure
from mist.history.layout import MICROSECONDS, Row
from mist.history.log_access import LogAccess
from mist.history.log_metadata import LogMetadata
from mist.history.record import KEY_SECONDS, MAX_ID, Key, KeyRecord

__all__ = ["Mirror", "NotAMirror"]

_KEPT: Final = round(KEY_SECONDS * MICROSECONDS)


class NotAMirror(MistError):
    """A log can't mirror another: it has messages of its own."""

    code = "not_a_mirror"
    message = "The log has messages of its own"


class Mirror:
    """A log as a mirror. One at a time for each log; see `History.mirror`.

    Attributes:
        epoch: of the log that is mirrored; empty where nothing was yet.
        offset: of the last arrival that was applied.
        notes: that are kept.
        erasures: that have arrived and are to be carried out; see `erased`.
        erasures_arrived: told of more of them.
        begun: how often it has begun anew, since the start; counted before anything is removed.

    Args:
        access: to the log.
    """

    def __init__(
        self,
        access: LogAccess,
        epoch: str,
        offset: int,
        erasures: Sequence[PendingErasure] = (),
        notes: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> None:
        self._access = access
        self.epoch = epoch
        self.offset = offset
        self.erasures = list(erasures)
        self.notes = dict(notes)
        self.erasures_arrived = Change()
        self.begun = 0

    @property
    def newest(self) -> int:
        """The highest id up to `offset`."""
        return self._access.metadata.newest

    async def go_on(self, epoch: str, ancestors: Mapping[str, int] = MappingProxyType({})) -> None:
        """Go on, since all that is here is in the log that is mirrored.

        Args:
            epoch: of that log by now.
            ancestors: see `Position`.

        Raises:
            HistoryUnavailable: nothing was changed. Ask again.
        """
        access = self._access
        async with access.maintenance_lock, access.writing():
            state = attrs.evolve(access.metadata.state, epoch=epoch)
            if epoch != self.epoch or state != access.metadata.state:
                await access.write(lambda store: store.rename_mirror(epoch, self.offset))
            access.metadata = attrs.evolve(access.metadata, state=state)
            self.epoch, access.ancestors = epoch, ancestors

    async def begin_anew(
        self,
        epoch: str,
        ancestors: Mapping[str, int] = MappingProxyType({}),
        offset: int = 0,
        newest: int = 0,
    ) -> None:
        """Have nothing, and go on from a place in the log that is mirrored.

        Args:
            epoch, ancestors: as for `go_on`.
            offset: of the last arrival before that place.
            newest: the highest id up to there.

        Raises:
            HistoryUnavailable: nothing was changed. Ask again.
        """
        async with self._access.maintenance_lock:
            await self._begin_anew(epoch, ancestors, offset, newest)

    async def _begin_anew(
        self, epoch: str, ancestors: Mapping[str, int], offset: int, newest: int
    ) -> None:
        access = self._access
        self.begun += 1

        def work(store: BlockStore) -> LogMetadata:
            store.begin_mirror(epoch, offset, newest)
            return LogMetadata.of(store)

        async with access.writing():
            access.metadata = await access.write(work)
            self.epoch, self.offset, access.ancestors = epoch, offset, ancestors
            self.erasures = []
            self.notes = {}

    async def erased(self, erasure: PendingErasure) -> None:
        """Note that an erasure was carried out.

        Raises:
            HistoryUnavailable: that can't be stored.
        """
        access = self._access
        async with access.writing():
            await access.write(
                lambda store: store.forget_erasure(erasure.offset), same_messages=True
            )
            self.erasures = [each for each in self.erasures if each != erasure]

    async def count(self, after: int) -> int:
        """How many messages are here above an id; ids of nothing are none. O(blocks)

        Of a block that has both higher and lower ids it is what there may be, at most.

        Raises:
            HistoryUnavailable: they can't be counted.
        """

        if after >= self.newest:
            return 0  # a block store takes what lies beyond its end for missing

        def work(store: BlockStore) -> int:
            with store.snapshot(), closing(store.ascend(after, after + 1, None)) as rows:
                head = next((row.head for row in rows if row.head.first <= after), None)
                partly = 0 if head is None else min(head.messages, head.last - after)
                return partly + store.totals(after).messages

        return await self._access.read(work)

    async def dump(self, take: Callable[[bytes], None]) -> tuple[str, int, int]:
        """Hand over all that is here now, in parts, so that another mirror may begin with it.

        Args:
            take: called in a thread with each part, in order. What it raises is passed on.

        Returns:
            The epoch, the offset and the newest id of what that is.

        Raises:
            HistoryDamaged, HistoryUnavailable: it can't be read; or it has what is to be erased.
        """

        def work(store: BlockStore) -> tuple[str, int, int]:
            if store.pending_erasures():
                raise HistoryUnavailable("some of it is to be erased")
            for part in dump(store):
                take(part)
            epoch, offset = store.mirrored() or ("", 0)
            newest, _ = newest_of(store)
            return epoch, offset, newest

        return await self._access.executor.read_frozen(work)

    async def restore(
        self,
        epoch: str,
        ancestors: Mapping[str, int],
        offset: int,
        part: Callable[[], Awaitable[bytes | None]],
    ) -> None:
        """Have what another mirror has handed over, and go on from there.

        Args:
            epoch, ancestors: as for `go_on`.
            offset: of the other mirror.
            part: the next part, each time it is called; None behind the last one. What it raises
                is passed on.

        Raises:
            HistoryUnavailable, ValueError: it can't be stored, or isn't what `dump` made.
        """
        access = self._access

        def work(store: BlockStore) -> tuple[LogMetadata, dict[bytes, bytes]]:
            store.rename_mirror(epoch, offset)
            return LogMetadata.of(store), store.notes()

        # Retention goes by the metadata, which are those of nothing until all is here.
        async with access.maintenance_lock:
            await self._begin_anew("", {}, 0, 0)
            while (body := await part()) is not None:
                async with access.writing():
                    await access.write(partial(restore, part=body))
            async with access.writing():
                access.metadata, self.notes = await access.write(work)
                self.epoch, self.offset, access.ancestors = epoch, offset, ancestors

    async def apply(self, arrivals: Sequence[Arrival]) -> list[Applied]:
        """Store what arrived next: all of it, or nothing.

        Args:
            arrivals: at least one, in order, the first behind `offset`.

        Returns:
            What became of each.

        Raises:
            HistoryUnavailable: nothing was stored. Ask again.
            NotNext, ValueError: nor then: they are not what comes next, or can't be read.
        """
        access = self._access
        async with access.writing():
            step = _Step(access.metadata.newest, self.offset)
            await access.write(partial(step.apply, arrivals=arrivals), same_messages=True)
            # No await from here on: the metadata follows the block store at once.
            access.extend(step.rows, step.newest)
            self.offset = step.offset
            _note(self.notes, step.notes)
            if step.erasures:
                self.erasures += step.erasures
                self.erasures_arrived.notify()
        return step.applied

    async def apply_batch(self, arrival: BatchArrival) -> tuple[Commit, bool]:
        """Store a writer's batch that arrived next, unless it was stored before.

        Returns:
            As `History.commit`.

        Raises:
            HistoryUnavailable, NotNext, ValueError: as `apply`.
        """
        access, bulk, mark = self._access, arrival.bulk, arrival.mark
        async with access.writing():
            before = access.metadata.newest
            check_next(arrival, before, self.offset)
            commit = await access.known_commit(mark)
            is_new = commit is None
            if commit is None:
                commit = await access.store_bulk(bulk, mark, arrival.time, arrival.offset)
            else:
                newest = access.newest_with(bulk.count)
                left_out = newest if bulk.count else 0
                await access.write(
                    lambda store: store.mirror((), (), arrival.offset, left_out),
                    same_messages=True,
                )
                access.extend((), newest)
            self.offset = arrival.offset
        return commit, is_new


class _Step:
    """What is stored at once, made out in the thread that writes.

    Attributes:
        rows, applied: see `Applied`.
        erasures: that are to be carried out.
        notes: see `Arrival`.
        newest, offset: then.
    """

    def __init__(self, newest: int, offset: int) -> None:
        self.newest = newest
        self.offset = offset
        self.rows: list[Row] = []
        self.applied: list[Applied] = []
        self.erasures: list[PendingErasure] = []
        self.notes: dict[bytes, bytes | None] = {}
        self._keys: dict[bytes, KeyRecord] = {}
        self._left_out = 0

    def apply(self, store: BlockStore, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            check_next(arrival, self.newest, self.offset)
            self.offset = arrival.offset
            begin, known = len(self.rows), {}
            for place, piece in enumerate(arrival.pieces):
                record = self._known(store, piece.key, arrival.time)
                if record is None:
                    self._take(piece, arrival.time)
                else:
                    known[place] = record
                self.newest = _raised(self.newest, piece.count)
                if record is not None:
                    self._left_out = self.newest
            if arrival.void:
                self.newest = self._left_out = _raised(self.newest, arrival.void)
            self.notes.update(arrival.notes)
            if arrival.erasure is not None:
                self.erasures.append(PendingErasure(arrival.offset, self.newest, arrival.erasure))
            self.applied.append(Applied(self.rows[begin:], known))
        keys = list(self._keys.values())
        store.mirror(self.rows, keys, self.offset, self._left_out, self.erasures, self.notes)

    def _known(self, store: BlockStore, key: Key | None, time: int) -> KeyRecord | None:
        if key is None:
            return None
        record = self._keys.get(key.name) or store.recall(key.name)
        # By the times of the messages, which are the same at each mirror.
        return None if record is None or record.time < time - _KEPT else record

    def _take(self, piece: Piece, time: int) -> None:
        newest = self.newest
        if piece.key is not None:
            self._keys[piece.key.name] = KeyRecord(
                newest + 1, time, piece.key.name, piece.key.digest
            )
        placed = [with_channel_counts(row).placed(newest, time) for row in piece.rows]
        if placed[-1].head.last != newest + piece.count:
            raise ValueError("another number of messages than was said")
        self.rows += placed


def _note(notes: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
    for name, value in changes.items():
        if value is None:
            notes.pop(name, None)
        else:
            notes[name] = value


def _raised(newest: int, count: int) -> int:
    if newest + count > MAX_ID:
        raise HistoryUnavailable("History is at its last id")
    return newest + count
