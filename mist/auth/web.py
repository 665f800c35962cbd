"""Requests for keys to other servers, bounded in time and size.

Needs httpx, which is in the extra `jwt`.
"""

import ssl
from collections.abc import AsyncIterable
from types import TracebackType
from typing import Final, Self

import httpx
import trio

__all__ = ["Web", "WebError", "read_answer"]

_KEPT: Final = 16  # connections that are kept open
_IDLE: Final = 30.0  # seconds for which they are


class WebError(Exception):
    """A request that has no answer which can be used.

    Attributes:
        reason: one word for a count: `timeout`, `connection`, `status`, `size`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Web:
    """A client. An async context manager that closes it.

    Redirects are not followed: the address is what the operator has written.

    Args:
        most: connections at a time.
        proxies: whether the proxies that the environment names (`HTTPS_PROXY`) are used.
    """

    def __init__(self, most: int, *, proxies: bool = True) -> None:
        limits = httpx.Limits(
            max_connections=most,
            max_keepalive_connections=min(most, _KEPT),
            keepalive_expiry=_IDLE,
        )
        self._client = httpx.AsyncClient(
            limits=limits,
            timeout=None,  # noqa: S113  # `get` has one for all of it
            follow_redirects=False,
            trust_env=proxies,
            verify=ssl.create_default_context(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Completes even when cancelled."""
        with trio.CancelScope(shield=True):
            await self._client.aclose()

    async def get(self, url: str, *, seconds: float, most: int) -> tuple[int, bytes]:
        """Make a request.

        Args:
            seconds: for all of it, name lookup and waiting for a connection included.
            most: bytes of the answer.

        Returns:
            The status and the body.

        Raises:
            WebError: there is no answer in time, or one that is too long.
        """
        # Compressed, a short answer might be a long one.
        sent = {"accept": "application/json", "accept-encoding": "identity"}
        with trio.move_on_after(seconds):
            try:
                async with self._client.stream("GET", url, headers=sent) as response:
                    encoding = response.headers.get("content-encoding", "identity")
                    body = await read_answer(response.aiter_raw(), encoding, most)
                    return response.status_code, body
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                raise WebError("connection", f"{type(error).__name__}: {error}"[:200]) from None
        raise WebError("timeout", f"no answer in {seconds:g} s")


async def read_answer(pieces: AsyncIterable[bytes], encoding: str, most: int) -> bytes:
    """The body of an answer.

    Args:
        pieces: it comes in.
        encoding: its `Content-Encoding`; `identity` where it has none.
        most: bytes.

    Raises:
        WebError: it is longer, or might be, as it is compressed.
    """
    if encoding != "identity":
        raise WebError("size", "the answer is compressed, which was not asked for")
    body = bytearray()
    with trio.CancelScope() as scope:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                # From inside, so that the library's generators end where they are, in this task.
                scope.cancel()
    if len(body) > most:
        raise WebError("size", f"the answer has more than {most:,} bytes")
    return bytes(body)
