"""`RedisEngine`: an engine whose log is a stream in Redis; see the package."""

import math
import secrets
from collections.abc import Sequence
from typing import Final

import trio

from mist.engine.contract import (
    Checkpoint,
    EngineUnavailable,
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
from mist.engine.redis import scripts
from mist.engine.redis.connection import Reply
from mist.engine.redis.fence import RedisFence
from mist.engine.redis.location import Location
from mist.engine.redis.members import RedisMembers
from mist.engine.redis.pool import Pool
from mist.engine.redis.replies import forgotten

__all__ = ["RedisEngine"]

_TRIMMED: Final = 1_000  # records let go in one step, for the same reason


class RedisEngine(FencedEngine[RedisFence]):
    """See the package. Made by `mist.engine.redis.opening.open_redis`.

    Args:
        replicas: that are to have what is appended, and what is read.
    """

    slice = 0.5

    def __init__(self, location: Location, pool: Pool, replicas: int = 0) -> None:
        self._realm = location.realm
        self._pool = pool
        self._replicas = replicas
        fence = RedisFence(location, pool, replicas)
        super().__init__(fence)
        self._keys = (fence.head, fence.log)
        self._all_keys = (*self._keys, fence.nodes)
        self._staged = f"{{mist:{location.realm}}}:staged:"
        self._once = f"{{mist:{location.realm}}}:once:"
        self._members = RedisMembers(location.realm, fence)
        self._replicated = "", 0  # an epoch, and how far it is known that replicas have it

    @property
    def members(self) -> Members:
        return self._members

    # to enter

    async def check(self) -> bool:
        """Look whether the realm can be used, if it is there.

        Returns:
            Whether it is.

        Raises:
            EngineUnavailable: also where it is of another format, or damaged.
        """
        known = await self._make()
        if known:
            self._fence.enter((await self.standing()).epoch)
        return known

    async def _make_known(self, node: str) -> None:
        await self._make(node)

    async def _make(self, node: str = "") -> bool:
        """Make a node known, and the realm where it isn't there; or look whether it is."""
        fence = self._fence
        reply = await fence.anywhere(
            scripts.ENTER,
            self._all_keys,
            lambda run: (
                node,
                secrets.token_hex(8),
                scripts.FORMAT,
                NODES,
                run,
                fence.epoch,
                fence.seen.newest,
            ),
        )
        if reply == b"format":
            raise EngineUnavailable(f"the realm {self._realm} is one of another version of mist")
        if reply == b"headless":
            raise EngineUnavailable(
                f"the realm {self._realm} is damaged: it has a log, but no head"
            )
        return reply == b"entered"

    async def standing(self) -> Standing:
        fields = ("epoch", "newest", "offset", "trimmed", "ancestors")
        later = ("time", "appended", "checkpoint")
        reply = await self._fence.ask_anywhere("HMGET", self._fence.head, *fields, *later)
        match reply:
            case [*values] if all(isinstance(each, bytes) for each in values):
                epoch, newest, offset, trimmed, ancestors, time, appended, checkpoint = [
                    each.decode() for each in values if isinstance(each, bytes)
                ]
                return Standing(
                    epoch,
                    int(newest),
                    int(offset),
                    int(trimmed) + 1,
                    parse_ancestors(ancestors),
                    int(time),
                    int(appended),
                    Checkpoint.parse(checkpoint),
                )
            case [None, *_]:
                raise self._fence.forked(self._fence.epoch)
            case _:
                raise EngineUnavailable(
                    f"the realm {self._realm} is damaged: its head lacks fields"
                )

    # to write

    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        check_record(body, count)
        if epoch != self._fence.epoch:
            await trio.lowlevel.checkpoint()
            raise Forked
        fence = self._fence
        while True:
            seen, run = fence.seen, fence.run
            own = (epoch, seen.offset, seen.time, node, serial, count, body, run)
            keys, problem = (*self._all_keys, fence.tokens), None
            if self._replicas:
                known = self._known(epoch)
                reply, problem = await fence.write(scripts.APPEND, keys, *own, known=known)
            else:
                reply = await fence.evaluate(scripts.APPEND, keys, *own)
            match reply:
                case [int(_), int(_), int(_)] if problem is not None:
                    raise problem
                case [int(offset), int(first), int(time)]:
                    if self._replicas:
                        self._note_replicated(epoch, offset)
                    fence.note(epoch, Seen(offset, time, first + count - 1))
                    return Placed(offset, first)
                case b"unknown":
                    raise NotEntered
                case b"unconfirmed":
                    # Another process, or one that has taken over the log of another.
                    await fence.confirm(run)
                case _:
                    raise fence.forked(epoch)

    async def stage(self, batch: str, part: int, body: bytes) -> None:
        check_size(body)
        await self._fence.run_anywhere(scripts.STAGE, (self._staged + batch,), part, body, STAGED)

    async def staged(self, batch: str, part: int) -> bytes | None:
        reply = await self._fence.ask_anywhere("HGET", self._staged + batch, part)
        return reply if isinstance(reply, bytes) else None

    async def discard(self, batch: str) -> None:
        await self._fence.ask_anywhere("UNLINK", self._staged + batch)

    async def put_once(self, name: str, value: bytes, seconds: float) -> None:
        terms = ("PX", round(seconds * 1000), "NX")
        await self._fence.ask_anywhere("SET", self._once + name, value, *terms)

    async def take(self, name: str) -> bytes | None:
        reply = await self._fence.ask_anywhere("GETDEL", self._once + name)
        return reply if isinstance(reply, bytes) else None

    async def checkpoint(self, checkpoint: Checkpoint, epoch: str) -> bool:
        fence = self._fence
        before = ""
        while True:
            run = fence.run
            own = (epoch, run, checkpoint.offset, str(checkpoint), before, REPLACED)
            # All keys of a script are named to it.
            names = (checkpoint.name, before.partition(" ")[0])
            keys = (fence.head, *[self._staged + each for each in names])
            match await fence.evaluate(scripts.CHECKPOINT, keys, *own):
                case int(done):
                    return done == 1
                case b"unconfirmed":
                    await fence.confirm(run)
                case b"forked":
                    raise fence.forked(epoch)
                case bytes(another):
                    before = another.decode()

    async def trim(self, upto: int) -> None:
        done, wanted = 0, 1
        while done < wanted:
            reply = await self._fence.run_anywhere(scripts.TRIM, self._keys, upto, _TRIMMED)
            match reply:
                case [int(done), int(wanted)]:
                    pass
                case _:
                    raise self._fence.forked(self._fence.epoch)

    # replicas

    def _known(self, epoch: str) -> int:
        """How far it is known that replicas have the log of an epoch."""
        of, offset = self._replicated
        return offset if of == epoch else 0

    def _note_replicated(self, epoch: str, offset: int) -> None:
        self._replicated = epoch, max(offset, self._known(epoch))

    async def _replicated_of(self, epoch: str, records: list[Record]) -> list[Record]:
        """The first of these records, those that replicas have; they are waited for, if need be.

        What is read is delivered: a failover must not take it back.
        """
        known, last = self._known(epoch), records[-1].offset
        if last <= known:
            return records
        if records[0].offset <= known:
            return [each for each in records if each.offset <= known]
        run = self._fence.run
        await self._fence.replicate(known)
        if self._fence.run != run:
            # What was waited for is in another process. These are of one that has the log no more.
            raise EngineUnavailable("another process has the log by now")
        self._note_replicated(epoch, last)
        return records

    # to read

    async def _read_now(self, after: int, max_bytes: int) -> list[Record]:
        epoch = self._fence.epoch
        reply = await self._fence.evaluate(
            scripts.READ, self._keys, epoch, after, max(max_bytes, 1), RECORDS
        )
        match reply:
            case [int(oldest)]:
                raise Trimmed(oldest)
            case [int(offset), int(time), int(newest), int(_)]:
                # Nothing is behind it: it is the last.
                if offset == after:
                    self._move(epoch, Seen(after, time, newest), at_end=True)
                return []
            case [int(offset), int(_), int(_), int(replicated), *fields]:
                if self._replicas:
                    self._note_replicated(epoch, replicated)
                return await self._follow(epoch, after, fields, offset)
            case _:
                raise self._fence.forked(epoch)

    async def _read_next(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait for the record behind the last one, for a time."""
        epoch = self._fence.epoch
        # The second tells, in the same round trip, whether it is still the same log, and whether
        # there is more in it. One record, since any may be of megabytes.
        block = math.ceil(seconds * 1000)
        found, state = await self._fence.call(
            ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", self._fence.log, after),
            scripts.READ.command(self._keys, epoch, after, 0, 0),
            wait=seconds,
        )
        for each in (found, state):
            if not forgotten(each):
                self._fence.checked(each)
        offset = -1  # where it did not know the script
        match state:
            case [int(offset), int(_), int(_), int(_)] | [int(offset)]:
                pass
            case bytes():
                raise self._fence.forked(epoch)
        match found:
            case [[_, [[bytes(name), [bytes(header), bytes(body)]]]]]:
                if not name.startswith(b"%d-" % (after + 1)):
                    raise Trimmed(int(name.partition(b"-")[0]))
                return await self._follow(epoch, after, [header, body], offset)
        if after == self._tail.offset:
            self._at_end = offset == after
        return []

    async def _follow(
        self, epoch: str, after: int, fields: Sequence[Reply], offset: int
    ) -> list[Record]:
        """Those records, where each is the next one to that before it, and the first to the tail.

        Args:
            fields: of each record, the header and the body.
            offset: of the last one in the log.
        """
        known = self._tail.time if self._tail.offset == after else 0
        records: list[Record] = []
        for header, body in zip(fields[::2], fields[1::2], strict=True):
            assert isinstance(header, bytes)
            assert isinstance(body, bytes)
            first, count, time, previous, tokens, serial, node = header.decode().split(" ", 6)
            if known and int(previous) != known:
                raise self._fence.forked(epoch)
            known = int(time)
            after += 1
            records.append(
                Record(after, int(first), int(count), known, node, int(serial), body, int(tokens))
            )
        if self._replicas:
            records = await self._replicated_of(epoch, records)
        last = records[-1]
        seen = Seen(last.offset, last.time, last.first + last.count - 1)
        self._move(epoch, seen, at_end=last.offset == offset)
        return records

    async def close(self) -> None:
        await self._pool.close()
        await trio.lowlevel.checkpoint()
