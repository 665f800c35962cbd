"""The fence: what is asked of a log is asked of the one that is known, and of no other.

A Redis that comes back may have lost what it acknowledged: it was emptied, its file was an older
one, or a replica that was behind has taken its place. So a node remembers the last record that it
has read or appended. `Fence.call` looks whether another process than the last one still has that
record before anything else is asked of it, and the scripts look whether the log is of the same
epoch and reaches as far. Once it is known that it does not, nothing is done any more until the node
has entered again.
"""

import attrs
import hiredis
import trio

from mist.engine.contract import EngineUnavailable, Forked
from mist.engine.redis import scripts
from mist.engine.redis.connection import Command, Reply
from mist.engine.redis.location import Location
from mist.engine.redis.pool import NewRun, Pool
from mist.engine.redis.replies import reason, says
from mist.engine.redis.scripts import Script

__all__ = ["Fence", "Seen"]


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
        epoch: of the log.
        seen: the last record that this node has read or appended.
        lost: the epoch, once the log is known to be of another one, or to have lost records.
        head, log, nodes, tokens: keys; the last one is that of the head of the tokens.
    """

    def __init__(self, location: Location, pool: Pool) -> None:
        prefix = f"{{mist:{location.realm}}}:"
        self.head, self.log, self.nodes = f"{prefix}head", f"{prefix}log", f"{prefix}nodes"
        self.tokens = f"{prefix}tokens:head"
        self.epoch = ""
        self.seen = Seen()
        self.lost = ""
        self._name = location.name
        self._pool = pool
        self._run = ""  # the process that has the log

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

    async def run(
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
            try:
                return await self._pool.call(*commands, wait=wait, run=self._run)
            except NewRun as new:
                await self._verify(new.run)

    async def _verify(self, run: str) -> None:
        """Look whether another process has the last record."""
        epoch, seen = self.epoch, self.seen
        if seen.offset:
            keys = (self.head, self.log)
            try:
                reply = await self.run_anywhere(
                    scripts.VERIFY, keys, epoch, seen.offset, seen.time, run=run
                )
            except NewRun:  # yet another
                return
            if reply != b"same":
                raise self.forked(epoch)
        self._run = run

    async def run_anywhere(
        self,
        script: Script,
        keys: tuple[str, ...],
        *arguments: bytes | str | int,
        run: str | None = None,
    ) -> Reply:
        """Run a script, whichever log there is; see `Pool.call`.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
            NewRun: see there.
        """
        (reply,) = await self._pool.call(script.command(keys, *arguments), run=run)
        if isinstance(reply, hiredis.ReplyError) and says(reply, "NOSCRIPT"):
            (reply,) = await self._pool.call(script.command(keys, *arguments, whole=True), run=run)
        return self.checked(reply)

    async def ask_anywhere(self, *command: bytes | str | int) -> Reply:
        """Have a command done, whichever log there is.

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
