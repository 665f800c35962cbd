"""The server that is asked: requests over connections of its own, bounded in time and size.

Of a question the library that speaks HTTP takes a millisecond, in some steps, each behind a wait
for the network. Dozens of questions come with each pass of the event loop, and a peer that makes up
credentials has as many asked as it likes; so each step takes a turn as what a peer says does (see
`mist.turns`), and is charged to who asks.

Needs httpcore and httpx, which are in the extra `jwt`.
"""

import base64
import ssl
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

import httpcore
import httpx
import trio

from mist.auth.web import WebError, read_answer
from mist.telemetry import Tracing
from mist.turns import Account, Turns

__all__ = ["Backend"]

_MOST: Final = 64  # connections
_KEPT: Final = 16  # that are kept open
_IDLE: Final = 30.0  # seconds for which they are
_MOST_BYTES: Final = 65_536  # of an answer
_account = ContextVar[Account | None]("account", default=None)
_FAILURES: Final = (
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
    *(httpcore.ConnectionNotAvailable, OSError, ValueError),
)


class Backend:
    """An async context manager that closes its connections. See the module.

    Redirects are not followed, and proxies of the environment not used: the address is what the
    operator has written, and it is given credentials.

    Args:
        url: where questions are posted; with a name and a password for HTTP's basic
            authentication, if it has any.
        turns: of the event loop.
        tracing: begins a span for each request, and tells the other server its trace.
    """

    def __init__(self, url: str, turns: Turns, tracing: Tracing | None = None) -> None:
        self._url = url
        self._turns = turns
        self._tracing = tracing
        parsed = httpx.URL(url)
        self._target = httpcore.URL(
            scheme=parsed.raw_scheme,
            host=parsed.raw_host,
            port=parsed.port,
            target=parsed.raw_path,
        )
        told = {
            "host": parsed.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",  # compressed, a short answer might be a long one
            "content-type": "application/json",
            "user-agent": "mist",
        }
        if parsed.userinfo:
            login = f"{parsed.username}:{parsed.password}".encode()
            told["authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._headers = tuple(told.items())
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=_MOST,
            max_keepalive_connections=_KEPT,
            keepalive_expiry=_IDLE,
            network_backend=_Network(turns),
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
            await self._pool.aclose()

    async def post(self, body: bytes, headers: Mapping[str, str], asker: str) -> tuple[int, bytes]:
        """Post a question. To be cancelled where it takes too long.

        Args:
            body: JSON.
            headers: beside those that each question has.
            asker: whom turns are charged to.

        Returns:
            The status and the body of the answer.

        Raises:
            WebError: there is no answer, or one that is too long. Its text has neither the
                question nor the headers.
        """
        account = self._turns.account(f"callout {asker}")
        _account.set(account)  # of this task, which has one question
        if self._tracing is None:
            return await self._post(body, headers)
        with self._tracing.question("POST", self._url) as span:
            try:
                status, answer = await self._post(body, {**headers, **span.headers})
            except WebError as error:
                span.failed(error.reason)
                raise
            span.answered(status)
            return status, answer

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        await self._turns.begin(_account.get())
        try:
            async with self._pool.stream(
                "POST", self._target, headers=[*self._headers, *headers.items()], content=body
            ) as response:
                stream = response.extensions["network_stream"]
                if isinstance(stream, _Stream) and stream.is_ahead:
                    # Left over from the answer before: it is about another question. The
                    # connection is closed, as with all that is not read to its end.
                    raise WebError("connection", "the answer was there before its question")
                pieces = response.aiter_stream()
                answer = await read_answer(pieces, _encoding(response), _MOST_BYTES)
                return response.status, answer
        except _FAILURES as error:
            raise WebError("connection", f"{type(error).__name__}: {error}"[:200]) from None


def _encoding(response: httpcore.Response) -> str:
    named = [value for name, value in response.headers if name.lower() == b"content-encoding"]
    return b", ".join(named).decode("latin-1") if named else "identity"


class _Stream(httpcore.AsyncNetworkStream):
    """A connection: behind each wait for it comes one for a turn.

    Attributes:
        is_ahead: whether nothing was read since the last write.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, turns: Turns) -> None:
        self.is_ahead = False
        self._stream = stream
        self._turns = turns

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        read = await self._stream.read(max_bytes, timeout)
        self.is_ahead = False
        await self._turns.begin(_account.get())
        return read

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.is_ahead = True
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        secure = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return await _in_turn(secure, self._turns)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


async def _in_turn(stream: httpcore.AsyncNetworkStream, turns: Turns) -> _Stream:
    """A connection that is there now. Closed where this is cancelled: nobody else has it yet."""
    try:
        await turns.begin(_account.get())
    except BaseException:
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()
        raise
    return _Stream(stream, turns)


class _Network(httpcore.AsyncNetworkBackend):
    """Makes such connections."""

    def __init__(self, turns: Turns) -> None:
        self._network = httpcore.TrioBackend()
        self._turns = turns

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return await _in_turn(stream, self._turns)
