"""TLS handshakes, in turns.

A handshake is a signature and some more, a millisecond or two in one piece, which a peer brings
about by a few hundred bytes. Of all that arrives in one moment, one pass of the event loop would do
the handshakes of a thousand peers; so each step waits for a turn (see `mist.turns`), charged to
where the peer comes from.
"""

import ssl

import trio

from mist.origins import origin_of
from mist.turns import Account, Turns

__all__ = ["ready_stream"]


async def ready_stream(stream: trio.abc.Stream, seconds: float, turns: Turns, address: str) -> bool:
    """Do what a stream needs before it carries bytes: the TLS handshake, in bounded time.

    Args:
        seconds: for all of it, waiting for turns included.
        turns: of the event loop.
        address: of the peer, whose origin they are charged to.

    Returns:
        False where that failed; the peer's fault, and no news.
    """
    if not isinstance(stream, trio.SSLStream):
        return True
    below = stream.transport_stream
    stream.transport_stream = _InTurns(below, turns, turns.account(origin_of(address)))
    try:
        with trio.move_on_after(seconds):
            try:
                await stream.do_handshake()
            except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError):
                return False
            return True
    finally:
        stream.transport_stream = below
    return False


class _InTurns(trio.abc.Stream):
    """A stream whose reader, which does a step with what has come, waits for a turn before."""

    def __init__(self, stream: trio.abc.Stream, turns: Turns, account: Account) -> None:
        self._stream = stream
        self._turns = turns
        self._account = account

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received = await self._stream.receive_some(max_bytes)
        await self._turns.begin(self._account, late=True)
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()
