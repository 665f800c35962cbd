"""A node: a server's place at an engine, and its mirror of the engine's log."""

import secrets
from typing import Self

import attrs

from mist.engine.contract import Engine, EngineUnavailable, Standing
from mist.engine.opening import open_engine
from mist.errors import StartupError
from mist.history import Durability, History, Mirror
from mist.history.opening import open_mirror

__all__ = ["Node", "open_node"]


@attrs.frozen
class Node:
    """See the module. Made by `open_node`.

    Attributes:
        name: of this run of the server, as the engine knows it.
        engine: which it has entered.
        standing: of the engine's log then.
        history: the log that mirrors it.
        mirror: what arrives is applied to it.
    """

    name: str
    engine: Engine
    standing: Standing
    history: History
    mirror: Mirror

    async def close(self) -> None:
        """Close the mirror, and leave the engine."""
        try:
            await self.history.close()
        finally:
            await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def open_node(
    url: str, mirror_url: str, *, durability: Durability = Durability.POWER
) -> Node:
    """Enter an engine, and open the mirror of its log.

    Args:
        url, durability: of the engine; see `open_engine`.
        mirror_url: see `open_mirror`.

    Raises:
        StartupError: one line that says why not.
    """
    engine = await open_engine(url, durability=durability)
    try:
        name = random_name()
        try:
            standing = await engine.enter(name)
        except EngineUnavailable as error:
            raise StartupError(f"engine: {error}") from error
        history, mirror = await open_mirror(mirror_url, standing.epoch)
        try:
            _check(standing, mirror)
        except BaseException:
            await history.close()
            raise
    except BaseException:
        await engine.close()
        raise
    return Node(name, engine, standing, history, mirror)


def random_name() -> str:
    """A name that no node has had."""
    return secrets.token_hex(8)


def _check(standing: Standing, mirror: Mirror) -> None:
    if mirror.offset > standing.offset:
        raise StartupError("engine: it has lost what this node's mirror has; remove the mirror")
    if mirror.offset + 1 < standing.oldest:
        raise StartupError("engine: it keeps nothing any more of what this node's mirror lacks")
