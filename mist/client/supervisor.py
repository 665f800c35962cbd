"""A connection kept up: opened, opened again, and what becomes of things in between.

A link owns one `Outgoing` queue and, at a time, one wire and one dialect. It reads and
writes; what the events mean is its owner's affair (`mist.client.state`).
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import trio

from mist.client.address import Address
from mist.client.dial import open_wire
from mist.client.dialect import Dialect, Event, Request
from mist.client.errors import Rejected
from mist.client.frames import FrameDialect
from mist.client.line import LineDialect
from mist.client.options import Options, State
from mist.client.outgoing import Outgoing
from mist.client.wire import Wire
from mist.commands import Ping, Resume
from mist.errors import ClientError, ConnectError, ConnectionLost, ProtocolViolation

__all__ = ["ConnectionSupervisor", "Owner"]

log = logging.getLogger("mist.client")

_GOODBYE: Final = 1.0  # seconds for the closing words of a WebSocket or of TLS


class Owner(Protocol):
    """Who hears of what happens on a link. Only `relieve` may wait."""

    def greeting(self) -> Sequence[Request]:
        """What has to be said first on a fresh connection."""

    def greeted(self, greeting: Sequence[Request]) -> None:
        """The greeting was answered. Raises `Rejected` or `ConnectError` to end it."""

    def opening(self) -> Sequence[Request]:
        """What has to be said after the greeting, before anything queued."""

    def handle(self, event: Event) -> None:
        """Something arrived."""

    async def relieve(self) -> None:
        """Let readers catch up, for a bounded while; called after each read."""

    def broken(self, error: ClientError, unanswered: Sequence[Request], unconfirmed: int) -> None:
        """The connection is gone, with requests and messages that were written."""

    @property
    def token(self) -> str | None:
        """What a WebSocket's request presents."""

    def state_changed(self, state: State) -> None:
        """The link's state is another one now."""


