"""`PostgresEngine`: an engine whose log is in the tables of a PostgreSQL; see the package."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

import trio

from mist.change import Change
from mist.engine.contract import (
    Ancestor,
    Checkpoint,
    Engine,
    Forked,
    Known,
    NotEntered,
    Placed,
    Record,
    Standing,
    Trimmed,
    check_record,
    check_size,
)
from mist.engine.fence import Seen
from mist.engine.members import Members
from mist.engine.postgres import epoch_functions, log_functions
from mist.engine.postgres.connection import Row
from mist.engine.postgres.database import Database
from mist.engine.postgres.errors import ServerError
from mist.engine.postgres.fence import PostgresFence
from mist.engine.postgres.members import PostgresMembers

__all__ = ["PostgresEngine"]

_NODES: Final = 1_000  # known at a time; the longest silent is forgotten first
_POLL: Final = 0.25  # seconds after which it is looked whether there is more, notified or not
_RECORDS: Final = 500  # read at most at a time
_DROP_WAIT: Final = "100"  # milliseconds for a table's lock, for which others wait behind
_STAGED: Final = 2 * 86_400  # seconds
_REPLACED: Final = 600  # seconds for which parts of a checkpoint are kept that is replaced
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


class PostgresEngine(Engine):
    """See the package. Made by `mist.engine.postgres.opening.open_postgres`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fence = PostgresFence(database)
        self._tail = Seen()  # the last record that was read
        self._at_end = False  # whether there was none behind that
        self._waiting = False  # whether a task waits for the next one
        self._news = Change()  # of that
        self._members = PostgresMembers(database.ask_anywhere)

    @property
    def members(self) -> Members:
        return self._members

    # to enter

    async def enter(self, node: str, known: Known | None = None) -> Standing:
        if not node:
            raise ValueError("a node has a name")
        fence = self._fence
        if known is not None:
            fence.claim(known)
        await self._make_known(node)
        fence.node, fence.lost = node, ""
        with suppress(Forked):  # this enters the other one
            await fence.confirm(fence.run)
        standing = await self.standing()
        if standing.epoch != fence.epoch:
            fence.enter(standing.epoch)
            self._tail, self._at_end = Seen(), False
        return standing

    async def _make_known(self, node: str) -> None:
        """Make a node known, and the realm where it isn't there."""
        fence = self._fence
        own = (node.encode(), secrets.token_hex(8), _NODES, fence.epoch, fence.seen.newest)
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
            raise self._fence.failed(error, self._fence.epoch) from None
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
                    _ancestors(ancestors),
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
                return Placed(offset, first)
            case _:
                raise NotEntered

    async def stage(self, batch: str, part: int, body: bytes) -> None:
        check_size(body)
        await self._database.ask_anywhere(
            log_functions.STAGE.call, batch.encode(), part, body, _STAGED, *self._database.terms
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
        own = (checkpoint.offset, str(checkpoint), _REPLACED, *self._database.terms)
        ((outcome,),) = await self._fence.evaluate(log_functions.CHECKPOINT, epoch, *own)
        return outcome == "made"

    async def trim(self, upto: int) -> None:
        try:
            ((done,),) = await self._database.call(log_functions.TRIM, upto, *self._database.terms)
            if not done:
                raise self._fence.forked(self._fence.epoch)
            await self._drop_segments()
        except ServerError as error:
            raise self._fence.failed(error, self._fence.epoch) from None

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

    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        give_up = trio.current_time() + wait
        while True:
            if wait <= 0 or not (self._at_end and after == self._tail.offset):
                records = await self._read_now(after, max_bytes)
                if records:
                    return records
            left = give_up - trio.current_time()
            if left <= 0:
                return []
            records = await self._wait(after, max_bytes, min(left, _POLL))
            if records:
                return records

    async def _wait(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait for news, for a time; what there is may be among what is returned, or not.

        One task at a time asks the server: any number may wait, and each would need a connection.
        """
        if self._waiting:
            with trio.move_on_after(seconds):
                await self._news.wait()
            return []
        self._waiting = True
        try:
            return await self._read_next(after, max_bytes, seconds)
        finally:
            self._waiting = False
            self._news.notify()

    async def _read_now(self, after: int, max_bytes: int) -> list[Record]:
        """What is there behind an offset."""
        epoch = self._fence.epoch
        rows = await self._fence.evaluate(
            log_functions.READ, epoch, after, max(max_bytes, 1), _RECORDS
        )
        return self._found(epoch, after, rows)

    async def _read_next(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait to be notified, for a time, then read."""
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

    def _move(self, epoch: str, tail: Seen, *, at_end: bool) -> None:
        if epoch == self._fence.epoch:
            self._tail, self._at_end = tail, at_end
            self._fence.note(epoch, tail)

    async def close(self) -> None:
        self._database.pool.close()
        await trio.lowlevel.checkpoint()


def _ancestors(text: str) -> tuple[Ancestor, ...]:
    found = [each.split(" ") for each in text.split(";") if each]
    return tuple([Ancestor(epoch, int(offset), int(newest)) for epoch, offset, newest in found])
