"""Connections to one Redis. Each call has one for itself: none waits behind another's reply.

Appends, the tail that waits and all else therefore never share one. A connection is kept for the
next call; where it turns out to be dead, all that are kept go, and the call is made once more on a
new one: every call here may be repeated. New ones are opened with a backoff.
"""

import random
import ssl
from collections.abc import Sequence
from typing import Final

import hiredis
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Command, Connection, ConnectionLost, Reply, dial
from mist.engine.redis.location import Location
from mist.engine.redis.replies import closes, information, reason

__all__ = ["NewRun", "Pool"]

_MOST: Final = 64  # connections; more calls wait
_KEPT: Final = 8  # connections that nobody uses
_FIRST_DELAY: Final = 0.02  # seconds until a connection is tried again; then twice as long, up to:
_LAST_DELAY: Final = 0.5
_ROLE: Final = 1.0  # seconds for which a server's role is taken for known


class NewRun(Exception):
    """The server is another process than the caller has last asked. Nothing was done.

    Attributes:
        run: names it.
    """

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class Pool:
    """See the module.

    Args:
        context: for TLS; None is without.
    """

    def __init__(self, location: Location, context: ssl.SSLContext | None = None) -> None:
        self._location = location
        self._context = context
        self._idle: list[Connection] = []
        self._slots = trio.Semaphore(_MOST)
        self._calls: set[trio.CancelScope] = set()
        self._generation = 0  # grows as connections are dropped: what was opened before is not kept
        self._run = ""  # of the server that was last connected to
        self._delay = 0.0
        self._retry = 0.0  # when a connection may be tried again, by trio's clock
        self._closed = False

    async def call(
        self, *commands: Command, wait: float = 0.0, run: str | None = None
    ) -> list[Reply]:
        """Have commands done, one after another, and return their replies.

        Args:
            wait: seconds that Redis is asked to wait, beside the time it has to answer.
            run: of the server that has to do them; None is any.

        Raises:
            EngineUnavailable: no answer in time, or a server that can't be used. Which of the
                commands were done is not known.
            NewRun: see there.
        """
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        with trio.move_on_after(self._location.timeout + wait) as scope:
            self._calls.add(scope)
            try:
                # With `async with` each call would be a pass of the event loop more: a fifth of
                # what an idle node costs.
                try:
                    self._slots.acquire_nowait()
                except trio.WouldBlock:
                    await self._slots.acquire()
                try:
                    return await self._call(commands, run, scope)
                finally:
                    self._slots.release()
            finally:
                self._calls.discard(scope)
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        # What is frozen for one is so for all.
        await self._drop()
        raise EngineUnavailable(
            f"no answer from Redis at {self._location.name} in {self._location.timeout:g} s"
        )

    async def _call(
        self, commands: Sequence[Command], run: str | None, scope: trio.CancelScope
    ) -> list[Reply]:
        while True:
            used = bool(self._idle)
            connection = self._idle.pop() if used else await self._open()
            if run is not None and connection.run != run:
                await self._put_back(connection)
                raise NewRun(connection.run)
            try:
                return await self._use(connection, commands, scope)
            except ConnectionLost as error:
                await self._drop()
                if not used:
                    raise EngineUnavailable(f"Redis at {self._location.name}: {error}") from None

    async def _use(
        self, connection: Connection, commands: Sequence[Command], scope: trio.CancelScope
    ) -> list[Reply]:
        generation = self._generation
        keep = False
        try:
            check = trio.current_time() > connection.checked + _ROLE
            if check:
                replies = await connection.call([("INFO", "replication"), *commands], scope)
                self._check_role(replies.pop(0))
                connection.checked = trio.current_time()
            else:
                replies = await connection.call(commands, scope)
            errors = [each for each in replies if isinstance(each, hiredis.ReplyError)]
            keep = not any(map(closes, errors))
        except EngineUnavailable:
            await self._drop()
            raise
        finally:
            if keep and generation == self._generation:
                await self._put_back(connection)
            else:
                await connection.close()
        if not keep:
            await self._drop()
        return replies

    async def _put_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _KEPT:
            await connection.close()
        else:
            self._idle.append(connection)

    def _check_role(self, reply: Reply) -> None:
        """Refuse a replica: its log is another's, perhaps an old one.

        A server may become one while connections to it are open.
        """
        if isinstance(reply, bytes) and information(reply).get("role") == "slave":
            raise EngineUnavailable(f"Redis at {self._location.name} is a replica")

    async def _open(self) -> Connection:
        """A new connection, ready for use."""
        await trio.sleep_until(self._retry)
        why = f"no answer in {self._location.connect_timeout:g} s"
        connection = None
        try:
            with trio.move_on_after(self._location.connect_timeout) as scope:
                connection = await self._connect(scope)
        except ConnectionLost as error:
            why = str(error)
        except EngineUnavailable:
            self._back_off()
            raise
        if connection is None:
            self._back_off()
            raise EngineUnavailable(f"can't connect to Redis at {self._location.name}: {why}")
        self._delay = 0.0
        if connection.run != self._run:
            await self._drop()
            self._run = connection.run
        return connection

    async def _connect(self, scope: trio.CancelScope) -> Connection:
        connection = await dial(self._location, self._context)
        try:
            await self._greet(connection, scope)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _back_off(self) -> None:
        self._delay = min(max(2 * self._delay, _FIRST_DELAY), _LAST_DELAY)
        # Many nodes lose the same server in the same moment.
        self._retry = trio.current_time() + self._delay * random.uniform(0.5, 1.0)  # noqa: S311

    async def _greet(self, connection: Connection, scope: trio.CancelScope) -> None:
        location = self._location
        if location.password:
            user = (location.user,) if location.user else ()
            (reply,) = await connection.call([("AUTH", *user, location.password)], scope)
            if isinstance(reply, hiredis.ReplyError):
                # Not its text: some servers repeat what they were sent.
                raise EngineUnavailable(f"Redis at {location.name} refuses the user or password")
        selected, about = await connection.call(
            [("SELECT", location.database), ("INFO", "server")], scope
        )
        for each in (selected, about):
            if isinstance(each, hiredis.ReplyError):
                raise EngineUnavailable(f"Redis at {location.name}: {reason(each)}")
        if isinstance(about, bytes):
            connection.run = information(about).get("run_id", "")

    async def _drop(self) -> None:
        """Close what nobody uses, and what is used once it is not."""
        self._generation += 1
        idle, self._idle = self._idle, []
        with trio.CancelScope(shield=True):  # which does not wait for anything
            for each in idle:
                await each.close()

    async def close(self) -> None:
        """End calls that wait, and close all connections. Idempotent."""
        self._closed = True
        for scope in self._calls:
            scope.cancel()
        await self._drop()
