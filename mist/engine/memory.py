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
    Engine,
    EngineUnavailable,
    Forked,
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

    @property
    def offset(self) -> int:
        return self.trimmed + len(self.records)


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

    async def enter(self, node: str) -> Standing:
        realm = await self._turn()
        realm.nodes.setdefault(node, _Node())
        while len(realm.nodes) > _NODES:
            realm.nodes.popitem(last=False)
        return await self.standing()

    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        check_record(body, count)
        realm = await self._turn()
        if epoch != realm.epoch:
            raise Forked
        known = realm.nodes.get(node)
        if known is None or serial < known.serial:
            raise NotEntered
        if serial == known.serial and known.placed is not None:
            return known.placed
        realm.time = max(realm.time, round(self._clock() * 1_000_000))
        placed = Placed(realm.offset + 1, realm.newest + 1)
        realm.records.append(
            Record(
                placed.offset,
                placed.first,
                count,
                realm.time,
                node,
                serial,
                body,
                realm.tokens.number,
            )
        )
        realm.newest += count
        realm.membership.offset = placed.offset
        known.serial, known.placed = serial, placed
        realm.nodes.move_to_end(node)
        realm.changed.notify()
        return placed

    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        realm = await self._turn()
        if after == realm.offset and wait > 0:
            with trio.move_on_after(wait):
                while after == realm.offset and not self._closed:
                    await realm.changed.wait()
            if self._closed:
                raise EngineUnavailable
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
        realm = await self._turn()
        return Standing(realm.epoch, realm.newest, realm.offset, realm.trimmed + 1)

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
