"""Connection supervisor: connect, heartbeat, and reconnect with backoff.

It owns the `SendBuffer` and, one after the other, a transport and a dialect for each connection.
It reads and writes; what the events mean is decided by its handler (`mist.client.state`).
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import anyio
import anyio.abc

from mist.client.address import Address
from mist.client.dial import open_transport
from mist.client.dialect import Dialect, Event, Request
from mist.client.errors import Rejected
from mist.client.frames import FrameDialect
from mist.client.home import Home
from mist.client.line import LineDialect
from mist.client.options import Options, State
from mist.client.send_buffer import SendBuffer
from mist.client.transport import Transport
from mist.commands import Ping, Resume
from mist.errors import ClientError, ConnectError, ConnectionLost, ProtocolViolation

__all__ = ["ConnectionHandler", "ConnectionSupervisor"]

log = logging.getLogger("mist.client")

_TIMED_OUT: Final = "the server did not answer in time"
_HEALTHY: Final = 5.0  # seconds that a connection lasts which is no failed attempt; as in mist.js
_CLOSE_TIMEOUT: Final = 1.0  # seconds for the closing handshake of a WebSocket or of TLS


class ConnectionHandler(Protocol):
    """Handles what happens on a connection. Only `apply_backpressure` may wait."""

    def greeting(self) -> Sequence[Request]:
        """The first requests on a new connection."""

    def greeted(self, greeting: Sequence[Request]) -> None:
        """The greeting was answered. Raises `Rejected` or `ConnectError` to end the connection."""

    def resubscribe(self) -> Sequence[Request]:
        """The requests after the greeting, before anything from the send buffer."""

    def handle(self, event: Event) -> None:
        """An event arrived."""

    async def ask_again(self) -> None:
        """Repeat requests that were refused for the moment; runs while connected."""

    async def apply_backpressure(self) -> None:
        """Wait a bounded time for slow readers; called after each read."""

    def disconnected(
        self, error: ClientError, unanswered: Sequence[Request], unconfirmed: int
    ) -> None:
        """The connection is gone, with requests and messages that were written to it."""

    @property
    def home(self) -> Home:
        """Where it is at home; it reconnects in no other process."""

    @property
    def token(self) -> str | None:
        """The token that a WebSocket handshake presents."""

    def state_changed(self, state: State) -> None:
        """The connection's state changed."""


