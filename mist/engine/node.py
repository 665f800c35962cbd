"""A node: a server's place at an engine, and its mirror of the engine's log."""

import logging
import secrets
from collections import deque
from contextlib import suppress
from typing import Final, Self

import attrs

from mist.engine.contract import (
    Checkpoint,
    Engine,
    EngineUnavailable,
    Known,
    Standing,
    Trimmed,
)
from mist.engine.opening import open_engine
from mist.errors import HistoryUnavailable, MistError, StartupError
from mist.history import Durability, History
from mist.history.mirroring import Mirror
from mist.history.opening import open_mirror

__all__ = ["Node", "open_node", "random_name"]

log = logging.getLogger("mist.engine")

_BATCHES: Final = 1_000
_TRIES: Final = 5  # to begin at a place that is trimmed meanwhile


class _Replaced(Exception):
    """Parts of a checkpoint are gone, since there is another one."""


@attrs.define(eq=False)
class Node:
    """See the module. Made by `open_node`.

    Attributes:
        engine: which it has entered.
        history: the log that mirrors the engine's.
        mirror: what arrives is applied to it.
        name: of this run of the server, as the engine knows it.
        standing: of the engine's log when it was entered last.
        lost: messages of the mirror that the engine has lost, since the start.
        batches: offset and name of the batches that came last: their parts may still be staged.
        overtaken: how often the engine had trimmed what the mirror lacked, since the start.
    """

    engine: Engine
    history: History
    mirror: Mirror
    name: str = ""
    standing: Standing = attrs.field(default=Standing("", 0, 0, 1))
    lost: int = 0
    overtaken: int = 0
    batches: deque[tuple[int, str]] = attrs.field(factory=lambda: deque(maxlen=_BATCHES))
    _next_name: str = attrs.field(default="", init=False)
    _told: Known | None = attrs.field(default=None, init=False)  # of which the log has told

    async def enter(self, *, anew: bool = False) -> None:
        """Enter the engine, under a name that no node has had, and bring the mirror in line.

        A mirror that has what the engine lost, or lacks what it has trimmed, begins anew. Cutting
        back to the fork would not do: what the lost records have replaced, such as channels' last
        messages and writers' last batches, is not known any more.

        Args:
            anew: whether the mirror begins anew whatever it has.

        Raises:
            EngineUnavailable, HistoryUnavailable: ask again.
            ValueError: the checkpoint is damaged.
        """
        mirror = self.mirror
        known = Known(mirror.epoch, mirror.offset, mirror.newest) if mirror.epoch else None
        # The same until this is done: an engine knows so many names, and would forget those of
        # others for the sake of a node that tries it again and again.
        self._next_name = name = self._next_name or random_name()
        standing = await self.engine.enter(name, known)
        # At once: this node votes under the name, and its heartbeats say who is to vote.
        self.name = name
        if known is None or (anew and standing.shares(known)):
            await self._begin(standing)
        elif not standing.shares(known):
            if known != self._told:
                await self._note_lost(standing, known)
            self._told = known
            await self._begin(standing)
        elif known.offset + 1 < standing.oldest:
            if known != self._told:
                log.error("the engine has trimmed what this node has not read yet")
                self.overtaken += 1
            self._told = known
            await self._begin(standing)
        else:
            await mirror.go_on(standing.epoch, _ancestors(standing))
        self._next_name, self.standing = "", standing

    def has(self, epoch: str, offset: int) -> bool:
        """Whether a record that was appended in an epoch is in the log, as it was entered last."""
        standing = self.standing
        return epoch == standing.epoch or standing.shares(Known(epoch, offset, 0))

    async def _note_lost(self, standing: Standing, known: Known) -> None:
        kept = {**_ancestors(standing), standing.epoch: standing.newest}.get(known.epoch)
        if kept is None:
            log.warning("the mirror is of another log, and begins anew")
            return
        lost = known.newest - kept  # at most: some of these ids may be of nothing
        with suppress(MistError):  # it begins anew without that, too
            lost = await self.mirror.count(kept)
        if lost:
            log.error("the engine has lost messages", extra={"epoch": standing.epoch, "lost": lost})
        self.lost += lost

    async def _begin(self, standing: Standing) -> None:
        """Have what the last checkpoint has, or else nothing, and go on from there."""
        for _ in range(_TRIES):
            checkpoint = standing.checkpoint
            try:
                if checkpoint is None or checkpoint.offset + 1 < standing.oldest:
                    place = await self._oldest(standing)
                    await self.mirror.begin_anew(standing.epoch, _ancestors(standing), *place)
                else:
                    await self._restore(standing, checkpoint)
            except (Trimmed, _Replaced):
                standing = await self.engine.standing()
            else:
                return
        raise EngineUnavailable("the engine trims its log all the time")

    async def _restore(self, standing: Standing, checkpoint: Checkpoint) -> None:
        log.info("the mirror begins with a checkpoint", extra={"bytes": checkpoint.size})
        following = iter(range(checkpoint.parts))

        async def part() -> bytes | None:
            number = next(following, None)
            if number is None:
                return None
            body = await self.engine.staged(checkpoint.name, number)
            if body is None:
                raise _Replaced
            return body

        await self.mirror.restore(standing.epoch, _ancestors(standing), checkpoint.offset, part)

    async def _oldest(self, standing: Standing) -> tuple[int, int]:
        """The offset before the first record that is kept, and the highest id up to there.

        Raises:
            Trimmed: it is not kept any more.
        """
        if standing.oldest == 1:
            return 0, 0
        if standing.oldest > standing.offset:
            return standing.offset, standing.newest
        records = await self.engine.read(standing.oldest - 1, max_bytes=1)
        return standing.oldest - 1, records[0].first - 1

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
    url: str,
    mirror_url: str,
    *,
    durability: Durability = Durability.POWER,
    replicas: int = 0,
) -> Node:
    """Enter an engine, and open the mirror of its log.

    Args:
        url, durability, replicas: of the engine; see `open_engine`.
        mirror_url: see `open_mirror`.

    Raises:
        StartupError: one line that says why not.
    """
    engine = await open_engine(url, durability=durability, replicas=replicas)
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
        if isinstance(error, MistError | ValueError) and not isinstance(error, StartupError):
            raise StartupError(f"engine: {error}") from error
        raise
    return node


def _ancestors(standing: Standing) -> dict[str, int]:
    return {each.epoch: each.newest for each in standing.ancestors}


def random_name() -> str:
    """A name that no node has had."""
    return secrets.token_hex(8)
