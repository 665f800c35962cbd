"""`RedisTokens`: tokens that servers share, in a Redis; see `mist.auth.shared`, `token_scripts`."""

import math
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import hiredis
import trio

from mist.auth.shared import (
    KEPT_CHANGES,
    Changes,
    ForgottenVersion,
    SharedStore,
    Snapshot,
    StaleVersion,
    Update,
    Version,
    WrongKey,
)
from mist.engine.contract import EngineUnavailable
from mist.engine.redis import token_scripts
from mist.engine.redis.connection import Command, Reply
from mist.engine.redis.location import Location
from mist.engine.redis.opening import open_pool
from mist.engine.redis.pool import Pool
from mist.engine.redis.replication import SECONDS, Replication
from mist.engine.redis.replies import forgotten, reason
from mist.engine.redis.requirements import check_server
from mist.engine.redis.scripts import Script
from mist.errors import RegistryUnavailable, StartupError
from mist.history import Durability

__all__ = ["RedisTokens", "open_redis_tokens"]

_TIMEOUT: Final = 2.0  # seconds for a reply, at most: nobody logs in while one is missing
_CONNECT_TIMEOUT: Final = 1.0
_SCANNED: Final = 500  # tokens loaded in one step of Redis, which does nothing else meanwhile
_NEWS: Final = 1 << 20  # bytes of changes read in one step
_LOADS: Final = 3  # attempts, where so much is written that the first ones can't be completed
_HEAD: Final = struct.Struct(">32sI")  # of a change: digest, length of the value


class RedisTokens(SharedStore):
    """See the module. Made by `open_redis_tokens`.

    Args:
        replicas: that are to have what is written.
    """

    def __init__(self, location: Location, pool: Pool, replicas: int = 0) -> None:
        prefix = f"{{mist:{location.realm}}}:tokens"
        self._tokens, self._head, self._log = prefix, f"{prefix}:head", f"{prefix}:log"
        self._keys = (self._head, self._tokens, self._log)
        self._realm = location.realm
        self._name = location.name
        self._pool = pool
        self._replication = Replication(replicas, location.name)

    async def enter(self, fingerprint: bytes) -> None:
        reply = await self._run(
            token_scripts.ENTER,
            self._keys,
            token_scripts.FORMAT,
            fingerprint.hex(),
            secrets.token_hex(16),
        )
        match reply:
            case b"made" | b"known":
                pass
            case b"key":
                raise WrongKey
            case b"format":
                raise self._unavailable("are those of another version of mist")
            case _:
                raise self._unavailable("are damaged: they have no head")

    async def load(self) -> Snapshot:
        for _ in range(_LOADS):
            version = await self._version()
            values = await self._scan()
            # What was written meanwhile is in some of these values, and not in others.
            try:
                updates = await self.news(version)
            except ForgottenVersion:
                continue
            for update in updates:
                version = update.version
                for digest, value in update.changes.items():
                    if value is None:
                        values.pop(digest, None)
                    else:
                        values[digest] = value
            return Snapshot(version, values)
        raise self._unavailable("change too fast to be loaded")

    async def _version(self) -> Version:
        match await self._ask(("HMGET", self._head, "version", "write")):
            case [bytes(number), bytes(write)] if number.isdigit():
                return Version(int(number), write.decode("utf-8", "replace"))
            case _:
                raise self._unavailable("are not there any more")

    async def _scan(self) -> dict[bytes, bytes]:
        """All values; of a token that is changed meanwhile the old one, the new one, or none."""
        values: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            match await self._ask(("HSCAN", self._tokens, cursor, "COUNT", _SCANNED)):
                case [bytes(cursor), [*fields]]:
                    values |= zip(fields[::2], fields[1::2], strict=True)  # type: ignore[arg-type]
            if cursor == b"0":
                return values

    async def write(self, changes: Changes, after: Version, name: str) -> Version:
        reply = await self._run(
            token_scripts.WRITE,
            self._keys,
            after.number,
            after.write,
            name,
            KEPT_CHANGES,
            len(changes),
            _pack(changes),
            written=True,
        )
        match reply:
            case b"written":
                return Version(after.number + 1, name)
            case b"stale":
                raise StaleVersion
            case _:
                raise self._unavailable("are not there any more")

    async def news(self, after: Version, *, wait: float = 0.0) -> Sequence[Update]:
        if wait > 0:
            # One call: Redis looks for news once it has waited for them.
            milliseconds = math.ceil(wait * 1000)
            awaited = f"{after.number}-0"
            block = ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", self._log, awaited)
            updates, newest = await self._read(after, block, wait=wait)
        else:
            updates, newest = await self._read(after)
        while updates and updates[-1].version.number < newest:
            more, _ = await self._read(updates[-1].version)
            updates += more
        return updates

    async def _read(
        self, after: Version, *before: Command, wait: float = 0.0
    ) -> tuple[list[Update], int]:
        """Updates behind a version, as many as one step reads, and the number of the newest."""
        reply = await self._run(
            token_scripts.NEWS,
            (self._head, self._log),
            after.number,
            after.write,
            _NEWS,
            before=before,
            wait=wait,
        )
        match reply:
            case [bytes(newest), *fields]:
                pass
            case b"forgotten":
                raise ForgottenVersion
            case _:
                raise self._unavailable("are not there any more")
        try:
            return list(_updates(after.number, fields)), int(newest)
        except (ValueError, struct.error):
            # An entry that another program has made, or damaged: what it has changed isn't known.
            raise ForgottenVersion from None

    # asking

    async def _run(
        self,
        script: Script,
        keys: tuple[str, ...],
        *arguments: bytes | str | int,
        before: Sequence[Command] = (),
        wait: float = 0.0,
        written: bool = False,
    ) -> Reply:
        """Run a script.

        Args:
            before: done first, in the same call; what they reply is dropped, errors too.
            wait: see `Pool.call`.
            written: whether to wait for the replicas that are to have what it has written.
        """
        replicated = written and self._replication.replicas > 0

        def commands(whole: bool) -> list[Command]:
            own: list[Command] = [script.command(keys, *arguments, whole=whole)]
            if replicated:
                own += self._replication.commands(self._head, whole=whole)
            return own

        with _translated():
            seconds = SECONDS if replicated else 0.0
            sent = commands(False)
            replies = await self._pool.call(*before, *sent, wait=wait + seconds)
            replies = replies[len(before) :]
            if any(map(forgotten, replies)):
                replies = await self._pool.call(*commands(True), wait=seconds)
            reply = self._checked(replies[0])
            problem = self._replication.problem(replies[1:]) if replicated else None
            if problem is not None and reply == b"written":
                raise problem
            return reply

    async def _ask(self, command: Command) -> Reply:
        with _translated():
            (reply,) = await self._pool.call(command)
            return self._checked(reply)

    def _checked(self, reply: Reply) -> Reply:
        if isinstance(reply, hiredis.ReplyError):
            raise EngineUnavailable(f"{self._name}: {reason(reply)}")
        return reply

    def _unavailable(self, why: str) -> RegistryUnavailable:
        error = RegistryUnavailable()
        error.__cause__ = EngineUnavailable(f"the tokens of the realm {self._realm} {why}")
        return error

    async def aclose(self) -> None:
        await self._pool.close()
        await trio.lowlevel.checkpoint()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except EngineUnavailable as error:
        raise RegistryUnavailable from error.as_value()


