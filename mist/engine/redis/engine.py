"""`RedisEngine`: an engine whose log is a stream in Redis; see the package."""

import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import hiredis
import trio

from mist.change import Change
from mist.engine.contract import (
    Ancestor,
    Checkpoint,
    Engine,
    EngineUnavailable,
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
from mist.engine.redis import scripts
from mist.engine.redis.connection import Reply
from mist.engine.redis.fence import RedisFence
from mist.engine.redis.location import Location
from mist.engine.redis.members import RedisMembers
from mist.engine.redis.pool import Pool
from mist.engine.redis.replies import says

__all__ = ["RedisEngine"]

_NODES: Final = 1_000  # known at a time; the longest silent is forgotten first
_SLICE: Final = 0.5  # seconds that Redis is asked to wait for a record, again and again
_RECORDS: Final = 500  # read at most in one step of Redis, which does nothing else meanwhile
_TRIMMED: Final = 1_000  # records let go in one step, for the same reason
_STAGED: Final = 2 * 86_400  # seconds
_REPLACED: Final = 600  # seconds for which parts of a checkpoint are kept that is replaced


class RedisEngine(Engine):
    """See the package. Made by `mist.engine.redis.opening.open_redis`."""

    def __init__(self, location: Location, pool: Pool) -> None:
        self._realm = location.realm
        self._pool = pool
        self._fence = fence = RedisFence(location, pool)
        self._keys = (fence.head, fence.log)
        self._all_keys = (*self._keys, fence.nodes)
        self._staged = f"{{mist:{location.realm}}}:staged:"
        self._once = f"{{mist:{location.realm}}}:once:"
        self._tail = Seen()  # the last record that was read
        self._at_end = False  # whether there was none behind that
        self._waiting = False  # whether a task waits for the next one
        self._news = Change()  # of that
        self._members = RedisMembers(location.realm, fence)

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
        await self._make(node)
        fence.node, fence.lost = node, ""
        with suppress(Forked):  # this enters the other one
            await fence.confirm(fence.run)
        standing = await self.standing()
        if standing.epoch != fence.epoch:
            fence.enter(standing.epoch)
            self._tail, self._at_end = Seen(), False
        return standing

    async def check(self) -> None:
        """Look whether the realm can be used, if it is there.

        Raises:
            EngineUnavailable: also where it is of another format, or damaged.
        """
        if await self._make():
            self._fence.enter((await self.standing()).epoch)

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
                _NODES,
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
                    _ancestors(ancestors),
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
            match await fence.evaluate(scripts.APPEND, (*self._all_keys, fence.tokens), *own):
                case [int(offset), int(first), int(time)]:
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
        await self._fence.run_anywhere(scripts.STAGE, (self._staged + batch,), part, body, _STAGED)

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
            own = (epoch, run, checkpoint.offset, str(checkpoint), before, _REPLACED)
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
            records = await self._wait(after, min(left, _SLICE))
            if records:
                return records

    async def _wait(self, after: int, seconds: float) -> list[Record]:
        """Wait for news, for a time; what there is may be among what is returned, or not.

        One task at a time asks Redis: any number may wait, and each would need a connection.
        """
        if self._waiting:
            with trio.move_on_after(seconds):
                await self._news.wait()
            return []
        self._waiting = True
        try:
            return await self._read_next(after, seconds)
        finally:
            self._waiting = False
            self._news.notify()

    async def _read_now(self, after: int, max_bytes: int) -> list[Record]:
        """What is there behind an offset."""
        epoch = self._fence.epoch
        reply = await self._fence.evaluate(
            scripts.READ, self._keys, epoch, after, max(max_bytes, 1), _RECORDS
        )
        match reply:
            case [int(oldest)]:
                raise Trimmed(oldest)
            case [int(offset), int(time), int(newest)]:
                # Nothing is behind it: it is the last.
                if offset == after:
                    self._move(epoch, Seen(after, time, newest), at_end=True)
                return []
            case [int(offset), int(_), int(_), *fields]:
                return self._follow(epoch, after, fields, offset)
            case _:
                raise self._fence.forked(epoch)

    async def _read_next(self, after: int, seconds: float) -> list[Record]:
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
            if not (isinstance(each, hiredis.ReplyError) and says(each, "NOSCRIPT")):
                self._fence.checked(each)
        offset = -1  # where it did not know the script
        match state:
            case [int(offset), int(_), int(_)] | [int(offset)]:
                pass
            case bytes():
                raise self._fence.forked(epoch)
        match found:
            case [[_, [[bytes(name), [bytes(header), bytes(body)]]]]]:
                if not name.startswith(b"%d-" % (after + 1)):
                    raise Trimmed(int(name.partition(b"-")[0]))
                return self._follow(epoch, after, [header, body], offset)
        if after == self._tail.offset:
            self._at_end = offset == after
        return []

    def _follow(self, epoch: str, after: int, fields: Sequence[Reply], offset: int) -> list[Record]:
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
        last = records[-1]
        seen = Seen(after, known, last.first + last.count - 1)
        self._move(epoch, seen, at_end=after == offset)
        return records

    def _move(self, epoch: str, tail: Seen, *, at_end: bool) -> None:
        if epoch == self._fence.epoch:
            self._tail, self._at_end = tail, at_end
            self._fence.note(epoch, tail)

    async def close(self) -> None:
        await self._pool.close()
        await trio.lowlevel.checkpoint()


def _ancestors(text: str) -> tuple[Ancestor, ...]:
    """The ancestors of a log, from the head's text: what a later one has lost, all before have."""
    found: list[Ancestor] = []
    for each in reversed(text.split(";") if text else ()):
        epoch, offset, newest = each.split(" ")
        own = Ancestor(epoch, int(offset), int(newest))
        if found:
            last = found[-1]
            own = Ancestor(epoch, min(own.offset, last.offset), min(own.newest, last.newest))
        found.append(own)
    return tuple(reversed(found))
