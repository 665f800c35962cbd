"""Opening an engine by its URL: which member of the family its scheme names."""

from mist.engine.contract import Engine
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["open_engine"]


async def open_engine(url: str, *, durability: Durability = Durability.POWER) -> Engine:
    """Open the engine that `url` names. Close it after use.

    Args:
        url: `memory://`, `memory://NAME`, `redis://[[user]:password@]host[:port][/database]`,
            `rediss://` with TLS, or `postgresql://[user[:password]@]host[:port][/database]`; those
            with options, such as `?realm=NAME`.
        durability: that the engine must be set to, at least. `memory://` has none.

    Raises:
        StartupError: one line that says why not, without the URL's password.
    """
    scheme, separator, location = url.partition("://")
    match scheme.lower() if separator else "":
        # Imported here, so that a member's dependencies are needed only where it is used.
        case "memory":
            from mist.engine.memory import open_memory

            return await open_memory(location)
        case "redis" | "rediss":
            try:
                from mist.engine.redis.opening import open_redis
            except ImportError as error:  # hiredis
                raise StartupError(
                    f"engine: {error.name} is missing; pip install 'mist-pubsub[redis]'"
                ) from error
            return await open_redis(url, durability)
        case "postgresql" | "postgres":
            try:
                from mist.engine.postgres.opening import open_postgres
            except ImportError as error:  # psycopg; or libpq, without its binary package
                raise StartupError(
                    "engine: psycopg is missing; pip install 'mist-pubsub[postgres]'"
                ) from error
            return await open_postgres(url, durability)
        case _:
            # Not the whole URL, which may hold a password.
            raise StartupError(
                f"engine: no such kind of URL: {scheme!r}"
                if separator
                else "engine: not a URL; try memory://"
            )
