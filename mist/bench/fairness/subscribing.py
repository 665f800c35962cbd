"""Browsers of one token with as many subscriptions as the limits let them have."""

import json
import random
import time
from typing import Final

from mist.bench.connections import ask
from mist.bench.dialect import masked_frame
from mist.bench.fairness.arena import Arena, Attack
from mist.bench.fairness.peers import Peer, TookTooLong
from mist.bench.fairness.probe import TIMEOUT

__all__ = ["TAGS", "Browsers", "closing", "frame", "subscribing"]

TAGS: Final = [f"g{number}" for number in range(64)]
_SUBSCRIPTIONS: Final = 996  # of each browser
_FENCE: Final = b'"command":"ping"'
_REFUSAL: Final = b'"error":'
_TEXT: Final = 0x81
_POLL: Final = 0.01  # seconds


def frame(**fields: object) -> bytes:
    """A command as a browser sends it."""
    return masked_frame(_TEXT, json.dumps(fields).encode())


class Browsers:
    """WebSockets of one token.

    Attributes:
        peers: those that are connected.
    """

    TOKEN: Final = "browsers"

    def __init__(self, arena: Arena, count: int) -> None:
        arena.register("g*,>g*", self.TOKEN)
        self.peers: list[Peer] = []
        self._arena = arena
        self._count = count
        chance = random.Random(1)  # noqa: S311  # the same each time
        self._subscriptions = [
            b"".join(
                frame(command="subscribe", tags=chance.sample(TAGS, chance.randint(3, 6)))
                for _ in range(_SUBSCRIPTIONS)
            )
            for _ in range(count)
        ]
        self._control = arena.others.enter_context(arena.line.connect())
        self._control.settimeout(TIMEOUT)

    @property
    def about(self) -> str:
        """What there is."""
        return f"{self._count:,} WebSockets with {_SUBSCRIPTIONS} subscriptions of a token"

    def connect(self) -> None:
        """Have all connected, anew."""
        self.leave()
        self.peers = [self.connect_one() for _ in range(self._count)]

    def connect_one(self, subprotocol: str | None = None) -> Peer:
        """One more of the token's, not among `peers`; `frame(command="ping")` is its fence."""
        endpoint = self._arena.websocket(self.TOKEN, subprotocol)
        return self._arena.crowd.add(endpoint.connect(), _FENCE, _REFUSAL)

    def subscribe(self) -> int:
        """Subscribe on all at once; how many subscriptions were refused."""
        for peer, frames in zip(self.peers, self._subscriptions, strict=True):
            peer.send(frames + frame(command="ping"))
        self._arena.crowd.wait()
        return self._arena.crowd.refusals

    def leave(self) -> int:
        """Hang up on all at once, and wait until the server has no subscription of theirs."""
        self._arena.crowd.leave()
        until = time.perf_counter() + TIMEOUT
        while b"g" in ask(self._control, b"listall\nping\n", b"pong\n").removesuffix(b"pong\n"):
            if time.perf_counter() > until:
                raise TookTooLong("the server took too long")
            time.sleep(_POLL)
        return 0


def subscribing(arena: Arena, *, connections: int) -> Attack:
    """All subscriptions at once, on connections that are there."""
    browsers = Browsers(arena, connections)
    return Attack("subscribe", f"{browsers.about}, at once", browsers.subscribe, browsers.connect)


def closing(arena: Arena, *, connections: int) -> Attack:
    """The end of all these connections at once."""
    browsers = Browsers(arena, connections)

    def again() -> None:
        browsers.connect()
        browsers.subscribe()

    return Attack("close", f"{browsers.about}, closed at once", browsers.leave, again)