class ConnectionSupervisor:
    """Keeps one connection up. `run` is its only task."""

    def __init__(
        self,
        address: Address,
        options: Options,
        send_buffer: SendBuffer,
        handler: ConnectionHandler,
    ) -> None:
        self._address = address
        self._options = options
        self._send_buffer = send_buffer
        self._handler = handler
        self._closing = False
        self._phase = anyio.CancelScope()  # of connecting and talking, or of the backoff
        self._dialect: Dialect | None = None
        self._connected = False
        self._connected_at = 0.0
        self._reason: ClientError | None = None  # that the connection ended for
        self._scope: anyio.CancelScope | None = None  # of the connection's tasks
        self._reading_since = math.inf  # when the current read began; inf while none waits

    @property
    def unconfirmed(self) -> int:
        """Messages written on this connection that no fence has confirmed."""
        return 0 if self._dialect is None else self._dialect.unconfirmed

    def close(self) -> None:
        """End `run`, with a closing handshake."""
        self._closing = True
        self._phase.cancel()

    def reset(self, error: ClientError) -> None:
        """Drop this connection and reconnect, as after a lost one."""
        if self._scope is not None:
            self._stop(self._scope, error)

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the connection up until `close`.

        Started once it is connected for the first time.

        Raises:
            ClientError: the first connection failed, or a lost one is not to be restored.
        """
        failures = 0
        started = False
        self._handler.state_changed(State.CONNECTING)
        while not self._closing:

            def connected() -> None:
                nonlocal started
                if not started:
                    started = True
                    task_status.started()

            presented = self._handler.token
            error = await self._connect_once(presented, connected)
            if self._closing:
                return
            self._handler.home.check_process()  # a child's copy is cut off, and stays so
            persist = self._options.reconnect if started else self._options.wait
            # A refusal of a token that was replaced meanwhile says nothing of the new one.
            replaced = not self._connected and presented != self._handler.token
            if not persist or (isinstance(error, Rejected) and not replaced):
                raise error
            # A server that accepts connections only to drop them counts as failed; one that is
            # restarted, as servers behind a load balancer are one after another, does not.
            lasted = self._connected and anyio.current_time() - self._connected_at > _HEALTHY
            failures = 1 if lasted else failures + 1
            if started:
                self._handler.state_changed(State.RECONNECTING)
            delay = self._options.backoff.delay(failures)
            log.info("%s; trying again in %.1f s", error, delay)
            with self._new_phase():
                await anyio.sleep(delay)
            self._handler.home.check_process()

    def _new_phase(self) -> anyio.CancelScope:
        self._phase = anyio.CancelScope()
        if self._closing:
            self._phase.cancel()
        return self._phase

    async def _connect_once(self, token: str | None, connected: Callable[[], None]) -> ClientError:
        """One connection, from opening to its end. Returns why it ended."""
        self._connected = False
        self._reason = None
        transport: Transport | None = None
        try:
            with self._new_phase():
                with anyio.move_on_after(self._options.connect_seconds):
                    transport = await open_transport(
                        self._address,
                        ssl_context=self._options.ssl_context,
                        token=token,
                    )
                if transport is None:
                    raise ConnectError(_TIMED_OUT)
                await self._talk(transport, connected)
        except ClientError as error:
            self._reason = error
        finally:
            self._disconnect()
            if transport is not None:
                with anyio.move_on_after(_CLOSE_TIMEOUT):
                    await transport.aclose()
        reason = self._reason or ConnectionLost()
        if isinstance(reason, ConnectionLost) and not self._connected:
            return ConnectError(str(reason))  # there was no connection yet to be lost
        return reason

    def _disconnect(self) -> None:
        dialect, self._dialect = self._dialect, None
        self._scope = None
        if dialect is None:
            return
        events, unanswered = dialect.close()
        for event in events:
            self._handler.handle(event)
        self._send_buffer.mark_written()
        error = self._reason or ConnectionLost()
        self._handler.disconnected(error, unanswered, dialect.unconfirmed)

    async def _talk(self, transport: Transport, connected: Callable[[], None]) -> None:
        """Greet, resubscribe, then write what is queued; another task reads."""
        line = self._address.protocol == "tcp"
        self._dialect = dialect = LineDialect() if line else FrameDialect()
        greeting = self._handler.greeting()
        ready, resubscribed = anyio.Event(), anyio.Event()
        awaited: list[Request] = []  # subscribes to be answered before it counts as connected
        scope = self._scope = anyio.CancelScope()

        def check_replies() -> None:
            if not ready.is_set() and _answered(greeting):
                self._handler.greeted(greeting)
                ready.set()
            if awaited and _answered(awaited):
                resubscribed.set()

        with scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    self._read, transport, dialect, scope, greeting, ready, check_replies
                )
                with anyio.move_on_after(self._options.connect_seconds) as opening:
                    await self._send(transport, dialect.write(greeting), scope)
                    await ready.wait()
                    first = self._handler.resubscribe()
                    # A replay may take long, and nothing is lost by not waiting for it.
                    awaited += [it for it in first if not isinstance(it.command, Resume)]
                    await self._send(transport, dialect.write(first), scope)
                    if awaited:
                        await resubscribed.wait()
                if opening.cancelled_caught:
                    advice = "" if ready.is_set() else f"; {self._advice()}"
                    self._stop(scope, ConnectError(f"{_TIMED_OUT}{advice}"))
                elif self._reason is None:
                    self._connected = True
                    self._connected_at = anyio.current_time()
                    self._handler.state_changed(State.CONNECTED)
                    connected()
                    tasks.start_soon(self._heartbeat, scope)
                    tasks.start_soon(self._handler.ask_again)
                    await self._write(transport, dialect, scope)
        if self._reason is not None:
            raise self._reason

    def _advice(self) -> str:
        """For when what answers, or doesn't, may be another listener than the URL says."""
        address = self._address
        where = address.path or address.authority
        scheme = f"{address.protocol}s" if address.tls else address.protocol
        return f"is {where} a {scheme} listener of mist?"

    def _stop(self, scope: anyio.CancelScope, error: ClientError) -> None:
        if self._reason is None:
            self._reason = error
        scope.cancel()

    async def _send(
        self, transport: Transport, pieces: list[bytes], scope: anyio.CancelScope
    ) -> bool:
        try:
            await transport.send(pieces)
        except ConnectionLost as error:
            # The server may have said why before it hung up: let the reader find it first.
            with anyio.move_on_after(_CLOSE_TIMEOUT):
                await anyio.sleep_forever()
            self._stop(scope, error)
            return False
        return True

    async def _write(
        self, transport: Transport, dialect: Dialect, scope: anyio.CancelScope
    ) -> None:
        while True:
            pieces = dialect.write(await self._send_buffer.take())
            if not await self._send(transport, pieces, scope):
                return
            self._send_buffer.mark_written()

    async def _read(
        self,
        transport: Transport,
        dialect: Dialect,
        scope: anyio.CancelScope,
        greeting: Sequence[Request],
        ready: anyio.Event,
        check_replies: Callable[[], None],
    ) -> None:
        try:
            while True:
                self._reading_since = anyio.current_time()
                data = await transport.receive()
                self._reading_since = math.inf
                for event in dialect.receive(data):
                    self._handler.handle(event)
                check_replies()
                await self._handler.apply_backpressure()
        except ProtocolViolation as error:
            if ready.is_set():
                self._stop(scope, ConnectionLost(f"connection lost: {error}"))
            else:
                self._stop(scope, ConnectError(f"{error}; {self._advice()}"))
        except ConnectionLost as error:
            self._stop(scope, self._greeting_error(dialect, greeting, ready, error) or error)
        except (ConnectError, Rejected) as error:
            self._stop(scope, error)

    def _greeting_error(
        self,
        dialect: Dialect,
        greeting: Sequence[Request],
        ready: anyio.Event,
        lost: ConnectionLost,
    ) -> ClientError | None:
        """What a server that hung up during the greeting had answered to it, or what it may be."""
        if ready.is_set():
            return None
        for event in dialect.close()[0]:
            self._handler.handle(event)
        try:
            self._handler.greeted(greeting)
        except ClientError as error:
            return error
        if self._address.protocol != "tcp":
            return None  # its handshake has shown what it is
        return ConnectError(f"{lost}; {self._advice()}")

    async def _heartbeat(self, scope: anyio.CancelScope) -> None:
        """Ping, and end a connection whose peer is gone without closing it."""
        seconds = self._options.keepalive_seconds
        ping: Request | None = None
        while True:
            await anyio.sleep(seconds)
            if ping is None or ping.reply is not None:
                ping = Request(Ping())
                self._send_buffer.add(ping)
            # Its reply may be queued behind a long replay, or wait for slow readers here; so
            # what counts is how long a read has brought nothing.
            elif anyio.current_time() - self._reading_since >= seconds:
                self._stop(scope, ConnectionLost(f"connection lost: silent for {seconds:g} s"))


def _answered(requests: Iterable[Request]) -> bool:
    return all(request.reply is not None for request in requests)
