"""Opening a token registry by its URL: which member of the family its scheme names."""

from collections.abc import Iterable

import trio

from mist.auth import Record, TokenStore
from mist.auth.local import LocalRegistry
from mist.auth.registry import MAX_TAGS, Registry
from mist.errors import StartupError

__all__ = ["open_registry", "open_store"]


def _find(url: str) -> tuple[type[TokenStore], str]:
    scheme, separator, location = url.partition("://")
    match scheme.lower() if separator else "":
        # Imported here, so that a member's dependencies are needed only where it is used.
        case "memory":
            from mist.auth.memory import MemoryStore

            return MemoryStore, location
        case "sqlite":
            from mist.auth.sqlite import SqliteStore

            return SqliteStore, location
        case _:
            # Not the whole URL: that of a shared store may hold a password.
            raise StartupError(
                f"token registry: no such kind of URL: {scheme!r}; expected sqlite, memory, redis "
                "or postgresql"
                if separator
                else "token registry: not a URL; try sqlite:///tokens.db or memory://"
            )


def open_store(url: str) -> TokenStore:
    """Open the member of the family that `url`'s scheme names. Blocks.

    Raises:
        StartupError: an unknown scheme, or see `TokenStore.open`.
    """
    member, location = _find(url)
    return member.open(location)


async def open_registry(url: str, *, max_tags: int = MAX_TAGS) -> Registry:
    """Open a registry with all that its store holds. Close it with `aclose`.

    Args:
        url: where it is kept: `memory://`, `sqlite:///tokens.db`.
        max_tags: most tags that one token may get.

    Cancellation leaves nothing open.

    Raises:
        StartupError: one line that says why not: an unknown scheme, a directory that can't
            be written, a file that is damaged, in use, of another program or another version.
    """
    await trio.lowlevel.checkpoint()
    member, location = _find(url)

    def read() -> tuple[TokenStore, Iterable[Record]]:
        store = member.open(location)
        try:
            return store, store.load()
        except BaseException:
            store.close()
            raise

    # The last await: no cancellation can separate the open store from its owner.
    store, records = await trio.to_thread.run_sync(read) if member.blocking else read()
    return LocalRegistry(store, records, max_tags=max_tags)
