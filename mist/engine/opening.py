"""Opening an engine by its URL: which member of the family its scheme names."""

from mist.engine.contract import Engine
from mist.engine.redis import SCHEMES
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["open_engine"]


async def open_engine(
    url: str, *, durability: Durability = Durability.POWER, replicas: int = 0
) -> Engine:
    """Open the engine that `url` names. Close it after use.

    Args:
        url: `memory://`, `memory://NAME`; `redis://[[user]:password@]host[:port][/database]`,
            `redis+sentinel://…/MASTER`, `redis+cluster://…`, each as `rediss` with TLS (see
            `mist.engine.redis.location`); or
            `postgresql://[user[:password]@]host[:port][/database]`; those with options, such as
            `?realm=NAME`.
        durability: that the engine must be set to, at least. `memory://` has none.
        replicas: of a Redis, that have a record before it is acknowledged, or read. Where there are
            fewer, calls are refused as if the engine was not there.

    Raises:
        StartupError: one line that says why not, without the URL's password.
    """
    scheme, separator, location = url.partition("://")
    kind = scheme.lower() if separator else ""
    if replicas and kind not in SCHEMES:
        raise StartupError("engine: how many replicas to wait for is a setting for Redis only")
    match kind:
        # Imported here, so that a member's dependencies are needed only where it is used.
        case "memory":
            from mist.engine.memory import open_memory

            return await open_memory(location)
        case _ if kind in SCHEMES:
            try:
                from mist.engine.redis.opening import open_redis
            except ImportError as error:  # hiredis
                raise StartupError(
                    f"engine: {error.name} is missing; pip install 'mist-pubsub[redis]'"
                ) from error
            return await open_redis(url, durability, replicas)
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