class ConnectionSupervisor:
    """See the module. `run` is its only task."""

    def __init__(
        self, address: Address, options: Options, outgoing: Outgoing, owner: Owner
    ) -> None:
        self._address = address
        self._options = options
        self._outgoing = outgoing
        self._owner = owner
        self._closing = False
        self._phase = trio.CancelScope()
        self._dialect: Dialect | None = None
        self._connected = False
        self._connected_at = 0.0
        self._why: ClientError | None = None
        self._scope: trio.CancelScope | None = None  # of the conversation
        self._listening = math.inf  # since when nothing has come, though it would be read

    @property
    def unconfirmed(self) -> int:
        """Messages written on this connection that no fence has come back for."""
        return 0 if self._dialect is None else self._dialect.unconfirmed

    def close(self) -> None:
        """End `run`, with a goodbye to the server."""
        self._closing = True
        self._phase.cancel()

    def reset(self, error: ClientError) -> None:
        """Give this connection up, to be made again like one that was lost."""
        if self._scope is not None:
            self._stop(self._scope, error)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection up until `close`.

        Started once it is connected for the first time.

        Raises:
            ClientError: it can't be had (any more).
        """
        failures = 0
        started = False
        self._owner.state_changed(State.CONNECTING)
        while not self._closing:

            def connected() -> None:
                nonlocal started
                if not started:
                    started = True
                    task_status.started()

            error = await self._session(connected)
            if self._closing:
                return
            persist = self._options.reconnect if started else self._options.wait
            if isinstance(error, Rejected) or not persist:
                raise error
            # A server that takes connections only to drop them is one that failed.
            lasted = self._connected and (
                trio.current_time() - self._connected_at > self._options.backoff.cap
            )
            failures = 1 if lasted else failures + 1
            if started:
                self._owner.state_changed(State.RECONNECTING)
            delay = self._options.backoff.delay(failures)
            log.info("%s; trying again in %.1f s", error, delay)
            with self._new_phase():
                await trio.sleep(delay)

    def _new_phase(self) -> trio.CancelScope:
        self._phase = trio.CancelScope()
        if self._closing:
            self._phase.cancel()
        return self._phase

    async def _session(self, connected: Callable[[], None]) -> ClientError:
        """One connection, from opening to its end. Returns why it ended."""
        self._connected = False
        self._why = None
        wire: Wire | None = None
        try:
            with self._new_phase():
                with trio.move_on_after(self._options.connect_seconds):
                    wire = await open_wire(
                        self._address,
                        ssl_context=self._options.ssl_context,
                        token=self._owner.token,
                    )
                if wire is None:
                    raise _too_slow()
                await self._converse(wire, connected)
        except ClientError as error:
            self._why = error
        finally:
            self._end_conversation()
            if wire is not None:
                with trio.move_on_after(_GOODBYE):
                    await wire.aclose()
        why = self._why or ConnectionLost()
        if isinstance(why, ConnectionLost) and not self._connected:
            return ConnectError(str(why))  # there was no connection yet to be lost
        return why

    def _end_conversation(self) -> None:
        dialect, self._dialect = self._dialect, None
        self._scope = None
        if dialect is None:
            return
        events, unanswered = dialect.close()
        for event in events:
            self._owner.handle(event)
        self._outgoing.written()
        error = self._why or ConnectionLost()
        self._owner.broken(error, unanswered, dialect.unconfirmed)

    async def _converse(self, wire: Wire, connected: Callable[[], None]) -> None:
        line = self._address.protocol == "tcp"
        self._dialect = dialect = LineDialect() if line else FrameDialect()
        greeting = self._owner.greeting()
        ready, opened = trio.Event(), trio.Event()
        requests: list[Request] = []  # that the opening waits for
        scope = self._scope = trio.CancelScope()

        def look() -> None:
            if not ready.is_set() and _answered(greeting):
                self._owner.greeted(greeting)
                ready.set()
            if requests and _answered(requests):
                opened.set()

        with scope:
            async with trio.open_nursery() as both:
                both.start_soon(self._read, wire, dialect, scope, greeting, ready, look)
                with trio.move_on_after(self._options.connect_seconds) as opening:
                    await self._send(wire, dialect.write(greeting), scope)
                    await ready.wait()
                    first = self._owner.opening()
                    # A replay may take its time, and nothing is lost by not waiting for it.
                    requests += [it for it in first if not isinstance(it.command, Resume)]
                    await self._send(wire, dialect.write(first), scope)
                    if requests:
                        await opened.wait()
                if opening.cancelled_caught:
                    self._stop(scope, _too_slow())
                elif self._why is None:
                    self._connected = True
                    self._connected_at = trio.current_time()
                    self._owner.state_changed(State.CONNECTED)
                    connected()
                    both.start_soon(self._watch, scope)
                    await self._write(wire, dialect, scope)
        if self._why is not None:
            raise self._why

    def _stop(self, scope: trio.CancelScope, error: ClientError) -> None:
        if self._why is None:
            self._why = error
        scope.cancel()

    async def _send(self, wire: Wire, pieces: list[bytes], scope: trio.CancelScope) -> bool:
        try:
            await wire.send(pieces)
        except ConnectionLost as error:
            # The server may have said why before it hung up; the reader gets a moment.
            with trio.move_on_after(_GOODBYE):
                await trio.sleep_forever()
            self._stop(scope, error)
            return False
        return True

    async def _write(self, wire: Wire, dialect: Dialect, scope: trio.CancelScope) -> None:
        while True:
            pieces = dialect.write(await self._outgoing.take())
            if not await self._send(wire, pieces, scope):
                return
            self._outgoing.written()

    async def _read(
        self,
        wire: Wire,
        dialect: Dialect,
        scope: trio.CancelScope,
        greeting: Sequence[Request],
        ready: trio.Event,
        look: Callable[[], None],
    ) -> None:
        try:
            while True:
                self._listening = trio.current_time()
                data = await wire.receive()
                self._listening = math.inf
                for event in dialect.receive(data):
                    self._owner.handle(event)
                look()
                await self._owner.relieve()
        except ProtocolViolation as error:
            self._stop(scope, ConnectionLost(f"connection lost: {error}"))
        except ConnectionLost as error:
            self._stop(scope, self._last_words(dialect, greeting, ready) or error)
        except (ConnectError, Rejected) as error:
            self._stop(scope, error)

    def _last_words(
        self, dialect: Dialect, greeting: Sequence[Request], ready: trio.Event
    ) -> ClientError | None:
        """What a server that hung up during the greeting found wrong with it."""
        if ready.is_set():
            return None
        for event in dialect.close()[0]:
            self._owner.handle(event)
        try:
            self._owner.greeted(greeting)
        except ClientError as error:
            return error
        return None

    async def _watch(self, scope: trio.CancelScope) -> None:
        """End a connection whose other side is gone without a word."""
        seconds = self._options.keepalive_seconds
        ping: Request | None = None
        while True:
            await trio.sleep(seconds)
            if ping is None or ping.reply is not None:
                ping = Request(Ping())
                self._outgoing.add(ping)
            # Its answer may have to wait for a long replay, and for those who read it here.
            elif trio.current_time() - self._listening >= seconds:
                self._stop(scope, ConnectionLost(f"connection lost: silent for {seconds:g} s"))


def _answered(requests: Iterable[Request]) -> bool:
    return all(request.reply is not None for request in requests)


def _too_slow() -> ConnectError:
    return ConnectError("the server did not answer in time")
