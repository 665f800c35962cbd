"""Opening the engine in a Redis."""

import ssl

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.cluster import ClusterDiscovery
from mist.engine.redis.engine import RedisEngine
from mist.engine.redis.location import Location
from mist.engine.redis.pool import Pool
from mist.engine.redis.requirements import check_replicas, check_server
from mist.engine.redis.sentinel import SentinelDiscovery
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["open_pool", "open_redis"]


async def open_redis(url: str, durability: Durability, replicas: int = 0) -> RedisEngine:
    """Connect to a Redis, look whether it can be used.

    Args:
        replicas: see `mist.engine.opening.open_engine`.

    Raises:
        StartupError: one line that says why not, without the password.
    """
    location = Location.parse(url)
    pool = open_pool(location)
    try:
        await check_server(pool, location, durability)
        engine = RedisEngine(location, pool, replicas)
        known = await engine.check()
        await check_replicas(pool, location, replicas, new=not known)
    except EngineUnavailable as error:
        await pool.close()
        raise StartupError(f"engine: {error}") from None
    except BaseException:
        await pool.close()
        raise
    return engine


def open_pool(location: Location) -> Pool:
    """Connections to a Redis, none of which is open yet.

    Raises:
        StartupError: there are no certificates in the file that it names.
    """
    context = _tls_context(location)
    match location.kind:
        case "sentinel":
            return Pool(location, context, SentinelDiscovery(location, context))
        case "cluster":
            return Pool(location, context, ClusterDiscovery(location, context))
        case _:
            return Pool(location, context)


def _tls_context(location: Location) -> ssl.SSLContext | None:
    """For the connections to a Redis; None where they are without TLS."""
    if not location.tls:
        return None
    try:
        return ssl.create_default_context(cafile=location.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"engine: {location.ca}: {error.strerror or 'no certificates'}"
        ) from None
