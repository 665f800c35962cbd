"""Opening a token registry by its URL, also one that several servers share."""

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from mist.auth.key import read_key_file
from mist.auth.opening import open_registry
from mist.auth.registry import MAX_TAGS, Registry
from mist.engine.redis import SCHEMES
from mist.errors import StartupError
from mist.history import Durability

if TYPE_CHECKING:
    from mist.auth.shared import SharedStore

__all__ = ["open_shared_store", "open_tokens"]


async def open_shared_store(
    url: str, *, durability: Durability = Durability.POWER, replicas: int = 0
) -> "SharedStore | None":
    """Open the store that `url` names; None where it names none that servers share.

    Args:
        url, durability, replicas: see `open_tokens`.

    Raises:
        StartupError: one line that says why not, without the URL's password.
    """
    scheme, _, location = url.partition("://")
    match scheme.lower():
        # Imported here, so that a member's dependencies are needed only where it is used; and what
        # servers share, only where they do.
        case "memory" if location:
            from mist.auth.shared_memory import SharedMemoryStore, shared_memory

            return SharedMemoryStore(shared_memory(location))
        case redis if redis in SCHEMES:
            try:
                from mist.engine.redis.tokens import open_redis_tokens
            except ImportError as error:  # hiredis
                raise StartupError(
                    f"token registry: {error.name} is missing; pip install 'mist-pubsub[redis]'"
                ) from error
            return await open_redis_tokens(url, durability, replicas)
        case "postgresql" | "postgres":
            try:
                from mist.engine.postgres.tokens import open_postgres_tokens
            except ImportError as error:  # psycopg; or libpq, without its binary package
                raise StartupError(
                    "token registry: psycopg is missing; pip install 'mist-pubsub[postgres]'"
                ) from error
            return await open_postgres_tokens(url, durability)
        case _:
            return None


async def open_tokens(
    url: str,
    *,
    key_file: Path | None = None,
    max_tags: int = MAX_TAGS,
    durability: Durability = Durability.POWER,
    replicas: int = 0,
) -> Registry:
    """Open a registry with all that its store holds. Close it with `aclose`.

    Args:
        url: of a shared store: `memory://NAME`, or that of a Redis or PostgreSQL as for an engine;
            or else as for `open_registry`.
        key_file: that all servers of a shared store have; `memory://NAME` does without.
        max_tags: most tags that one token may get.
        durability: that a shared store must be set to, at least. `memory://` has none.
        replicas: of a Redis, that have a change before it is acknowledged.

    Raises:
        StartupError: one line that says why not, without the URL's password.
    """
    key = None if key_file is None else await trio.to_thread.run_sync(read_key_file, key_file)
    store = await open_shared_store(url, durability=durability, replicas=replicas)
    if store is None:
        return await open_registry(url, max_tags=max_tags)
    from mist.auth.shared_memory import SharedMemoryStore
    from mist.auth.shared_registry import SharedRegistry

    if key is None and isinstance(store, SharedMemoryStore):
        key = store.key
    if key is None:
        await store.aclose()
        raise StartupError("token registry: servers that share their tokens need a key file")
    return await SharedRegistry.open(store, key, max_tags=max_tags)
