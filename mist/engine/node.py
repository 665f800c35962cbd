"""A node: a server's place at an engine, and its mirror of the engine's log."""

import logging
import secrets
from typing import Final, Self

import attrs

from mist.engine.contract import Engine, EngineUnavailable, Known, Standing, Trimmed
from mist.engine.opening import open_engine
from mist.errors import HistoryUnavailable, MistError, StartupError
from mist.history import Durability, History, Mirror
from mist.history.opening import open_mirror

__all__ = ["Node", "open_node", "random_name"]

log = logging.getLogger("mist.engine")

_TRIES: Final = 5  # to begin at a place that is trimmed meanwhile


@attrs.define(eq=False)
class Node:
    """See the module. Made by `open_node`.

    Attributes:
        engine: which it has entered.
        history: the log that mirrors the engine's.
        mirror: what arrives is applied to it.
        name: of this run of the server, as the engine knows it.
        standing: of the engine's log when it was entered last.
        lost: ids of the mirror that the engine has lost, since the start.
        overtaken: how often the engine had trimmed what the mirror lacked, since the start.
    """

    engine: Engine
    history: History
    mirror: Mirror
    name: str = ""
    standing: Standing = attrs.field(default=Standing("", 0, 0, 1))
    lost: int = 0
    overtaken: int = 0

    async def enter(self) -> None:
        """Enter the engine, under a name that no node has had, and bring the mirror in line.

        A mirror that has what the engine lost, or lacks what it has trimmed, begins anew. Cutting
        back to the fork would not do: what the lost records have replaced, such as channels' last
        messages and writers' last batches, is not known any more.

        Raises:
            EngineUnavailable, HistoryUnavailable: ask again.
        """
        mirror = self.mirror
        known = Known(mirror.epoch, mirror.offset, mirror.newest) if mirror.epoch else None
        name = random_name()
        standing = await self.engine.enter(name, known)
        ancestors = {each.epoch: each.newest for each in standing.ancestors}
        if known is None:
            await mirror.begin_anew(standing.epoch, ancestors, *await self._oldest(standing))
        elif not standing.shares(known):
            lost = known.newest - ancestors.get(known.epoch, 0)
            log.error("the engine has lost messages", extra={"epoch": standing.epoch, "lost": lost})
            await mirror.begin_anew(standing.epoch, ancestors, *await self._oldest(standing))
            self.lost += lost
        elif known.offset + 1 < standing.oldest:
            log.error("the engine has trimmed what this node has not read yet")
            await mirror.begin_anew(standing.epoch, ancestors, *await self._oldest(standing))
            self.overtaken += 1
        else:
            await mirror.go_on(standing.epoch, ancestors)
        self.name, self.standing = name, standing

    async def _oldest(self, standing: Standing) -> tuple[int, int]:
        """The offset before the first record that is kept, and the highest id up to there."""
        for _ in range(_TRIES):
            if standing.oldest == 1:
                return 0, 0
            if standing.oldest > standing.offset:
                return standing.offset, standing.newest
            try:
                records = await self.engine.read(standing.oldest - 1, max_bytes=1)
            except Trimmed:
                standing = await self.engine.standing()
            else:
                return standing.oldest - 1, records[0].first - 1
        raise EngineUnavailable("the engine trims its log all the time")

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
        history, mirror = await open_mirror(mirror_url)
    except BaseException:
        await engine.close()
        raise
    node = Node(engine, history, mirror)
    try:
        await node.enter()
    except BaseException as error:
        await node.close()
        if isinstance(error, HistoryUnavailable):
            raise StartupError(f"history: {error}") from error
        if isinstance(error, MistError) and not isinstance(error, StartupError):
            raise StartupError(f"engine: {error}") from error
        raise
    return node


def random_name() -> str:
    """A name that no node has had."""
    return secrets.token_hex(8)
