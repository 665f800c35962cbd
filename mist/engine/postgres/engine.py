"""`PostgresEngine`: an engine whose log is in the tables of a PostgreSQL; see the package."""

import secrets
from collections.abc import Sequence
from typing import Final, cast

import trio

from mist.engine.contract import (
    Checkpoint,
    Forked,
    NotEntered,
    Placed,
    Record,
    Standing,
    Trimmed,
    check_record,
    check_size,
)
from mist.engine.fence import Seen
from mist.engine.fenced import NODES, RECORDS, REPLACED, STAGED, FencedEngine, parse_ancestors
from mist.engine.members import Members
from mist.engine.postgres import epoch_functions, log_functions
from mist.engine.postgres.connection import Row
from mist.engine.postgres.database import Database
from mist.engine.postgres.errors import ServerError
from mist.engine.postgres.fence import PostgresFence
from mist.engine.postgres.members import PostgresMembers

__all__ = ["PostgresEngine"]

_OWN: Final = 0.005  # seconds for which one is notified of what was appended here; not by a pooler
_DROP_WAIT: Final = "100"  # milliseconds for a table's lock, for which others wait behind
_LOCKED: Final = "55P03"  # SQLSTATE

# More go than are added, so that what nobody takes does not stay.
_PUT_ONCE: Final = """
WITH gone AS (
  DELETE FROM {schema}.once WHERE name IN (
    SELECT o.name FROM {schema}.once AS o WHERE o.expires < clock_timestamp()
      ORDER BY o.expires LIMIT 2 FOR UPDATE SKIP LOCKED
  )
)
INSERT INTO {schema}.once VALUES ($1, clock_timestamp() + $2 * interval '1 microsecond', $3)
  ON CONFLICT DO NOTHING
"""
_TAKE: Final = (
    "DELETE FROM {schema}.once WHERE name = $1 RETURNING value, expires > clock_timestamp()"
)

_STANDING: Final = """
SELECT h.epoch, h.newest, h."offset", h.trimmed, coalesce((
  SELECT string_agg(format('%s %s %s', a.epoch, a."offset", a.newest), ';' ORDER BY a.number)
  FROM {schema}.ancestor AS a
), ''), h.time, h.appended, h.checkpoint FROM {schema}.head AS h
"""


