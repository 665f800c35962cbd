"""A function of PostgreSQL, in the schema of a realm.

Its name ends with a digest of its source, so that nodes of different versions, as there are in a
rolling upgrade, each call what they were written for.
"""

import hashlib
from functools import cached_property
from typing import Final

import attrs

__all__ = ["BEGIN_PARAMETERS", "Function", "fill"]

BEGIN_PARAMETERS: Final = "p_durable boolean, p_wait text"
"""Of what begins with `{BEGIN}`."""

_SCHEMA: Final = "{schema}"


@attrs.frozen
class Function:
    """A function.

    Attributes:
        parameters: as they are declared, input first.
        arguments: number of those that are given to it.
        body: with `{schema}`, `{channel}`, `{token_channel}` and the names of `_PARTS` in braces,
            and with the kinds of `uses` in braces and in capitals.
        uses: the functions that it calls.
    """

    kind: str
    parameters: str
    arguments: int
    body: str = attrs.field(repr=False)
    returns: str = ""
    volatility: str = "VOLATILE"
    uses: "tuple[Function, ...]" = ()

    @cached_property
    def name(self) -> str:
        """Its name in a schema."""
        digest = hashlib.sha256(self._declaration.encode()).hexdigest()
        return f"{self.kind}_{digest[:16]}"

    @property
    def source(self) -> str:
        """The statement that makes it, in `{schema}`."""
        return f"CREATE FUNCTION {_SCHEMA}.{self.name}{self._declaration}"

    @property
    def _declaration(self) -> str:
        body = fill(self.body)
        for each in self.uses:
            body = body.replace(f"{{{each.kind.upper()}}}", each.name)
        return (
            f"({self.parameters}) {self.returns} LANGUAGE plpgsql {self.volatility} "
            f"AS $function${body}$function$"
        )

    @cached_property
    def call(self) -> str:
        """The statement that calls it, in `{schema}`."""
        numbers = ", ".join([f"${number}" for number in range(1, self.arguments + 1)])
        return f"SELECT * FROM {_SCHEMA}.{self.name}({numbers})"  # noqa: S608


def fill(statement: str) -> str:
    """A statement in which the names of `_PARTS` are replaced by what they stand for."""
    for name, part in _PARTS.items():
        statement = statement.replace(f"{{{name}}}", part)
    return statement


# Names a process of a server, and the history of its data: those of a standby that becomes the
# primary are others.
_RUN: Final = """(
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || '-'
      || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
  )"""

# Microseconds of the server's clock.
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# Nothing waits at the server for longer than for its caller; and what is written is kept, whatever
# the server, the database or the user has `synchronous_commit` set to.
_BEGIN: Final = """
  PERFORM set_config('lock_timeout', p_wait, true);
  IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
"""

_PARTS: Final = {  # in the order in which they are replaced
    "BEGIN": _BEGIN,
    "RUN": _RUN,
    "NOW": _NOW,
}
