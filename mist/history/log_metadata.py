"""Log metadata: what is known of a log without reading its blocks."""

import secrets
from collections.abc import Sequence
from functools import reduce

import attrs

from mist.history.block_store import BlockStore, State, Totals
from mist.history.checkpoints import newest_of
from mist.history.layout import Head

__all__ = ["LogMetadata", "first_kept", "random_epoch"]


def random_epoch() -> str:
    """A new epoch: 16 hexadecimal digits."""
    return secrets.token_hex(8)


@attrs.frozen
class LogMetadata:
    """The metadata of a log.

    Attributes:
        state, tracked: see `BlockStore.load`.
        newest: the highest id ever given.
        latest: time of the newest message, microseconds.
        first: the lowest id kept; `newest + 1` where nothing is.
        above: sums over the blocks above the floor.
    """

    state: State
    tracked: dict[str, int]
    newest: int
    latest: int
    first: int
    above: Totals

    @classmethod
    def of(cls, store: BlockStore) -> "LogMetadata":
        """The metadata of what a block store holds. O(blocks)."""
        with store.snapshot():
            state, tracked = store.load()
            newest, latest = newest_of(store)
            first = first_kept(store, newest)
            return cls(state, tracked, newest, latest, first, store.totals(state.floor))

    def extended(self, heads: Sequence[Head], newest: int) -> "LogMetadata":
        """The metadata once blocks with these heads, or none, were appended.

        Args:
            newest: the highest id then; of a mirror, ids up to it may be of nothing.
        """
        was_empty = self.first > self.newest
        return attrs.evolve(
            self,
            newest=newest,
            latest=heads[-1].newest if heads else self.latest,
            first=newest + 1 if was_empty and not heads else self.first,
            above=reduce(Totals.plus, heads, self.above),
        )


def first_kept(store: BlockStore, newest: int) -> int:
    """The lowest id kept; the one after `newest` where nothing is."""
    heads = store.heads(0, 1)
    return heads[0].start if heads else newest + 1
