"""Connections to one Redis. Each call has one for itself: none waits behind another's reply.

Appends, the tail that waits and all else therefore never share one. A connection is kept for the
next call; where it turns out to be dead, all that are kept go, and the call is made once more on a
new one: every call here may be repeated. New ones are opened with a backoff.

Where the server may be another by and by (`discovery`), a call is also repeated at that one.
"""

import random
import ssl
from collections.abc import Sequence
from typing import Final

import hiredis
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Command, Connection, ConnectionLost, Reply, dial
from mist.engine.redis.discovery import Discovery, Fixed
from mist.engine.redis.location import Location
from mist.engine.redis.replies import closes, information

__all__ = ["NewRun", "Pool"]

_MOST: Final = 64  # connections; more calls wait
_KEPT: Final = 8  # connections that nobody uses
_FIRST_DELAY: Final = 0.02  # seconds until a connection is tried again; then twice as long, up to:
_LAST_DELAY: Final = 0.5
_ROLE: Final = 1.0  # seconds for which a server's role is taken for known
_ROLE_QUESTION: Final = ("INFO", "replication")
_SLOW: Final = 0.3  # seconds for a reply after which a server may have stood still
_REDIRECTS: Final = 20  # that one call follows


class _NoReply(Exception):
    """A server has not answered for so long that another one may have taken its place, or has."""


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
        discovery: finds the server; without it, it is the first that the location names.
    """

    def __init__(
        self,
        location: Location,
        context: ssl.SSLContext | None = None,
        discovery: Discovery | None = None,
    ) -> None:
        self._location = location
        self._context = context
        self._discovery = discovery or Fixed(location.servers[0])
        self._may_move = discovery is not None
        self._idle: list[Connection] = []
        self._slots = trio.Semaphore(_MOST)
        self._calls: set[trio.CancelScope] = set()
        self._asking: set[trio.CancelScope] = set()  # for replies of a server that may be replaced
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
                    return await self._call(commands, run, scope, wait)
                finally:
                    self._slots.release()
            finally:
                self._calls.discard(scope)
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        # What is frozen for one is so for all.
        await self._drop()
        raise EngineUnavailable(
            f"no answer from {self._location.name} in {self._location.timeout:g} s"
        )

    async def _call(
        self, commands: Sequence[Command], run: str | None, scope: trio.CancelScope, wait: float
    ) -> list[Reply]:
        redirects = 0
        while True:
            if self._may_move and await self._discovery.moved():
                await self._leave()
            used = bool(self._idle)
            connection = self._idle.pop() if used else await self._open()
            if run is not None and connection.run != run:
                await self._put_back(connection)
                raise NewRun(connection.run)
            try:
                replies = await self._use(connection, commands, scope, wait)
            except ConnectionLost as error:
                await self._drop()
                if not used:
                    raise EngineUnavailable(f"{connection.name}: {error}") from None
            except _NoReply:
                await self._drop()
                self._discovery.doubt()
            else:
                seconds = self._redirect(replies, connection) if self._may_move else None
                if seconds is None or redirects == _REDIRECTS:
                    return replies
                redirects += 1
                if seconds:
                    await trio.sleep(seconds)
                else:
                    await self._drop()

    def _redirect(self, replies: Sequence[Reply], connection: Connection) -> float | None:
        """Seconds after which to make a call again, which was made where the realm is not."""
        for each in replies:
            if isinstance(each, hiredis.ReplyError):
                seconds = self._discovery.redirect(each, connection.address)
                if seconds is not None:
                    return seconds
        return None

    async def _use(
        self,
        connection: Connection,
        commands: Sequence[Command],
        scope: trio.CancelScope,
        wait: float,
    ) -> list[Reply]:
        generation = self._generation
        keep = False
        try:
            check = trio.current_time() > connection.checked + _ROLE
            if check:
                commands = (_ROLE_QUESTION, *commands)
            replies = (
                await self._ask(connection, commands, scope, wait)
                if self._may_move
                else await connection.call(commands, scope)
            )
            if check:
                self._check_role(connection, replies.pop(0))
                connection.checked = trio.current_time()
            errors = [each for each in replies if isinstance(each, hiredis.ReplyError)]
            keep = not any(map(closes, errors))
        except EngineUnavailable:
            self._discovery.doubt()
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

    async def _ask(
        self,
        connection: Connection,
        commands: Sequence[Command],
        scope: trio.CancelScope,
        wait: float,
    ) -> list[Reply]:
        """The replies of a server that another one may replace.

        Raises:
            _NoReply: there is none, or the server has stood still and was replaced meanwhile.
        """
        began = trio.current_time()
        with trio.move_on_after(self._discovery.reply_timeout + wait) as own:
            self._asking.add(own)
            try:
                replies = await connection.call(commands, scope, own)
            finally:
                self._asking.discard(own)
            if trio.current_time() < began + _SLOW:
                return replies
            self._discovery.suspect()
        if own.cancelled_caught:
            raise _NoReply
        if await self._discovery.moved():
            await self._leave()
            raise _NoReply
        return replies

    async def _put_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _KEPT:
            await connection.close()
        else:
            self._idle.append(connection)

    def _check_role(self, connection: Connection, reply: Reply) -> None:
        """Refuse a replica: its log is another's, perhaps an old one.

        A server may become one while connections to it are open.
        """
        if isinstance(reply, bytes) and information(reply).get("role") == "slave":
            raise EngineUnavailable(f"{connection.name} is a replica")

    async def _open(self) -> Connection:
        """A new connection, ready for use."""
        await trio.sleep_until(self._retry)
        why = f"no answer in {self._location.connect_timeout:g} s"
        connection = None
        try:
            with trio.move_on_after(self._location.connect_timeout):
                connection = await self._connect()
        except ConnectionLost as error:
            why = str(error)
        except EngineUnavailable:
            self._back_off()
            raise
        if connection is None:
            self._back_off()
            raise EngineUnavailable(f"can't connect to {self._location.name}: {why}")
        self._delay = 0.0
        if connection.run != self._run:
            await self._drop()
            self._run = connection.run
        if self._may_move:
            await self._confirm(connection)
        return connection

    async def _confirm(self, connection: Connection) -> None:
        """Look whether a server was replaced while a connection to it was opened.

        One that stood still takes connections, and goes on as a master until it learns that it is
        none.
        """
        self._discovery.suspect()
        try:
            moved = await self._discovery.moved()
        except BaseException:
            await connection.close()
            raise
        if moved:
            await connection.close()
            raise EngineUnavailable(f"{connection.name} was replaced")

    async def _connect(self) -> Connection:
        address = await self._discovery.find()
        try:
            connection = await dial(address, self._context)
            try:
                await self._greet(connection)
            except BaseException:
                await connection.close()
                raise
        except BaseException:
            self._discovery.doubt()
            raise
        return connection

    def _back_off(self) -> None:
        self._delay = min(max(2 * self._delay, _FIRST_DELAY), _LAST_DELAY)
        # Many nodes lose the same server in the same moment.
        self._retry = trio.current_time() + self._delay * random.uniform(0.5, 1.0)  # noqa: S311

    async def _greet(self, connection: Connection) -> None:
        await connection.authenticate(self._location.user, self._location.password)
        select = ("SELECT", self._location.database)
        _, about, role = await connection.ask(select, ("INFO", "server"), _ROLE_QUESTION)
        self._check_role(connection, role)
        connection.checked = trio.current_time()
        if isinstance(about, bytes):
            connection.run = information(about).get("run_id", "")

    async def _drop(self) -> None:
        """Close what nobody uses, and what is used once it is not."""
        self._generation += 1
        idle, self._idle = self._idle, []
        with trio.CancelScope(shield=True):  # which does not wait for anything
            for each in idle:
                await each.close()

    async def _leave(self) -> None:
        """Wait for nothing any more of a server that another one has replaced."""
        for each in self._asking:
            each.cancel()
        await self._drop()

    async def close(self) -> None:
        """End calls that wait, and close all connections. Idempotent."""
        self._closed = True
        for scope in self._calls:
            scope.cancel()
        await self._drop()
        await self._discovery.close()
