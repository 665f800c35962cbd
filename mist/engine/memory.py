"""`memory://NAME`: an engine within the process, for nodes that are in it. For tests.

Nodes that open the same name share its log, which ends with the last of them; without a name, a
node has one for itself.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio

from mist.auth.shared_memory import SharedMemory, shared_memory
from mist.change import Change
from mist.engine.contract import (
    Ancestor,
    Checkpoint,
    Engine,
    EngineUnavailable,
    Forked,
    Known,
    NotEntered,
    Placed,
    Record,
    Standing,
    Trimmed,
    check_record,
    check_size,
)
from mist.engine.members import Members
from mist.engine.memory_members import Membership, MemoryMembers

__all__ = ["MemoryEngine", "open_memory"]

_NODES: Final = 1_000  # known at a time; the longest silent is forgotten first


@attrs.define(eq=False)
class _Node:
    serial: int = 0
    placed: Placed | None = None


@attrs.define(eq=False)
class _Realm:
    """The log that nodes share."""

    epoch: str = attrs.field(factory=lambda: secrets.token_hex(8))
    newest: int = 0
    time: int = 0
    trimmed: int = 0  # offset of the last record that is not kept
    records: list[Record] = attrs.field(factory=list)
    nodes: OrderedDict[str, _Node] = attrs.field(factory=OrderedDict)  # the longest silent first
    staged: dict[str, dict[int, bytes]] = attrs.field(factory=dict)
    tokens: SharedMemory = attrs.field(factory=SharedMemory)
    changed: Change = attrs.field(factory=Change)
    membership: Membership = attrs.field(factory=Membership)
    ancestors: list[Ancestor] = attrs.field(factory=list)
    appended: int = 0
    checkpoint: Checkpoint | None = None
    once: dict[str, tuple[bytes, float]] = attrs.field(factory=dict)  # and when each is gone

    @property
    def offset(self) -> int:
        return self.trimmed + len(self.records)

    def append(self, node: str, serial: int, body: bytes, count: int, now: float) -> Placed:
        """Append a record."""
        self.time = max(self.time, round(now * 1_000_000))
        placed = Placed(self.offset + 1, self.newest + 1)
        self.records.append(
            Record(
                placed.offset,
                placed.first,
                count,
                self.time,
                node,
                serial,
                body,
                self.tokens.number,
            )
        )
        self.newest += count
        self.appended += len(body)
        self.membership.offset = placed.offset
        self.changed.notify()
        return placed

    def lose(self, count: int) -> None:
        """Lose the last records."""
        if count:
            self.newest = self.records[-count].first - 1
            del self.records[-count:]

    def fork(self, above: int, now: float, epoch: str = "") -> None:
        """Begin another epoch.

        Args:
            above: the highest id that was given.
            epoch: that comes to its end.
        """
        own = Ancestor(epoch or self.epoch, self.offset, self.newest)
        self.ancestors = [
            Ancestor(each.epoch, min(each.offset, own.offset), min(each.newest, own.newest))
            for each in self.ancestors
        ]
        self.ancestors.append(own)
        self.epoch = secrets.token_hex(8)
        self.append("-", 0, b"", max(above - self.newest, 0), now)


_REALMS: Final[WeakValueDictionary[str, _Realm]] = WeakValueDictionary()


class MemoryEngine(Engine):
    """See the module.

    Args:
        realm: what is shared; None is one of its own.
        clock: Unix seconds.
    """

    def __init__(
        self, realm: "_Realm | None" = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._realm = realm or _Realm()
        self._clock = clock
        self._closed = False
        self._epoch = ""  # that was entered
        self._members = MemoryMembers(self._membership, clock)

    @property
    def members(self) -> Members:
        return self._members

    async def _membership(self) -> Membership:
        return (await self._turn()).membership

    async def _turn(self) -> _Realm:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise EngineUnavailable
        return self._realm

    def lose(self, records: int) -> None:
        """Have the engine lose its last records, and begin another epoch. For tests of nodes."""
        above = self._realm.newest
        self._realm.lose(records)
        self._realm.fork(above, self._clock())

    async def enter(self, node: str, known: Known | None = None) -> Standing:
        realm = await self._turn()
        if known is not None:
            if known.epoch == realm.epoch and known.offset > realm.offset:
                realm.fork(known.newest, self._clock())
            elif known.epoch != realm.epoch and not realm.nodes:
                realm.fork(known.newest, self._clock(), known.epoch)
        realm.nodes.setdefault(node, _Node())
        while len(realm.nodes) > _NODES:
            realm.nodes.popitem(last=False)
        self._epoch = realm.epoch
        return self._standing()

    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        check_record(body, count)
        realm = await self._turn()
        self._check_epoch(epoch)
        known = realm.nodes.get(node)
        if known is None or serial < known.serial:
            raise NotEntered
        if serial == known.serial and known.placed is not None:
            return known.placed
        placed = realm.append(node, serial, body, count, self._clock())
        known.serial, known.placed = serial, placed
        realm.nodes.move_to_end(node)
        return placed

    def _check_epoch(self, epoch: str) -> None:
        if epoch != self._realm.epoch:
            raise Forked

    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        realm = await self._turn()
        epoch = self._epoch or realm.epoch
        if after == realm.offset and wait > 0:
            with trio.move_on_after(wait):
                while after == realm.offset and epoch == realm.epoch and not self._closed:
                    await realm.changed.wait()
            if self._closed:
                raise EngineUnavailable
        self._check_epoch(epoch)
        if after < realm.trimmed:
            raise Trimmed(realm.trimmed + 1)
        some: list[Record] = []
        size = 0
        for record in islice(realm.records, after - realm.trimmed, None):
            some.append(record)
            size += len(record.body)
            if size >= max_bytes:
                break
        return some

    async def standing(self) -> Standing:
        await self._turn()
        return self._standing()

    def _standing(self) -> Standing:
        realm = self._realm
        return Standing(
            realm.epoch,
            realm.newest,
            realm.offset,
            realm.trimmed + 1,
            tuple(realm.ancestors),
            realm.time,
            realm.appended,
            realm.checkpoint,
        )

    async def stage(self, batch: str, part: int, body: bytes) -> None:
        check_size(body)
        realm = await self._turn()
        realm.staged.setdefault(batch, {})[part] = body

    async def staged(self, batch: str, part: int) -> bytes | None:
        realm = await self._turn()
        return realm.staged.get(batch, {}).get(part)

    async def discard(self, batch: str) -> None:
        realm = await self._turn()
        realm.staged.pop(batch, None)

    async def put_once(self, name: str, value: bytes, seconds: float) -> None:
        realm = await self._turn()
        now = self._clock()
        for gone in [each for each, (_, ends) in realm.once.items() if ends <= now]:
            del realm.once[gone]
        realm.once.setdefault(name, (value, now + seconds))

    async def take(self, name: str) -> bytes | None:
        realm = await self._turn()
        value, ends = realm.once.pop(name, (b"", 0.0))
        return value if self._clock() < ends else None

    async def checkpoint(self, checkpoint: Checkpoint, epoch: str) -> bool:
        realm = await self._turn()
        self._check_epoch(epoch)
        known = realm.checkpoint
        if known is not None and known.offset >= checkpoint.offset:
            return False
        if known is not None:
            realm.staged.pop(known.name, None)
        realm.checkpoint = checkpoint
        return True

    async def trim(self, upto: int) -> None:
        realm = await self._turn()
        gone = min(upto, realm.offset) - realm.trimmed
        if gone > 0:
            del realm.records[:gone]
            realm.trimmed += gone

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._closed = True
        self._realm.changed.notify()  # those of its own that wait; others look, and wait on


async def open_memory(name: str) -> MemoryEngine:
    """The engine of that name; an own one where it is empty."""
    await trio.lowlevel.checkpoint()
    if not name:
        return MemoryEngine()
    realm = _REALMS.get(name)
    if realm is None:
        realm = _REALMS[name] = _Realm(tokens=shared_memory(name))
    return MemoryEngine(realm)
