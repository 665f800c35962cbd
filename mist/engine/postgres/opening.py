"""Opening the engine in a PostgreSQL."""

from mist.engine.contract import EngineUnavailable
from mist.engine.postgres.database import Database
from mist.engine.postgres.engine import PostgresEngine
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from mist.engine.postgres.requirements import check_server
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["open_postgres"]


async def open_postgres(url: str, durability: Durability) -> PostgresEngine:
    """Connect to a PostgreSQL, look whether it can be used, and make the realm if it isn't there.

    Raises:
        StartupError: one line that says why not, without the password.
    """
    location = Location.parse(url)
    pool = Pool(location, location.schema)
    try:
        await check_server(pool, location, durability)
        durable = durability is not Durability.NOTHING
        engine = PostgresEngine(Database(location, pool, durable=durable))
        await engine.check()
    except EngineUnavailable as error:
        pool.close()
        raise StartupError(f"engine: {error}") from None
    except BaseException:
        pool.close()
        raise
    return engine
