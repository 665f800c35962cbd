"""The database of a realm: statements in its schema, and the terms on which it is asked."""

from mist.engine.contract import EngineUnavailable
from mist.engine.postgres.connection import Row, Value
from mist.engine.postgres.errors import ServerError
from mist.engine.postgres.function import Function
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from mist.engine.postgres.schema import FIND_MISSING, FORMAT, FUNCTIONS, make_script, quoted

__all__ = ["Database"]

_FORBIDDEN = "42501"  # SQLSTATE


class Database:
    """See the module.

    Args:
        durable: whether what is acknowledged must be written, whatever the server is set to.

    Attributes:
        realm: its name.
        pool: of connections.
    """

    def __init__(self, location: Location, pool: Pool, *, durable: bool) -> None:
        self.realm = location.realm
        self.pool = pool
        self._location = location
        self._name = location.name
        self._schema = quoted(location.schema)
        self._durable = durable

    @property
    def terms(self) -> tuple[bool, str]:
        """The last arguments of each function that writes.

        A lock is waited for half as long as an answer is: nothing waits at the server whose caller
        has gone.
        """
        return self._durable, str(max(round(self._location.timeout * 500), 1))

    async def make(self) -> None:
        """Make what is missing of the realm.

        Raises:
            EngineUnavailable: also where the realm is of another format, or damaged.
        """
        try:
            if not await self._is_complete():
                await self._make()
        except ServerError as error:
            raise self.unavailable(str(error)) from None

    async def _is_complete(self) -> bool:
        names = [each.name for each in FUNCTIONS]
        ((has_head, found),) = await self.pool.ask(
            FIND_MISSING, f"{self._schema}.head", self._schema, " ".join(names)
        )
        if not has_head:
            return False
        rows = await self.ask("SELECT format FROM {schema}.head")
        if not rows:
            raise self.damaged()
        if rows[0][0] != FORMAT:
            raise EngineUnavailable(f"the realm {self.realm} is one of another version of mist")
        return found == len(names)

    def damaged(self) -> EngineUnavailable:
        """What to raise where tables are there, and the first row of them is not."""
        return EngineUnavailable(f"the realm {self.realm} is damaged: it has tables, but no head")

    async def _make(self) -> None:
        script = make_script(self._location)
        try:
            await self.pool.call(lambda connection, scope: connection.run(script, scope))
        except ServerError as error:
            if error.code != _FORBIDDEN:
                raise
            raise EngineUnavailable(
                f"the user may not create the realm at {self._name}; as an administrator, "
                f"CREATE SCHEMA {self._schema} AUTHORIZATION of that user"
            ) from None

    async def call(self, function: Function, *values: Value) -> list[Row]:
        """Call a function; see `ask`."""
        return await self.ask(function.call, *values)

    async def ask(self, statement: str, *values: Value) -> list[Row]:
        """Have a statement done in `{schema}`.

        Raises:
            EngineUnavailable: there is no answer.
            ServerError: it is an error.
        """
        return await self.pool.ask(statement.replace("{schema}", self._schema), *values)

    async def ask_anywhere(self, statement: str, *values: Value) -> list[Row]:
        """The same, of whichever log there is.

        Raises:
            EngineUnavailable: there is no answer, or it is an error.
        """
        try:
            return await self.ask(statement, *values)
        except ServerError as error:
            raise self.unavailable(str(error)) from None

    def standby(self) -> EngineUnavailable:
        """What to raise where the server is one that only follows another."""
        return self.unavailable("it is a standby")

    def unavailable(self, why: str) -> EngineUnavailable:
        """What to raise where the server does not do what it is asked."""
        return EngineUnavailable(f"PostgreSQL at {self._name}: {why}")
