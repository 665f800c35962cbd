"""What is known of a log without reading its blocks."""

import secrets

import attrs

from mist.history.block_store import Shelf, State, Totals

__all__ = ["Survey", "first_kept", "random_epoch"]


def random_epoch() -> str:
    """A name for a log: 16 letters and digits."""
    return secrets.token_hex(8)


@attrs.frozen
class Survey:
    """What is known of a log without reading its blocks.

    Attributes:
        state, tracked: see `Shelf.load`.
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
    def of(cls, shelf: Shelf) -> "Survey":
        """Look at a shelf. O(blocks)."""
        with shelf.snapshot():
            state, tracked = shelf.load()
            last = shelf.last()
            newest, latest = state.newest, state.latest
            if last is not None:
                newest, latest = max(newest, last.last), max(latest, last.newest)
            first = first_kept(shelf, newest)
            return cls(state, tracked, newest, latest, first, shelf.totals(state.floor))


def first_kept(shelf: Shelf, newest: int) -> int:
    """The lowest id kept; the one after `newest` where nothing is."""
    heads = shelf.heads(0, 1)
    return heads[0].start if heads else newest + 1
