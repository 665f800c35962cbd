"""A tenure: for how long one of several servers may seal an archive that they share."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import trio

from mist.archive.manifest import ArchiveError, Manifest
from mist.engine.node import Node
from mist.errors import MistError

__all__ = ["LEASE", "NodeTenure", "Superseded", "Tenure", "has_erased"]

LEASE: Final = "archive"
"""The name of the lease."""

_REACH: Final = 5.0  # seconds
_STEP: Final = 0.02  # seconds


class Superseded(ArchiveError):
    """A sealer may not seal any more: its tenure is over."""

    code = "archive_superseded"


class Tenure(ABC):
    """See the module. It does not come back once it is over."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it is known to be over, without asking anyone."""

    @abstractmethod
    async def check(self) -> None:
        """Check, before anything is listed, that it is not over.

        Raises:
            Superseded: it is over.
            ArchiveError: that can't be told now.
        """

    @abstractmethod
    def admits(self, manifest: Manifest) -> bool:
        """Whether what was read of the log may be listed in this manifest. Called in a thread."""


class NodeTenure(Tenure):
    """That of a node: for as long as it holds the lease, and its mirror is what it was.

    Args:
        manifest: as the node has claimed it.
        folder: of the archive, for errors.
    """

    def __init__(self, node: Node, manifest: Manifest, folder: Path) -> None:
        self._node = node
        self._fence = manifest.fence
        self._epoch = manifest.epoch
        self._begun = node.mirror.begun
        self._folder = folder

    @property
    def is_over(self) -> bool:
        mirror = self._node.mirror
        return mirror.begun != self._begun or mirror.epoch != self._epoch

    async def check(self) -> None:
        node = self._node
        try:
            standing = await node.engine.standing()
            # So that it has heard of all erasures that have been asked for by now.
            await self._reach(standing.offset)
            holds = await node.engine.members.holds(LEASE, self._fence)
        except ArchiveError:
            raise
        except MistError as error:
            raise ArchiveError(f"archive {self._folder}: engine: {error}") from error
        if not holds or self.is_over or standing.epoch != self._epoch or node.mirror.erasures:
            raise Superseded(f"archive {self._folder}: another node may seal it")

    def admits(self, manifest: Manifest) -> bool:
        return manifest.fence == self._fence and has_erased(self._node, manifest, self._epoch)

    async def _reach(self, offset: int) -> None:
        with trio.move_on_after(_REACH):
            while self._node.mirror.offset < offset:  # noqa: ASYNC110  # nobody tells
                await trio.sleep(_STEP)
            return
        raise ArchiveError(f"archive {self._folder}: this node is behind the engine's log")


def has_erased(node: Node, manifest: Manifest, epoch: str) -> bool:
    """Whether a node has carried out each erasure that other nodes have.

    Args:
        epoch: of the node's mirror.
    """
    known, offset = manifest.erasure
    return not node.mirror.erasures and (known != epoch or node.mirror.offset >= offset)