class PostgresEngine(FencedEngine[PostgresFence]):
    """See the package. Made by `mist.engine.postgres.opening.open_postgres`."""

    slice = 0.25  # after which it is looked whether there is more, notified or not

    def __init__(self, database: Database) -> None:
        super().__init__(PostgresFence(database))
        self._database = database
        self._members = PostgresMembers(database.ask_anywhere)

    @property
    def members(self) -> Members:
        return self._members

    # to enter

    async def _make_known(self, node: str) -> None:
        fence = self._fence
        own = (node.encode(), secrets.token_hex(8), NODES, fence.epoch, fence.seen.newest)
        enter = epoch_functions.ENTER.call
        try:
            rows = await self._database.ask(enter, *own, *self._database.terms)
        except ServerError as error:
            if not error.is_missing:
                raise self._database.unavailable(str(error)) from None
            await self._database.make()
            rows = await self._database.ask_anywhere(enter, *own, *self._database.terms)
        if not rows[0][0]:
            raise self._database.damaged()

    async def check(self) -> None:
        """Make the realm where it isn't there, and look whether it can be used.

        Raises:
            EngineUnavailable: also where it is of another format, or damaged.
        """
        await self._database.make()
        self._fence.enter((await self.standing()).epoch)

    async def standing(self) -> Standing:
        try:
            rows = await self._database.ask(_STANDING)
        except ServerError as error:
            raise await self._fence.failed(error, self._fence.epoch) from None
        match rows:
            case [
                [
                    str(epoch),
                    int(newest),
                    int(offset),
                    int(trimmed),
                    str(ancestors),
                    int(time),
                    int(appended),
                    str(checkpoint),
                ]
            ]:
                return Standing(
                    epoch,
                    newest,
                    offset,
                    trimmed + 1,
                    parse_ancestors(ancestors),
                    time,
                    appended,
                    Checkpoint.parse(checkpoint),
                )
            case _:
                raise self._fence.forked(self._fence.epoch)

    # to write

    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        check_record(body, count)
        if epoch != self._fence.epoch:
            await trio.lowlevel.checkpoint()
            raise Forked
        own = (node.encode(), serial, count, body, *self._database.terms)
        ((outcome, *placed),) = await self._fence.evaluate(log_functions.APPEND, epoch, *own)
        match outcome, placed:
            case "placed", [int(offset), int(first), int(time)]:
                self._fence.note(epoch, Seen(offset, time, first + count - 1))
                self._database.pool.hasten(_OWN)
                return Placed(offset, first)
            case _:
                raise NotEntered

    async def stage(self, batch: str, part: int, body: bytes) -> None:
        check_size(body)
        await self._database.ask_anywhere(
            log_functions.STAGE.call, batch.encode(), part, body, STAGED, *self._database.terms
        )

    async def staged(self, batch: str, part: int) -> bytes | None:
        rows = await self._database.ask_anywhere(
            "SELECT body FROM {schema}.staged WHERE batch = $1 AND part = $2", batch.encode(), part
        )
        match rows:
            case [[bytes(body)]]:
                return body
            case _:
                return None

    async def discard(self, batch: str) -> None:
        await self._database.ask_anywhere(
            "DELETE FROM {schema}.staged WHERE batch = $1", batch.encode()
        )

    async def put_once(self, name: str, value: bytes, seconds: float) -> None:
        await self._database.ask_anywhere(
            _PUT_ONCE, name.encode(), round(seconds * 1_000_000), value
        )

    async def take(self, name: str) -> bytes | None:
        match await self._database.ask_anywhere(_TAKE, name.encode()):
            case [[bytes(value), True]]:
                return value
            case _:
                return None

    async def checkpoint(self, checkpoint: Checkpoint, epoch: str) -> bool:
        own = (checkpoint.offset, str(checkpoint), REPLACED, *self._database.terms)
        ((outcome,),) = await self._fence.evaluate(log_functions.CHECKPOINT, epoch, *own)
        return outcome == "made"

    async def trim(self, upto: int) -> None:
        try:
            ((done,),) = await self._database.call(log_functions.TRIM, upto, *self._database.terms)
            if not done:
                raise self._fence.forked(self._fence.epoch)
            await self._drop_segments()
        except ServerError as error:
            raise await self._fence.failed(error, self._fence.epoch) from None

    async def _drop_segments(self) -> None:
        """Drop those that are trimmed. One that is read now, as by a backup, is for the next time:
        whatever reads it next would wait behind this.
        """
        durable, _ = self._database.terms
        dropped: object = True
        while dropped:
            try:
                ((dropped,),) = await self._database.call(log_functions.DROP, durable, _DROP_WAIT)
            except ServerError as error:
                if error.code != _LOCKED:
                    raise
                return

    # to read

    async def _read_now(self, after: int, max_bytes: int) -> list[Record]:
        epoch = self._fence.epoch
        rows = await self._fence.evaluate(
            log_functions.READ, epoch, after, max(max_bytes, 1), RECORDS
        )
        return self._found(epoch, after, rows)

    async def _read_next(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait to be notified, for a time, then read."""
        if self._fence.seen.offset > after:  # appended here since it was last read
            seconds = min(seconds, _OWN)
        await self._database.pool.wait(seconds)
        return await self._read_now(after, max_bytes)

    def _found(self, epoch: str, after: int, rows: Sequence[Row]) -> list[Record]:
        """The records of a reply, behind an offset."""
        match rows[0][:5]:
            case ["found", int(last), int(last_time), int(newest), int()]:
                pass
            case ["trimmed", *_, int(trimmed)]:
                raise Trimmed(trimmed + 1)
            case _:
                raise self._fence.forked(epoch)
        if last == after:
            self._move(epoch, Seen(after, last_time, newest), at_end=True)
            return []
        records = self._follow(epoch, after, [row[5:] for row in rows[1:]])
        if not records:
            # Others than `trim` have removed some.
            oldest = rows[1][5] if len(rows) > 1 else last + 1
            assert isinstance(oldest, int)
            raise Trimmed(oldest)
        tail = records[-1]
        seen = Seen(tail.offset, tail.time, tail.first + tail.count - 1)
        self._move(epoch, seen, at_end=tail.offset == last)
        return records

    def _follow(self, epoch: str, after: int, rows: Sequence[Row]) -> list[Record]:
        """The records that follow an offset without a gap.

        Each is to be the next one to that before it, and the first to the tail.
        """
        known = self._tail.time if self._tail.offset == after else 0
        records: list[Record] = []
        for row in rows:
            # Each field is of one type, see `log_functions.READ`; a pattern that looks takes longer
            # than all else here.
            fields = cast("tuple[int, int, int, int, int, int, int, bytes, bytes]", row)
            offset, first, count, time, previous, tokens, serial, node, body = fields
            if offset != after + 1:
                break
            if known and previous != known:
                raise self._fence.forked(epoch)
            known, after = time, offset
            records.append(Record(offset, first, count, time, node.decode(), serial, body, tokens))
        return records

    async def close(self) -> None:
        self._database.pool.close()
        await trio.lowlevel.checkpoint()
