"""The fence in Redis: a call is made on a connection to the process that is known to have the log.

Where another process answers, nothing is asked of it before it is confirmed; see
`mist.engine.fence` and `scripts.CONFIRM`.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

import hiredis
import trio

from mist.engine.contract import EngineUnavailable, Forked
from mist.engine.fence import ALIVE, VOTES, Fence, Verdict
from mist.engine.redis import scripts
from mist.engine.redis.connection import Command, Reply
from mist.engine.redis.location import Location
from mist.engine.redis.pool import NewRun, Pool
from mist.engine.redis.replication import SECONDS, Replication
from mist.engine.redis.replies import forgotten, reason
from mist.engine.redis.scripts import Script

__all__ = ["RedisFence"]

_Arguments: TypeAlias = tuple[bytes | str | int, ...]


class RedisFence(Fence):
    """See the module.

    Attributes:
        head, log, nodes, tokens: keys; the last one is that of the head of the tokens.
        replication: which replicas are to have what is appended.
    """

    def __init__(self, location: Location, pool: Pool, replicas: int = 0) -> None:
        super().__init__()
        self.replication = Replication(replicas, location.name)
        prefix = f"{{mist:{location.realm}}}:"
        self.head, self.log, self.nodes = f"{prefix}head", f"{prefix}log", f"{prefix}nodes"
        self.tokens = f"{prefix}tokens:head"
        self._name = location.name
        self._pool = pool
        self._votes = (self.head, self.log, f"{prefix}members", f"{prefix}votes")
        self._last_run = ""

    async def evaluate(
        self, script: Script, keys: tuple[str, ...], *arguments: bytes | str | int
    ) -> Reply:
        """Run a script on the log that is known.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
            Forked: it is not there any more.
        """
        (reply,) = await self.call(script.command(keys, *arguments))
        if forgotten(reply):
            (reply,) = await self.call(script.command(keys, *arguments, whole=True))
        return self.checked(reply)

    async def write(
        self, script: Script, keys: tuple[str, ...], *arguments: bytes | str | int, known: int
    ) -> tuple[Reply, EngineUnavailable | None]:
        """Run a script on the log that is known, and wait for the replicas that are to have it.

        Args:
            known: how far it is known that they have the log.

        Returns:
            What it replies, and why it may be that too few of them have what it has written.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
            Forked: it is not there any more.
        """
        reply, *replicated = await self._run(
            lambda whole: (
                script.command(keys, *arguments, whole=whole),
                *self.replication.commands(self.head, known, whole=whole),
            ),
            wait=SECONDS,
        )
        return self.checked(reply), self.replication.problem(replicated)

    async def replicate(self, known: int) -> None:
        """Wait for the replicas that are to have all that is in the log.

        Args:
            known: how far it is known that they have it.

        Raises:
            EngineUnavailable: too few of them have it, or there is no answer.
            Forked: it is not there any more.
        """
        replies = await self._run(
            lambda whole: self.replication.commands(self.head, known, whole=whole), wait=SECONDS
        )
        problem = self.replication.problem(replies)
        if problem is not None:
            raise problem

    async def _run(
        self, commands: Callable[[bool], Sequence[Command]], wait: float = 0.0
    ) -> list[Reply]:
        """Have commands done as `call` does.

        Args:
            commands: scripts among them, whole or not.
        """
        replies = await self.call(*commands(False), wait=wait)
        if any(map(forgotten, replies)):
            replies = await self.call(*commands(True), wait=wait)
        return replies

    async def call(self, *commands: Command, wait: float = 0.0) -> list[Reply]:
        """Have commands done on the log that is known, and return their replies, errors among them.

        Args:
            wait: see `Pool.call`.

        Raises:
            EngineUnavailable: there is no answer.
            Forked: it is not there any more.
        """
        while True:
            if self.lost:
                await trio.lowlevel.checkpoint()
                raise Forked
            run = self.run
            try:
                replies = await self._pool.call(*commands, wait=wait, run=run)
            except NewRun:
                await self.confirm(run)
            else:
                if run == self.run:
                    return replies

    async def _vote(self) -> Verdict:
        epoch, seen = self.epoch, self.seen
        reply = await self.anywhere(
            scripts.CONFIRM,
            self._votes,
            lambda run: (
                run,
                self.node,
                *(seen.offset, seen.time, seen.newest),
                epoch,
                secrets.token_hex(8),
                *(ALIVE, VOTES),
            ),
        )
        if isinstance(reply, int):  # so many votes are missing
            return Verdict("waiting", self._last_run)
        return Verdict("same" if reply == b"same" else "forked", self._last_run)

    async def anywhere(
        self, script: Script, keys: tuple[str, ...], arguments: Callable[[str], _Arguments]
    ) -> Reply:
        """Run a script that wants to know in which process it is run.

        Args:
            arguments: from the name of the process.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
        """
        while True:
            run = self._last_run
            given = arguments(run)
            try:
                (reply,) = await self._pool.call(script.command(keys, *given), run=run)
                if forgotten(reply):
                    whole = script.command(keys, *given, whole=True)
                    (reply,) = await self._pool.call(whole, run=run)
            except NewRun as new:
                self._last_run = new.run
            else:
                return self.checked(reply)

    async def run_anywhere(
        self, script: Script, keys: tuple[str, ...], *arguments: bytes | str | int
    ) -> Reply:
        """Run a script, whichever process has the log.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
        """
        return await self.anywhere(script, keys, lambda run: arguments)

    async def ask_anywhere(self, *command: bytes | str | int) -> Reply:
        """Have a command done, whichever process has the log.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
        """
        (reply,) = await self._pool.call(command)
        return self.checked(reply)

    def checked(self, reply: Reply) -> Reply:
        """The reply.

        Raises:
            EngineUnavailable: it is an error.
        """
        if isinstance(reply, hiredis.ReplyError):
            raise EngineUnavailable(f"{self._name}: {reason(reply)}")
        return reply
