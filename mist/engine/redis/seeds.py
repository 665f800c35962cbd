"""Servers that know where others are, asked in turn: Sentinels, members of a cluster."""

import ssl
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import trio

from mist.engine.addresses import Address
from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Command, Connection, ConnectionLost, Reply, dial

__all__ = ["Seeds"]

T = TypeVar("T")

_LEARNED: Final = 64  # servers beside those that are named


class Seeds:
    """See the module. The one that answered last is asked first; it keeps its connection.

    Args:
        name: of all of them, for messages.
        addresses: of those that a URL names; one at least.
        user, password: of theirs.
        context: for TLS; None is without.
        seconds: for the answer of all; each has a part of it.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        user: str,
        password: str,
        context: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self._name = name
        self._named = list(addresses)
        self._turn = list(addresses)
        self._user, self._password = user, password
        self._context = context
        self._seconds = seconds
        self._connection: Connection | None = None
        self._asking = trio.Lock()

    async def ask(self, read: Callable[[Address, list[Reply]], T], *commands: Command) -> T:
        """What the first one says from which something can be read. The caller has a deadline.

        Args:
            read: from the replies of the server at an address; or raises `EngineUnavailable`.

        Raises:
            EngineUnavailable: of none; the line says why not of one of them.
        """
        why: EngineUnavailable | None = None
        async with self._asking:
            for address in list(self._turn):
                seconds = self._seconds / (1 + min(len(self._turn), 3))
                try:
                    with trio.move_on_after(seconds):
                        replies = await self._replies(address, commands)
                        try:
                            return read(address, replies)
                        except EngineUnavailable as error:
                            why = error  # says more than that another one can't be reached
                            await self._hang_up()
                except (EngineUnavailable, ConnectionLost) as error:
                    why = why or EngineUnavailable(str(error))
                self.postpone(address)
        raise why or EngineUnavailable(
            f"can't connect to {self._name}: no answer in {self._seconds:g} s"
        )

    async def _replies(self, address: Address, commands: Sequence[Command]) -> list[Reply]:
        connection, self._connection = self._connection, None
        if connection is not None and connection.address == address:
            try:
                return await self._use(connection, commands)
            except ConnectionLost:
                pass  # since it was used last
        elif connection is not None:
            await connection.close()
        connection = await dial(address, self._context)
        try:
            await connection.authenticate(self._user, self._password)
        except BaseException:
            await connection.close()
            raise
        return await self._use(connection, commands)

    async def _use(self, connection: Connection, commands: Sequence[Command]) -> list[Reply]:
        try:
            replies = await connection.call(commands)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return replies

    def postpone(self, address: Address | None = None) -> None:
        """Ask a server last, from now on: the one at an address, or the one that answered last."""
        address = address or self._turn[0]
        if address in self._turn:
            self._turn.remove(address)
            self._turn.append(address)

    def learn(self, addresses: Sequence[Address]) -> None:
        """Ask these, too, behind those that are named; in the place of those learned before."""
        new = [each for each in dict.fromkeys(addresses) if each not in self._named]
        known = {*self._named, *new[:_LEARNED]}
        self._turn = [each for each in self._turn if each in known]
        self._turn += [each for each in new[:_LEARNED] if each not in self._turn]

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        with trio.CancelScope(shield=True):  # which does not wait for anything
            await self._hang_up()
