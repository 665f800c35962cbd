"""`PostgresTokens`: tokens that servers share, in a PostgreSQL; see `mist.auth.shared`.

token_head      the version, the write that made it, and the fingerprint of the key
token           values by digests
token_change    what each write has changed
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import attrs
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
from mist.engine.postgres.connection import Row, Value
from mist.engine.postgres.database import Database
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from mist.engine.postgres.requirements import check_server
from mist.engine.postgres.token_functions import ENTER_TOKENS, READ_TOKENS, WRITE_TOKENS
from mist.errors import RegistryUnavailable, StartupError
from mist.history import Durability

__all__ = ["PostgresTokens", "open_postgres_tokens"]

_TIMEOUT: Final = 2.0  # seconds for a reply, at most: nobody logs in while one is missing
_POLL: Final = 0.25  # seconds after which it is looked whether there are news, notified or not
_LOADED: Final = 1_000  # tokens at a time
_NEWS: Final = 1 << 20  # bytes of changes read at a time
_LOADS: Final = 3  # attempts, where so much is written that the first ones can't be completed

_VERSION: Final = "SELECT version, write FROM {schema}.token_head"
_PAGE: Final = "SELECT digest, value FROM {schema}.token WHERE digest > $1 ORDER BY digest LIMIT $2"


class PostgresTokens(SharedStore):
    """See the module. Made by `open_postgres_tokens`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: Version | None = None  # where it is known: there was none behind it

    async def enter(self, fingerprint: bytes) -> None:
        with _translated():
            await self._database.make()
        own = (fingerprint, secrets.token_hex(16))
        rows = await self._ask(ENTER_TOKENS.call, *own, *self._database.terms)
        if rows[0][0] == "key":
            raise WrongKey

    async def load(self) -> Snapshot:
        for _ in range(_LOADS):
            version = await self._version()
            values = await self._pages()
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
        match await self._ask(_VERSION):
            case [[int(number), str(write)]]:
                return Version(number, write)
            case _:
                raise self._unavailable("are not there any more")

    async def _pages(self) -> dict[bytes, bytes]:
        """All values; of a token that is changed meanwhile the old one, the new one, or none."""
        values: dict[bytes, bytes] = {}
        last, count = b"", _LOADED
        while count == _LOADED:
            rows = await self._ask(_PAGE, last, _LOADED)
            count = len(rows)
            for row in rows:
                match row:
                    case [bytes(last), bytes(value)]:
                        values[last] = value
        return values

    async def write(self, changes: Changes, after: Version, name: str) -> Version:
        own = (after.number, after.write, name, KEPT_CHANGES)
        both = (list(changes), list(changes.values()))
        rows = await self._ask(WRITE_TOKENS.call, *own, *both, *self._database.terms)
        match rows:
            case [["written"]]:
                return Version(after.number + 1, name)
            case [["stale"]]:
                raise StaleVersion
            case _:
                raise self._unavailable("are not there any more")

    async def news(self, after: Version, *, wait: float = 0.0) -> Sequence[Update]:
        give_up = trio.current_time() + wait
        if wait > 0 and after == self._newest:
            await self._wait(min(wait, _POLL))
        updates, newest = await self._read(after)
        while newest == after.number and (left := give_up - trio.current_time()) > 0:
            await self._wait(min(left, _POLL))
            updates, newest = await self._read(after)
        while updates and updates[-1].version.number < newest:
            more, _ = await self._read(updates[-1].version)
            updates += more
        return updates

    async def _wait(self, seconds: float) -> None:
        """Wait for a notification, for a time."""
        with _translated():
            await self._database.pool.wait(seconds)

    async def _read(self, after: Version) -> tuple[list[Update], int]:
        """Updates behind a version, as many as are read at a time, and the newest number."""
        (head, *rows) = await self._ask(READ_TOKENS.call, after.number, after.write, _NEWS)
        match head:
            case ["found", int(newest), *_]:
                pass
            case ["forgotten", *_]:
                raise ForgottenVersion
            case _:
                raise self._unavailable("are not there any more")
        updates = []
        for row in rows:
            match row:
                case [_, _, int(number), str(write), [*digests], [*values]]:
                    changes = dict(zip(digests, values, strict=True))
                    updates.append(Update(Version(number, write), cast(Changes, changes)))
        last = updates[-1].version if updates else after
        self._newest = last if last.number == newest else None
        return updates, newest

    async def _ask(self, statement: str, *values: Value) -> Sequence[Row]:
        with _translated():
            return await self._database.ask_anywhere(statement, *values)

    def _unavailable(self, why: str) -> RegistryUnavailable:
        error = RegistryUnavailable()
        error.__cause__ = EngineUnavailable(f"the tokens of the realm {self._database.realm} {why}")
        return error

    async def aclose(self) -> None:
        self._database.pool.close()
        await trio.lowlevel.checkpoint()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except EngineUnavailable as error:
        raise RegistryUnavailable from error.as_value()


async def open_postgres_tokens(url: str, durability: Durability) -> PostgresTokens:
    """Connect to a PostgreSQL, and look whether it can keep tokens.

    Raises:
        StartupError: one line that says why not, without the password.
    """
    try:
        location = Location.parse(url)
        location = attrs.evolve(location, timeout=min(location.timeout, _TIMEOUT))
        pool = Pool(location, location.token_channel)
        try:
            await check_server(pool, location, durability)
        except BaseException:
            pool.close()
            raise
    except StartupError as error:  # which takes it for that of an engine
        raise StartupError(f"token registry:{str(error).removeprefix('engine:')}") from None
    durable = durability is not Durability.NOTHING
    return PostgresTokens(Database(location, pool, durable=durable))
