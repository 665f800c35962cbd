"""The runs of a block by the tags that somebody looks for: all of them found in one go."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from mist.history.block import Block
from mist.history.record import Loose

__all__ = ["AskedRuns"]

_STEP_LISTS: Final = 512  # looked at in a step
_STEP_RUNS: Final = 256  # unpacked in one: so long as that takes


class AskedRuns:
    """See the module. Made in steps, of which a block of 10,000 messages takes some dozen.

    Args:
        block: a whole one.
        tags: those that anybody looks for.
    """

    def __init__(self, block: Block, tags: set[bytes]) -> None:
        self._block = block
        self._tags = tags
        self._runs: defaultdict[bytes, list[int]] = defaultdict(list)
        self._sets: dict[bytes, set[int]] = {}
        self._loose: dict[int, Loose] = {}
        # What is derived of tags stands in no list.
        self._usable = not block.columns.posted and block.columns.posted is not None

    def find(self) -> Iterator[None]:
        """Look through the block, in steps. Before all else."""
        if not self._usable:
            return
        columns, tags = self._block.columns, self._tags
        lists, several = enumerate(columns.lists), b"," in columns.text
        found: dict[int, Collection[bytes]] = {}
        while some := list(islice(lists, _STEP_LISTS)):
            if several:
                for number, canonical in some:
                    if common := tags.intersection(canonical.split(b",")):
                        found[number] = common
            else:
                found.update({number: (tag,) for number, tag in some if tag in tags})
            yield
        runs = self._runs
        for start in range(0, len(columns.run_lists), _STEP_LISTS):
            some_runs = columns.run_lists[start : start + _STEP_LISTS]
            for run, number in enumerate(some_runs, start):
                for tag in found.get(number, ()):
                    runs[tag].append(run)
            yield

    def of(self, lookups: Sequence[Mapping[int, bytes]]) -> Sequence[int] | None:
        """Those with all tags of one of some, by their numbers; None where that can't be told."""
        if not self._usable:
            return None
        if len(lookups) == 1:
            return self._with(lookups[0].values())
        return sorted({run for lookup in lookups for run in self._with(lookup.values())})

    def _with(self, tags: Collection[bytes]) -> Sequence[int]:
        rarest, *others = sorted(tags, key=lambda tag: len(self._runs.get(tag, ())))
        runs = self._runs.get(rarest, ())
        for tag in others:
            having = self._sets.get(tag)
            if having is None:
                having = self._sets[tag] = set(self._runs.get(tag, ()))
            runs = [run for run in runs if run in having]
        return runs

    def unpack(self, runs: Iterable[int]) -> Iterator[None]:
        """Unpack runs in steps, each once for all who take it."""
        every = sorted(runs)
        for start in range(0, len(every), _STEP_RUNS):
            self._loose.update(self._block.loose(every[start : start + _STEP_RUNS]))
            yield

    def unpacked(self, runs: Sequence[int]) -> list[Loose]:
        """Runs that were."""
        return [self._loose[run] for run in runs]
