"""Opening an engine by its URL: which member of the family its scheme names."""

from mist.engine.contract import Engine
from mist.errors import StartupError

__all__ = ["open_engine"]


async def open_engine(url: str) -> Engine:
    """Open the engine that `url` names. Close it after use.

    Args:
        url: `memory://`, `memory://NAME`.

    Raises:
        StartupError: one line that says why not.
    """
    scheme, separator, location = url.partition("://")
    match scheme.lower() if separator else "":
        case "memory":
            from mist.engine.memory import open_memory

            return await open_memory(location)
        case _:
            # Not the whole URL, which may hold a password.
            raise StartupError(
                f"engine: no such kind of URL: {scheme!r}"
                if separator
                else "engine: not a URL; try memory://"
            )
