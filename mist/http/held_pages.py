"""Pages that one token's readers hold at a time.

A page of the log is in memory until its reader has taken all of it, however slowly it reads, and
with a thousand connections a peer may ask for as many. So each token has a few places, and a
request waits for one of them: behind requests with the same token, and nobody else's.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mist.http.keyed_limiter import KeyedLimiter
from mist.http.problems import Problem

__all__ = ["HeldPage", "HeldPages"]

_OF_TOKEN: Final = 8  # twice as many as are made at a time, so that a token alone can use all that
_WAIT: Final = 10.0  # seconds that a request waits for a place
_CHUNK: Final = 256 * 1024  # bytes sent at a time


class HeldPage(Response):
    """A large body, sent in pieces: sent whole it would be copied several times at once.

    Args:
        body, headers, media_type: of the answer.
        held: closed once that is sent, or its reader gone.
    """

    def __init__(
        self, body: bytes, headers: Mapping[str, str], media_type: str, held: ExitStack
    ) -> None:
        super().__init__(body, 200, headers, media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        with self._held:
            await send({"type": "http.response.start", **start})
            body = bytes(self.body)
            for at in range(0, max(len(body), 1), _CHUNK):
                piece, more = body[at : at + _CHUNK], at + _CHUNK < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})


class HeldPages:
    """See the module."""

    def __init__(self) -> None:
        self._places = KeyedLimiter()

    async def take(self, token: str) -> Callable[[], None]:
        """Wait for a place; what is returned gives it back.

        Args:
            token: its registry id.

        Raises:
            Problem: none is given back in time (429).
        """
        with trio.move_on_after(_WAIT):
            return await self._places.acquire(token, _OF_TOKEN)
        detail = "pages with this token wait until they are read"
        raise Problem(429, "too_many_pages", detail, {"Retry-After": "5"})
