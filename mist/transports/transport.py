"""What every kind of listener does with a stream: lets it in or turns it away, and closes it.

A transport serves one connection as a session, from its first byte to the last; how, is the
affair of its kind. However a connection ends, and whatever goes wrong in it, its place is given
back and its stream closed, and others hear nothing of it.

A task that waits for its peer is a chain of coroutines, and each link of it takes a third of a
kilobyte for every idle connection. So there are few: `handle`, `_serve`, and what reads.
"""

import logging
from abc import ABC, abstractmethod

import trio

from mist.origins import origin_of
from mist.sessions.hub import Hub
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.streams import close_now, peer_address
from mist.transports.tls_handshake import ready_stream

__all__ = ["Transport"]


class Transport(ABC):
    """Runs a session for each stream it is given.

    Args:
        hub: what all sessions share.
        limiter: who may connect.
        name: the kind of listener, for logs and counts.
        handshake_seconds: for TLS, and again for what a peer has to say first.
    """

    def __init__(
        self, hub: Hub, limiter: ConnectionLimiter, name: str, handshake_seconds: float
    ) -> None:
        self._hub = hub
        self._limiter = limiter
        self._name = name
        self._handshake_seconds = handshake_seconds
        self._log = logging.getLogger(type(self).__module__)

    async def handle(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        """Serve one connection until it ends. Raises nothing but `trio.Cancelled`.

        Args:
            stream: as accepted.
            nursery: for drain tasks; outlives the connection.
        """
        address = peer_address(stream)
        ticket = self._limiter.enter(address)
        try:
            if ticket is None:
                self._hub.sessions.refused[self._name] += 1
                await self._turn_away(stream, address, nursery)
                return
            # A thousand that come from one place do not keep others waiting.
            turns = self._hub.turns
            await turns.begin(turns.account(origin_of(address)), late=True)
            if not isinstance(stream, trio.SocketStream):
                with self._limiter.aside():
                    if not await ready_stream(stream, self._handshake_seconds, turns, address):
                        return
            await self._serve(stream, address, nursery)
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this session only.
            self._log.exception("session failed")
            self._hub.broker.failures.count("session")
        finally:
            if ticket is not None:
                self._limiter.leave(ticket)
            await close_now(stream)

    @abstractmethod
    async def _serve(self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery) -> None:
        """Serve a connection that was accepted, its stream ready."""

    @abstractmethod
    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        """Say that there are too many, briefly."""
