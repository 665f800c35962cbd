"""The master that Sentinels watch.

They are asked at each new connection, and once a second beside the calls that are made. For a
master that was replaced may go on answering: it stood still meanwhile, or is cut off from the
Sentinels, but not from this node. What it takes then is lost once it learns that it is a replica.
A second is less than what nodes wait for each other's votes, so a node that reaches a Sentinel
votes with all that the old master has told it.

For a moment after a failover some of them still tell of the old master. Each failover has a number
(config-epoch), and who knows of a lower one than was told before is not believed.

Nobody listens for `+switch-master`: a subscription is another connection that may hang.
"""

import ssl
from contextlib import suppress
from typing import Final

import hiredis
import trio

from mist.engine.addresses import Address
from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Reply
from mist.engine.redis.discovery import Discovery
from mist.engine.redis.location import Location
from mist.engine.redis.replies import reason
from mist.engine.redis.seeds import Seeds

__all__ = ["SentinelDiscovery"]

_INTERVAL: Final = 1.0  # seconds between two questions; less than `mist.engine.fence.VOTES`
_SHORT: Final = 0.25  # seconds for the answer
_LATER: Final = 5.0  # seconds until the next question, where none of them answers


class SentinelDiscovery(Discovery):
    """See the module.

    Args:
        context: for TLS; None is without.
    """

    reply_timeout = 1.0

    def __init__(self, location: Location, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._master = location.master
        self._found: Address | None = None
        self._epoch = 0  # of the last failover that a Sentinel has told of
        self._silent = 0  # questions since the last answer
        self._sentinels = len(location.servers)
        self._seeds = Seeds(
            f"Sentinel at {', '.join(map(str, location.servers))}",
            location.servers,
            location.sentinel_user,
            location.sentinel_password,
            context,
            location.connect_timeout,
        )

    async def find(self) -> Address:
        self._found = await self._ask()
        self._due = trio.current_time() + _INTERVAL
        return self._found

    def doubt(self) -> None:
        self._seeds.postpone()

    def suspect(self) -> None:
        self._due = trio.current_time()

    async def _look(self) -> bool:
        before = found = self._found
        self._silent += 1
        with trio.move_on_after(_SHORT) as scope, suppress(EngineUnavailable):
            found = await self._ask()
            self._silent = 0
        if scope.cancelled_caught:
            self._seeds.postpone()
        later = _INTERVAL if self._silent < self._sentinels else _LATER
        self._due = trio.current_time() + later
        return found != before and self._found == before

    async def _ask(self) -> Address:
        return await self._seeds.ask(
            self._read,
            ("SENTINEL", "get-master-addr-by-name", self._master),
            ("SENTINEL", "master", self._master),
        )

    def _read(self, sentinel: Address, replies: list[Reply]) -> Address:
        reply, state = replies
        match reply:
            case [bytes(host), bytes(port)] if port.isdigit():
                self._check_epoch(sentinel, state)
                return Address(host.decode("utf-8", "replace"), int(port))
            case None:
                raise EngineUnavailable(f"Sentinel at {sentinel} knows no master {self._master}")
            case hiredis.ReplyError() if "unknown command" in str(reply):
                raise EngineUnavailable(f"Redis at {sentinel} is not a Sentinel")
            case hiredis.ReplyError():
                raise EngineUnavailable(f"Sentinel at {sentinel}: {reason(reply)}")
            case _:
                raise EngineUnavailable(
                    f"Sentinel at {sentinel} has answered what it was not asked"
                )

    def _check_epoch(self, sentinel: Address, state: Reply) -> None:
        """Refuse what a Sentinel says that has not heard of the last failover yet.

        Else a node would go back to a master that was replaced, as often as it asks another one.
        """
        fields = state if isinstance(state, list) else []
        known = dict(zip(fields[::2], fields[1::2], strict=False))
        epoch = known.get(b"config-epoch")
        if not isinstance(epoch, bytes) or not epoch.isdigit():
            return
        if int(epoch) < self._epoch:
            raise EngineUnavailable(f"Sentinel at {sentinel} is behind others")
        self._epoch = int(epoch)

    async def close(self) -> None:
        await self._seeds.close()