def _pack(changes: Changes) -> bytes:
    return b"".join(
        [
            _HEAD.pack(digest, len(value or b"")) + (value or b"")
            for digest, value in changes.items()
        ]
    )


def _updates(number: int, fields: Sequence[Reply]) -> Iterator[Update]:
    """The updates behind a number.

    Args:
        fields: of each, the name of the write, and what it has changed.

    Raises:
        ValueError, struct.error: one of them can't be read.
    """
    for write, body in zip(fields[::2], fields[1::2], strict=True):
        if not isinstance(write, bytes) or not isinstance(body, bytes) or not write:
            raise ValueError("not an entry of this program")
        number += 1
        yield Update(Version(number, write.decode()), dict(_unpack(body)))


def _unpack(body: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    at = 0
    while at < len(body):
        digest, length = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        yield digest, body[at : at + length] or None
        at += length


async def open_redis_tokens(url: str, durability: Durability, replicas: int = 0) -> RedisTokens:
    """Connect to a Redis, and look whether it can keep tokens.

    Args:
        replicas: see `mist.engine.opening.open_engine`.

    Raises:
        StartupError: one line that says why not, without the password.
    """
    try:
        location = Location.parse(url)
        location = attrs.evolve(
            location,
            timeout=min(location.timeout, _TIMEOUT),
            connect_timeout=min(location.connect_timeout, _CONNECT_TIMEOUT),
        )
        pool = open_pool(location)
        try:
            await check_server(pool, location, durability)
        except BaseException:
            await pool.close()
            raise
    except StartupError as error:  # which takes it for that of an engine
        raise StartupError(f"token registry:{str(error).removeprefix('engine:')}") from None
    return RedisTokens(location, pool, replicas)
