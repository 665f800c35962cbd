"""`memory://NAME`: tokens that servers in one process share, by a name. For tests.

They last as long as one of these servers, or an engine of the same name.
"""

import secrets
import time
from collections.abc import Sequence
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio

from mist.auth.key import KEY_LENGTH
from mist.auth.shared import (
    KEPT_CHANGES,
    Changes,
    ForgottenVersion,
    SharedStore,
    Snapshot,
    StaleVersion,
    Update,
    Version,
    WrongKey,
)
from mist.change import Change
from mist.errors import RegistryUnavailable

__all__ = ["SharedMemory", "SharedMemoryStore", "shared_memory"]


@attrs.define(eq=False)
class SharedMemory:
    """What the stores of one name share.

    Attributes:
        key: for servers that have no key file.
        log: the write that made the version, and those before it that are kept.
        number: that of the version; 0 where no server has entered.
    """

    key: bytes = attrs.field(factory=lambda: secrets.token_bytes(KEY_LENGTH), repr=False)
    fingerprint: bytes = b""
    values: dict[bytes, bytes] = attrs.field(factory=dict)
    log: list[Update] = attrs.field(factory=list)
    changed: Change = attrs.field(factory=Change)

    @property
    def number(self) -> int:
        return self.log[-1].version.number if self.log else 0


_SHARED: Final[WeakValueDictionary[str, SharedMemory]] = WeakValueDictionary()


def shared_memory(name: str) -> SharedMemory:
    """What is shared under a name; made where there is none."""
    memory = _SHARED.get(name)
    if memory is None:
        memory = _SHARED[name] = SharedMemory()
    return memory


class SharedMemoryStore(SharedStore):
    """See the module.

    Attributes:
        key: of these tokens, for servers without a key file.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.key = memory.key
        self._memory = memory
        self._closed = False

    async def _turn(self) -> SharedMemory:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise RegistryUnavailable
        return self._memory

    async def enter(self, fingerprint: bytes) -> None:
        memory = await self._turn()
        if not memory.log:
            memory.fingerprint = fingerprint
            made = Version(time.time_ns() // 1_000_000, secrets.token_hex(16))
            memory.log.append(Update(made, {}))
        if memory.fingerprint != fingerprint:
            raise WrongKey

    async def load(self) -> Snapshot:
        memory = await self._turn()
        return Snapshot(memory.log[-1].version, dict(memory.values))

    async def write(self, changes: Changes, after: Version, name: str) -> Version:
        memory = await self._turn()
        version = Version(after.number + 1, name)
        if any(each.version == version for each in memory.log):
            return version
        if memory.log[-1].version != after:
            raise StaleVersion
        for digest, value in changes.items():
            if value is None:
                memory.values.pop(digest, None)
            else:
                memory.values[digest] = value
        memory.log.append(Update(version, dict(changes)))
        self._trim(memory.log)
        memory.changed.notify()
        return version

    @staticmethod
    def _trim(log: list[Update]) -> None:
        kept = 0
        for place in reversed(range(1, len(log))):
            kept += len(log[place].changes)
            if kept > KEPT_CHANGES:
                del log[:place]
                return

    async def news(self, after: Version, *, wait: float = 0.0) -> Sequence[Update]:
        memory = await self._turn()
        if memory.log[-1].version == after and wait > 0:
            with trio.move_on_after(wait):
                while memory.log[-1].version == after and not self._closed:
                    await memory.changed.wait()
            if self._closed:
                raise RegistryUnavailable
        for place, each in zip(count(1), memory.log, strict=False):
            if each.version == after:
                return memory.log[place:]
        raise ForgottenVersion

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._closed = True
        self._memory.changed.notify()
