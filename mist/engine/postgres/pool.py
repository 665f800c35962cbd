"""Connections to a PostgreSQL, or to the primary of several. Each call has one for itself: none
waits behind another's reply.

A connection is kept for the next call; where it turns out to be dead, all that are kept go, and the
call is made once more on a new one: every call here may be repeated. New ones are opened with a
backoff. One more connection listens for notifications, once somebody waits for them.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from mist.change import Change
from mist.engine.contract import EngineUnavailable
from mist.engine.postgres.connection import Connection, Row, Value, dial
from mist.engine.postgres.errors import ConnectionLost, ServerError
from mist.engine.postgres.location import Location

__all__ = ["Pool", "Work"]

_MOST: Final = 8  # connections; more calls wait. A server has 100 by default, for all its clients
_KEPT: Final = 4  # connections that nobody uses
_FIRST_DELAY: Final = 0.02  # seconds until a connection is tried again; then twice as long, up to:
_LAST_DELAY: Final = 0.5

# So that a server does not keep the other ends of connections that a network has swallowed: after
# some, it would take no more.
_KEEPALIVE: Final = """
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
SET tcp_user_timeout = 30000;
"""

T = TypeVar("T")

Work = Callable[[Connection, trio.CancelScope], Awaitable[T]]
"""What is done on a connection, within the deadline of a scope."""


class Pool:
    """See the module.

    Args:
        channel: of the notifications.
    """

    def __init__(self, location: Location, channel: str) -> None:
        self._channel = channel
        self._location = location
        self._servers = list(location.servers)
        self._idle: list[Connection] = []
        self._listening: Connection | None = None  # where it is idle
        self._waiting = False  # whether a task waits for a notification
        self._wait: trio.CancelScope | None = None  # of that
        self._notified = Change()
        self._slots = trio.Semaphore(_MOST)
        self._calls: set[trio.CancelScope] = set()
        self._generation = 0  # grows as connections are dropped: what was opened before is not kept
        self._delay = 0.0
        self._retry = 0.0  # when a connection may be tried again, by trio's clock
        self._closed = False

    async def call(self, work: Work[T], *, wait: float = 0.0, listening: bool = False) -> T:
        """Do some work on a connection. It may be done twice.

        Args:
            wait: seconds that it waits for others, beside the time that the server has to answer.
            listening: on the connection that hears of notifications; by one task at a time.

        Raises:
            EngineUnavailable: no answer in time, or no connection.
            ServerError: see there.
        """
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        with trio.move_on_after(self._location.timeout + wait) as scope:
            self._calls.add(scope)
            try:
                # Not `async with`, which is a pass of the event loop more.
                try:
                    self._slots.acquire_nowait()
                except trio.WouldBlock:
                    await self._slots.acquire()
                try:
                    return await self._call(work, scope, listening=listening)
                finally:
                    self._slots.release()
            finally:
                self._calls.discard(scope)
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        # What is frozen for one is so for all.
        self._drop()
        raise EngineUnavailable(
            f"no answer from PostgreSQL at {self._location.name} in {self._location.timeout:g} s"
        )

    async def wait(self, seconds: float) -> None:
        """Wait for a notification, for a time.

        Raises:
            EngineUnavailable: as `call`.
        """

        async def wait(connection: Connection, scope: trio.CancelScope) -> None:
            with trio.move_on_after(seconds) as self._wait:
                await connection.wait(seconds, scope)
            connection.notified = False

        if self._waiting:  # on the one connection that there is for it
            with trio.move_on_after(seconds):
                await self._notified.wait()
            return
        self._waiting = True
        try:
            await self.call(wait, wait=seconds, listening=True)
        except ServerError as error:
            raise self._unavailable(str(error)) from None
        finally:
            self._waiting, self._wait = False, None
            self._notified.notify()

    def hasten(self, seconds: float) -> None:
        """Have a `wait` that is under way end within so many seconds from now."""
        if self._wait is not None:
            self._wait.deadline = min(self._wait.deadline, trio.current_time() + seconds)

    async def ask(self, statement: str, *values: Value) -> list[Row]:
        """Have a statement done, and return its rows; see `Connection.ask`.

        Raises:
            EngineUnavailable, ServerError: as `call`.
        """
        return await self.call(lambda connection, scope: connection.ask(statement, values, scope))

    async def _call(self, work: Work[T], scope: trio.CancelScope, *, listening: bool) -> T:
        while True:
            connection = self._take(listening=listening)
            used = connection is not None
            if connection is None:
                connection = await self._open(listening=listening)
            generation = self._generation
            keep = False
            try:
                result = await work(connection, scope)
                keep = True
                return result
            except ServerError:
                keep = True
                raise
            except ConnectionLost as error:
                self._drop()
                if not used:
                    raise self._unavailable(str(error)) from None
            finally:
                if keep and generation == self._generation:
                    self._put_back(connection, listening=listening)
                else:
                    connection.close()

    def _take(self, *, listening: bool) -> Connection | None:
        if not listening:
            return self._idle.pop() if self._idle else None
        connection, self._listening = self._listening, None
        return connection

    def _put_back(self, connection: Connection, *, listening: bool) -> None:
        if self._closed:
            connection.close()
        elif listening and self._listening is None:
            self._listening = connection
        elif not listening and len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    async def _open(self, *, listening: bool) -> Connection:
        """A new connection, ready for use."""
        await trio.sleep_until(self._retry)
        try:
            connection = await self._connect(listening=listening)
        except EngineUnavailable:
            self._back_off()
            raise
        self._delay = 0.0
        return connection

    async def _connect(self, *, listening: bool) -> Connection:
        deadline = trio.current_time() + self._location.connect_timeout
        script = _KEEPALIVE + (f'LISTEN "{self._channel}";' if listening else "")
        # A copy: others that connect meanwhile sort them.
        servers = tuple(self._servers)
        connection, server = await dial(self._location, servers, script, deadline)
        self._servers.sort(key=lambda each: each != server)  # it is the primary as yet
        connection.notified = True  # of what came before
        return connection

    def _unavailable(self, why: str) -> EngineUnavailable:
        return EngineUnavailable(f"PostgreSQL at {self._location.name}: {why}")

    def _back_off(self) -> None:
        self._delay = min(max(2 * self._delay, _FIRST_DELAY), _LAST_DELAY)
        # Many nodes lose the same server in the same moment.
        self._retry = trio.current_time() + self._delay * random.uniform(0.5, 1.0)  # noqa: S311

    def _drop(self) -> None:
        """Close what nobody uses, and what is used once it is not."""
        self._generation += 1
        for each in self._idle:
            each.close()
        self._idle.clear()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        """End calls that wait, and close all connections. Idempotent."""
        self._closed = True
        for scope in self._calls:
            scope.cancel()
        self._drop()
