"""The fence in PostgreSQL: each call is one function, which looks by itself which process it is in.

So no connection is taken to lead to the same server as before, which a connection pooler, or a name
that moves, may have changed.
"""

import secrets

import trio

from mist.engine.contract import EngineUnavailable, Forked
from mist.engine.fence import ALIVE, VOTES, Fence, Verdict
from mist.engine.postgres.connection import Row, Value
from mist.engine.postgres.database import Database
from mist.engine.postgres.epoch_functions import CONFIRM
from mist.engine.postgres.errors import ServerError
from mist.engine.postgres.function import Function

__all__ = ["PostgresFence"]


class PostgresFence(Fence):
    """See the module.

    Args:
        database: which has the realm.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def evaluate(self, function: Function, epoch: str, *values: Value) -> list[Row]:
        """Call a function on the log that is known.

        Args:
            epoch: of the log, as the caller takes it.
            values: behind those of the fence.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
            Forked: the log is not there any more.
        """
        while True:
            if self.lost:
                await trio.lowlevel.checkpoint()
                raise Forked
            run = self.run
            rows = await self._evaluate_once(function, epoch, run, values)
            outcome = rows[0][0]
            if outcome == "forked":
                raise self.forked(epoch)
            if outcome == "unconfirmed":
                await self.confirm(run)
            elif run == self.run:
                return rows

    async def _evaluate_once(
        self, function: Function, epoch: str, run: str, values: tuple[Value, ...]
    ) -> list[Row]:
        given = (epoch, run, self.seen.offset, self.seen.time, *values)
        try:
            try:
                rows = await self._database.call(function, *given)
            except ServerError as error:
                if not error.is_missing:
                    raise
                # A segment was dropped as it was about to be read. By now it is not looked for.
                rows = await self._database.call(function, *given)
        except ServerError as error:
            raise await self.failed(error, epoch) from None
        if rows[0][0] == "standby":
            raise self._database.standby()
        return rows

    async def failed(self, error: ServerError, epoch: str) -> Forked | EngineUnavailable:
        """What to raise for an error: where tables are missing, so is the log.

        But not where it is a standby, which may not have heard of them yet.

        Raises:
            EngineUnavailable: that can't be asked.
        """
        if not error.is_missing:
            return self._database.unavailable(str(error))
        ((in_recovery,),) = await self._database.ask_anywhere("SELECT pg_is_in_recovery()")
        return self._database.standby() if in_recovery else self.forked(epoch)

    async def _vote(self) -> Verdict:
        seen = self.seen
        try:
            rows = await self._database.call(
                CONFIRM,
                self.node.encode(),
                *(seen.offset, seen.time, seen.newest),
                self.epoch,
                secrets.token_hex(8),
                *(ALIVE, VOTES),
                *self._database.terms,
            )
        except ServerError as error:
            raise await self.failed(error, self.epoch) from None
        match rows:
            case [[("waiting" | "same" | "forked") as outcome, str(run)]]:
                return Verdict(outcome, run)
            case _:
                raise self._database.standby()
