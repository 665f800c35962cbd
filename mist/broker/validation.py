"""Validation of a batch's tag lists, before any of it is stored or delivered.

With a history, a message is stored before anyone gets it, and what is stored must keep the
rules. So a batch is parted into what can be published and what is rejected, in order. What can be
published is in canonical form from here on.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from mist.broker.preparation import Preparation
from mist.broker.projection import Projected, Slice, slice_of
from mist.errors import CommandError
from mist.message import format_tags, parse_tag_list
from mist.wire import Batch, Run, TagList, rewritten

__all__ = ["Accepted", "Rejected", "validate"]


_STEP: Final = 100  # tag lists in a step that are checked one by one, some 0.5 ms
_BYTES: Final = 16_384  # of those, some 1 ms
_RUNS: Final = 500  # rewritten in a step
_OFTEN: Final = 2  # times that a list comes for what asking once costs: 0.15 µs a message

_Checked = bytes | CommandError
"""The canonical form of a tag list, or what is wrong with it."""


_Project = Callable[[Sequence[bytes], int], Projected | None]


@attrs.frozen
class Accepted:
    """What can be published: a batch whose tag lists keep the rules, in canonical form.

    Attributes:
        slices: what is asked for of its tag lists, where that has been found on the way.
        prepared: the matches that take long to find, and have been found.
    """

    batch: Batch
    slices: Sequence[Slice] = ()
    prepared: Sequence[Preparation] = ()


@attrs.frozen
class Rejected:
    """What can't be published: the error, and the number of messages that it concerns."""

    error: CommandError
    count: int


def validate(
    batch: Batch,
    most_tags: int,
    known: Mapping[bytes, TagList],
    project: _Project,
    version: int,
) -> Generator[Accepted | Rejected | None, None, None]:
    """A batch's parts, in order; and None in between, where others may have their turns.

    Args:
        most_tags: distinct tags that a message may have.
        known: tag lists that have been checked before, as written.
        project: see `mist.broker.projection`.
        version: of what is asked for; see `Slice`.
    """
    tag_lists = list(batch.tag_lists)
    checked: list[_Checked] = []
    slices: list[Slice] = []
    while len(checked) < len(tag_lists):
        if checked:
            yield None
        some = slice_of(tag_lists, len(checked))
        if all(map(known.__contains__, some)):
            checked += [known[each].canonical for each in some]
        elif (projected := _projected(some, most_tags, project)) is not None:
            start = len(checked)
            checked += projected.canonical or some
            asked = Projected(projected.projections)
            slices.append(Slice(start, len(checked), version, asked))
        else:
            checked += yield from _check_each(some, most_tags, known)
    if checked == tag_lists:
        yield Accepted(batch, slices)
        return
    if not any(map(_error, checked)):
        yield Accepted((yield from _part(batch, checked, 0, len(checked))), slices)
        return
    begins = 0
    for error, neighbours in groupby(checked, key=_error):
        ends = begins + len(list(neighbours))
        if error is not None:
            yield Rejected(error, sum([run[2] for run in batch.runs[begins:ends]]))
        else:
            yield Accepted((yield from _part(batch, checked, begins, ends)))
        begins = ends


def _projected(tag_lists: Sequence[bytes], most_tags: int, project: _Project) -> Projected | None:
    """As `project`, of which lists that come several times are asked once, where many do."""
    distinct = dict.fromkeys(tag_lists)
    if len(distinct) * _OFTEN > len(tag_lists):
        return project(tag_lists, most_tags)
    found = project(list(distinct), most_tags)
    if found is None:
        return None
    projections = dict(zip(distinct, found.projections, strict=True))
    canonical = dict(zip(distinct, found.canonical or distinct, strict=True))
    return Projected(
        list(map(projections.__getitem__, tag_lists)), list(map(canonical.__getitem__, tag_lists))
    )


def _error(checked: _Checked) -> CommandError | None:
    return None if isinstance(checked, bytes) else checked


def _check_each(
    tag_lists: Sequence[bytes], most_tags: int, known: Mapping[bytes, TagList]
) -> Generator[None, None, Sequence[_Checked]]:
    """What is found of any tag lists, one by one."""
    checked: dict[bytes, _Checked] = {}
    size = 0
    for place, tag_list in enumerate(dict.fromkeys(tag_lists), 1):
        if not place % _STEP or size > _BYTES:
            size = 0
            yield None
        found = known.get(tag_list)
        if found is not None:
            checked[tag_list] = found.canonical
            continue
        size += len(tag_list)
        try:
            checked[tag_list] = format_tags(parse_tag_list(tag_list, most_tags)).encode()
        except CommandError as error:
            checked[tag_list] = error.as_value()
    return [checked[each] for each in tag_lists]


def _part(
    batch: Batch, canonical: Sequence[_Checked], begins: int, ends: int
) -> Generator[None, None, Batch]:
    """Some of a batch's runs, with their canonical tag lists."""
    tag_lists = [each for each in canonical[begins:ends] if isinstance(each, bytes)]
    if batch.is_lines and (datas := batch.datas) is not None:
        part = Batch.of_columns(tag_lists, datas[begins:ends])
        part.envelope = batch.envelope
        return part
    made: list[Run] = []
    for start in range(begins, ends, _RUNS):
        if made:
            yield None
        some = slice(start, min(start + _RUNS, ends))
        made += rewritten(batch.runs[some], tag_lists[start - begins : some.stop - begins])
    return Batch.of_runs(made, framable=batch.framable, envelope=batch.envelope)
