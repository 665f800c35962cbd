"""The member of a cluster that has the slot of a realm.

All keys of a realm have one hash tag, so they are in one slot, and all that is done in one step can
be. Any member knows who has it, and each says so where it is asked in the place of another (MOVED).

While a slot is being moved, its keys are so one by one, and the log is in one piece. What needs a
key that is not there any more waits until all have arrived (ASK, TRYAGAIN), and is not asked of the
other member meanwhile: half of a realm is none.
"""

import binascii
import math
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import hiredis
import trio

from mist.engine.addresses import Address
from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Reply
from mist.engine.redis.discovery import Discovery
from mist.engine.redis.location import Location
from mist.engine.redis.replies import reason, says
from mist.engine.redis.seeds import Seeds

__all__ = ["ClusterDiscovery", "slot_of"]

_SLOTS: Final = 16_384
_SHORT: Final = 0.25  # seconds for the answer of another member
_AGAIN: Final = 0.05  # seconds until a key that is being moved is asked for again


def slot_of(name: str) -> int:
    """The slot of keys that have this name between braces."""
    return binascii.crc_hqx(name.encode(), 0) % _SLOTS


class ClusterDiscovery(Discovery):
    """See the module.

    Args:
        context: for TLS; None is without.
    """

    reply_timeout = 1.0

    def __init__(self, location: Location, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._slot = slot_of(location.slot_name)
        self._name = location.name
        self._found: Address | None = None
        self._seeds = Seeds(
            location.name,
            location.servers,
            location.user,
            location.password,
            context,
            location.connect_timeout,
        )

    async def find(self) -> Address:
        if self._found is None:
            self._found = await self._seeds.ask(self._read, ("CLUSTER", "SLOTS"))
        return self._found

    def doubt(self) -> None:
        self._found = None
        self._seeds.postpone()

    def suspect(self) -> None:
        self._due = trio.current_time()

    async def _look(self) -> bool:
        self._due = math.inf
        before = found = self._found
        if before is None:
            return False
        self._seeds.postpone(before)  # which is the last to know
        with trio.move_on_after(_SHORT), suppress(EngineUnavailable):
            found = await self._seeds.ask(self._read, ("CLUSTER", "SLOTS"))
        if found == before or self._found != before:
            return False
        self._found = found
        return True

    def redirect(self, error: hiredis.ReplyError, asked: Address) -> float | None:
        if says(error, "MOVED"):
            host, _, port = str(error).rpartition(" ")[2].rpartition(":")
            # Without a host, where members don't tell theirs: another port of the same one.
            self._found = Address(host or asked.host, int(port)) if port.isdigit() else None
            return 0.0
        return _AGAIN if says(error, "ASK") or says(error, "TRYAGAIN") else None

    def _read(self, asked: Address, replies: list[Reply]) -> Address:
        (reply,) = replies
        if isinstance(reply, hiredis.ReplyError):
            if "cluster support disabled" in str(reply):
                raise EngineUnavailable(f"Redis at {asked} is not part of a cluster")
            raise EngineUnavailable(f"Redis at {asked}: {reason(reply)}")
        found: Address | None = None
        members: list[Address] = []
        for first, last, servers in _ranges(asked, reply):
            members += servers
            if first <= self._slot <= last:
                found = servers[0]
        if found is None:
            raise EngineUnavailable(f"{self._name}: nobody has the slot of the realm")
        self._seeds.learn(members)
        return found

    async def close(self) -> None:
        await self._seeds.close()


def _ranges(asked: Address, reply: Reply) -> Iterator[tuple[int, int, list[Address]]]:
    """Of each range of slots the first, the last, and its servers, the master first."""
    for each in reply if isinstance(reply, list) else ():
        match each:
            case [int(first), int(last), *servers]:
                addresses = [_address(asked, server) for server in servers]
                if addresses and None not in addresses:
                    yield first, last, [found for found in addresses if found is not None]


def _address(asked: Address, server: Reply) -> Address | None:
    match server:
        case [bytes(host), int(port), *_] if host not in (b"", b"?"):
            return Address(host.decode("utf-8", "replace"), port)
        case [bytes() | None, int(port), *_]:  # where members don't tell their hosts
            return Address(asked.host, port)
        case _:
            return None
