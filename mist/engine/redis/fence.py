"""The fence: what is asked of a log is asked of the one that is known, and of no other.

A Redis that comes back may have lost what it acknowledged: it was emptied, its file was an older
one, or a replica that was behind has taken its place. So a node remembers the last record that it
has read or appended. Before anything else is asked of another process than the last one, `Fence`
has it confirmed: each member says what it has of the log, and appends are refused until all have.
The script that counts these votes decides, in one step: the log is still the same, or it has lost
records and another epoch begins (see `scripts.CONFIRM`). No member leads.

From the moment that a node has voted, what another process still answers does not count.

Once it is known that there is another epoch, nothing is done any more until the node has entered
again.
"""

import secrets
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import hiredis
import trio

from mist.engine.contract import EngineUnavailable, Forked, Known
from mist.engine.redis import scripts
from mist.engine.redis.connection import Command, Reply
from mist.engine.redis.location import Location
from mist.engine.redis.pool import NewRun, Pool
from mist.engine.redis.replies import reason, says
from mist.engine.redis.scripts import Script

__all__ = ["Fence", "Seen"]

_ALIVE: Final = 3_000_000  # microseconds from a member's last beat for which it is taken as alive
_VOTES: Final = 2_000_000  # microseconds for which votes are waited for
_ASK_AGAIN: Final = 0.05  # seconds

_Arguments: TypeAlias = tuple[bytes | str | int, ...]


@attrs.frozen
class Seen:
    """A record that is known to be in the log.

    Attributes:
        time: names it, beside its offset; 0 where it isn't known.
        newest: the highest id up to it; 0 where it isn't known.
    """

    offset: int = 0
    time: int = 0
    newest: int = 0


class Fence:
    """See the module.

    Attributes:
        node: by which this one is known.
        epoch: of the log.
        seen: the last record that this node has read or appended.
        lost: the epoch, once the log is known to be in another one, or to have lost records.
        run: the process that is known to have the log; empty where none is.
        head, log, nodes, tokens: keys; the last one is that of the head of the tokens.
    """

    def __init__(self, location: Location, pool: Pool) -> None:
        prefix = f"{{mist:{location.realm}}}:"
        self.head, self.log, self.nodes = f"{prefix}head", f"{prefix}log", f"{prefix}nodes"
        self.tokens = f"{prefix}tokens:head"
        self.node = ""
        self.epoch = ""
        self.seen = Seen()
        self.lost = ""
        self.run = ""
        self._name = location.name
        self._pool = pool
        self._votes = (self.head, self.log, f"{prefix}members", f"{prefix}votes")
        self._last_run = ""
        self._confirming = trio.Lock()

    def claim(self, known: Known) -> None:
        """Say what the node has of the log, where that is not known better."""
        if known.epoch != self.epoch:
            self.enter(known.epoch)
        if known.offset > self.seen.offset:
            self.seen = Seen(known.offset, 0, known.newest)

    def enter(self, epoch: str) -> None:
        """Go on with the log of this epoch."""
        if epoch != self.epoch:
            self.epoch, self.lost, self.seen = epoch, "", Seen()

    def note(self, epoch: str, seen: Seen) -> None:
        """Remember a record, if it is the last one, and the epoch the same."""
        if epoch == self.epoch and seen.offset >= self.seen.offset:
            self.seen = seen

    def forked(self, epoch: str) -> Forked:
        """What to raise where the log of an epoch is not what it was."""
        if epoch == self.epoch:
            self.lost = epoch
        return Forked()

    async def evaluate(
        self, script: Script, keys: tuple[str, ...], *arguments: bytes | str | int
    ) -> Reply:
        """Run a script on the log that is known.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
            Forked: it is not there any more.
        """
        (reply,) = await self.call(script.command(keys, *arguments))
        if isinstance(reply, hiredis.ReplyError) and says(reply, "NOSCRIPT"):
            (reply,) = await self.call(script.command(keys, *arguments, whole=True))
        return self.checked(reply)

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

    async def confirm(self, run: str) -> None:
        """Have it confirmed which process has the log, and that it is still the same log.

        Args:
            run: the process that was taken to have it; nothing is done where that is outdated.

        Raises:
            EngineUnavailable: there is no answer.
            Forked: it is another one.
        """
        async with self._confirming:
            if self.lost:
                raise Forked
            if run != self.run:
                return
            self.run = ""
            reply = await self._vote()
            while isinstance(reply, int):  # of so many others, the vote is missing
                await trio.sleep(_ASK_AGAIN)
                reply = await self._vote()
            if reply != b"same":
                raise self.forked(self.epoch)
            self.run = self._last_run

    async def _vote(self) -> Reply:
        epoch, seen = self.epoch, self.seen
        return await self.anywhere(
            scripts.CONFIRM,
            self._votes,
            lambda run: (
                run,
                self.node,
                *(seen.offset, seen.time, seen.newest),
                epoch,
                secrets.token_hex(8),
                *(_ALIVE, _VOTES),
            ),
        )

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
                if isinstance(reply, hiredis.ReplyError) and says(reply, "NOSCRIPT"):
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
            raise EngineUnavailable(f"Redis at {self._name}: {reason(reply)}")
        return reply
