"""Validation of a batch's tag lists, before any of it is stored or delivered.

With a history, a message is stored before anyone gets it, and what is stored must keep the
rules. So a batch is parted into what can be published and what is rejected, in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from mist.broker.preparation import Preparation
from mist.errors import CommandError
from mist.message import parse_tag_list
from mist.wire import Batch, Entry, Run, TagList, record_head

__all__ = ["Accepted", "Rejected", "validate"]


_STEP: Final = 100  # tag lists in a step
_BYTES: Final = 16_384  # of those that are checked in a step, some 1 ms
_RUNS: Final = 500  # parted in a step


@attrs.frozen
class Accepted:
    """What can be published: a batch whose tag lists keep the rules, and its entries.

    Attributes:
        prepared: the matches that take long to find, and have been found.
    """

    batch: Batch
    entries: Sequence[Entry]
    prepared: Sequence[Preparation] = ()


@attrs.frozen
class Rejected:
    """What can't be published: the error, and the number of messages that it concerns."""

    error: CommandError
    count: int


def validate(
    batch: Batch, most_tags: int, known: Mapping[bytes, TagList]
) -> Iterator[Accepted | Rejected | None]:
    """A batch's parts, in order; and None in between, where others may have their turns.

    Args:
        most_tags: distinct tags that a message may have.
        known: tag lists that have been checked before, as written.
    """
    checked: dict[bytes, TagList | CommandError] = {}
    flawless = True
    size = 0
    for place, tag_list in enumerate(set(batch.tag_lists), 1):
        if not place % _STEP or size > _BYTES:
            size = 0
            yield None
        found = known.get(tag_list)
        if found is not None:
            checked[tag_list] = found
            continue
        size += len(tag_list)
        try:
            checked[tag_list] = TagList(parse_tag_list(tag_list, most_tags))
        except CommandError as error:
            checked[tag_list] = error.as_value()
            flawless = False
    entries: list[Entry] = []
    runs: list[Run] = []
    for place, (tag_list, wire, count) in enumerate(batch.runs, 1):
        if not place % _RUNS:
            yield None
        verdict = checked[tag_list]
        if isinstance(verdict, TagList):
            if tag_list != verdict.canonical:
                wire = verdict.rewrite(record_head(tag_list), wire, count)
            entries.append((verdict, wire, count))
            runs.append((verdict.canonical, wire, count))
            continue
        if runs:
            yield Accepted(_part(batch, runs), entries)
            runs, entries = [], []
        yield Rejected(verdict, count)
    if flawless:
        yield Accepted(batch, entries)
    elif runs:
        yield Accepted(_part(batch, runs), entries)


def _part(batch: Batch, runs: Sequence[Run]) -> Batch:
    return Batch.of_runs(runs, framable=batch.framable, envelope=batch.envelope)
