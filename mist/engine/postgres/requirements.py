"""What a PostgreSQL has to be, and to be set to. Anything else is refused before it loses messages.

`synchronous_commit = off` is not refused but overridden, for each append by itself: whatever a
database, a user or a later change of the server's settings has it at, what is acknowledged is
written first.
"""

from typing import Final

from mist.engine.contract import EngineUnavailable
from mist.engine.postgres.errors import ServerError
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["check_server", "problem_of"]

_OLDEST: Final = 13  # the oldest that is maintained, or was not long ago

_ABOUT: Final = """
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'),
  current_setting('full_page_writes'), current_setting('default_transaction_read_only'),
  current_setting('default_transaction_isolation')
"""


async def check_server(pool: Pool, location: Location, durability: Durability) -> None:
    """Look whether a PostgreSQL can be the engine.

    Args:
        durability: that acknowledged messages are to have.

    Raises:
        StartupError: one line that says why not.
    """
    where = f"PostgreSQL at {location.name}"
    try:
        ((version, standby, *settings),) = await pool.call(
            lambda connection, scope: connection.ask(_ABOUT, (), scope)
        )
    except EngineUnavailable as error:
        raise StartupError(f"engine: {error}") from None
    except ServerError as error:
        raise StartupError(f"engine: {where}: {error}") from None
    fsync, full_page_writes, read_only, isolation = [str(each) for each in settings]
    problem = problem_of(
        str(version),
        standby=standby is True,
        fsync=fsync,
        full_page_writes=full_page_writes,
        read_only=read_only,
        isolation=isolation,
        durability=durability,
    )
    if problem:
        raise StartupError(f"engine: {where} {problem}")


def problem_of(
    version: str,
    *,
    standby: bool,
    fsync: str,
    full_page_writes: str,
    read_only: str,
    isolation: str,
    durability: Durability,
) -> str:
    """Why a server that is set so can't be the engine; empty where it can.

    Args:
        read_only, isolation: the defaults of transactions.
    """
    return (
        _wrong_version(version)
        or ("is a standby; name its primary" if standby else "")
        or _loses(fsync, full_page_writes, durability)
        or _wrong_defaults(read_only, isolation)
    )


def _wrong_version(version: str) -> str:
    major = version.partition(".")[0]
    digits = "".join([each for each in major if each.isdigit()])
    if int(digits or 0) < _OLDEST:
        return f"is version {version}; {_OLDEST} or later is needed"
    return ""


def _loses(fsync: str, full_pages: str, durability: Durability) -> str:
    if durability is Durability.NOTHING:
        return ""
    if fsync == "off":
        return f"does not write to its disk; durability {durability.value} needs fsync on"
    if full_pages == "off" and durability is Durability.POWER:
        return "may be damaged when power fails; set full_page_writes on, or durability to process"
    return ""


def _wrong_defaults(read_only: str, isolation: str) -> str:
    if read_only == "on":
        return "only reads for this user; set default_transaction_read_only off"
    if isolation != "read committed":
        return (
            f"isolates transactions as {isolation}; set default_transaction_isolation to "
            "read committed for this user"
        )
    return ""
