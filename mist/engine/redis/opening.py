"""Opening the engine in a Redis."""

import ssl

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.engine import RedisEngine
from mist.engine.redis.location import Location
from mist.engine.redis.pool import Pool
from mist.engine.redis.requirements import check_server
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["open_redis", "tls_context"]


async def open_redis(url: str, durability: Durability) -> RedisEngine:
    """Connect to a Redis, look whether it can be used.

    Raises:
        StartupError: one line that says why not, without the password.
    """
    location = Location.parse(url)
    pool = Pool(location, tls_context(location))
    try:
        await check_server(pool, location, durability)
        engine = RedisEngine(location, pool)
        await engine.check()
    except EngineUnavailable as error:
        await pool.close()
        raise StartupError(f"engine: {error}") from None
    except BaseException:
        await pool.close()
        raise
    return engine


def tls_context(location: Location) -> ssl.SSLContext | None:
    """For the connections to a Redis; None where they are without TLS.

    Raises:
        StartupError: there are no certificates in the file that it names.
    """
    if not location.tls:
        return None
    try:
        return ssl.create_default_context(cafile=location.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"engine: {location.ca}: {error.strerror or 'no certificates'}"
        ) from None
