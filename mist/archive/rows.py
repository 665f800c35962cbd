"""Messages of a log as rows, and rows as what can be published.

A publication is taken as a whole: its time, its publisher and each run's tag list once,
however many messages there are. What is left for each message is a slice of bytes.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Final

import numpy as np
import pyarrow as pa

from mist.archive.schema import MESSAGES, TIME
from mist.errors import CommandError, DataTooLong
from mist.history import Publication, Stored
from mist.history.layout import MICROSECONDS
from mist.message import Entry, Limits, TagList, TagSet, parse_tags

__all__ = ["InvalidRow", "to_batch", "to_publications"]

_TAGS: Final = MESSAGES.field("tags").type
_META: Final = MESSAGES.field("meta").type


class InvalidRow(CommandError):
    """A row that can't be published.

    Attributes:
        row: its number in the batch, from 0.
        error: what is wrong with it.
    """

    code = "invalid_row"

    def __init__(self, row: int, error: CommandError) -> None:
        self.row = row
        self.error = error
        super().__init__(f"row {row}: {error}")


def to_batch(stored: Sequence[Stored]) -> pa.RecordBatch:
    """Messages as rows of `MESSAGES`, in the order given.

    O(messages), a quarter of a microsecond for each.
    """
    data: list[bytes] = []
    firsts: list[int] = []
    counts: list[int] = []  # of each run
    numbers: list[int] = []  # of each run's tag list
    lists: dict[bytes, int] = {}
    tag_lists: list[TagList] = []
    sizes: list[int] = []  # of each publication
    for each in stored:
        firsts += each.firsts
        before = len(data)
        for tag_list, wire, count in each.entries:
            if count == 1:  # as most of them are; spelled out, since `split` takes a call
                data.append(wire[len(tag_list.head) : -1])
            else:
                data += tag_list.split(wire, count)
            counts.append(count)
            number = lists.setdefault(tag_list.canonical, len(lists))
            if number == len(tag_lists):
                tag_lists.append(tag_list)
            numbers.append(number)
        sizes.append(len(data) - before)
    rows = len(data)
    ids = np.ones(rows, np.int64)
    if rows:
        starts = np.cumsum([0, *counts[:-1]])
        ids[0] = firsts[0]
        last = np.asarray(firsts[:-1], np.int64) + np.asarray(counts[:-1], np.int64) - 1
        ids[starts[1:]] = np.asarray(firsts[1:], np.int64) - last
        np.cumsum(ids, out=ids)
    times = np.repeat(
        np.asarray([round(each.time * MICROSECONDS) for each in stored], np.int64), sizes
    )
    tags = pa.array([sorted(each.tags) for each in tag_lists], _TAGS)
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(times).cast(TIME),
            tags.take(pa.array(np.repeat(np.asarray(numbers, np.int64), counts))),
            pa.array(data, pa.binary()),
            _repeated([each.publisher for each in stored], sizes, pa.string()),
            _repeated([each.audience for each in stored], sizes, pa.string()),
            _repeated(
                [None if each.meta is None else list(each.meta.items()) for each in stored],
                sizes,
                _META,
            ),
        ],
        schema=MESSAGES,
    )


def _repeated(values: list[object], sizes: list[int], kind: pa.DataType) -> pa.Array:
    if not any(value is not None for value in values):
        return pa.nulls(sum(sizes), kind)
    places = np.repeat(np.arange(len(values)), sizes)
    return pa.array(values, kind).take(pa.array(places))


def to_publications(
    batch: pa.RecordBatch,
    time: float,
    publisher: str,
    limits: Limits,
    known: dict[tuple[str, ...], TagList] | None = None,
) -> list[Publication]:
    """Rows as what can be published, in their order.

    Args:
        batch: `tags` list<string> and `data` binary; `audience` and `meta` may be there, with
            the types of `MESSAGES`. Other columns count for nothing.
        time, publisher: of all of them, see `Publication`.
        limits: of tags and data.
        known: tag lists that have been checked, to be shared by the batches of a stream.

    Returns:
        Rows that stand together and have the same audience and meta are one publication.

    Raises:
        InvalidRow: for the first row that breaks a rule.
    """
    rows = batch.num_rows
    columns = batch.schema.names
    all_data = batch.column("data").to_pylist()
    all_tags = batch.column("tags").to_pylist()
    audiences = (
        batch.column("audience").to_pylist() if "audience" in columns else repeat(None, rows)
    )
    metas = batch.column("meta").to_pylist() if "meta" in columns else repeat(None, rows)
    known = {} if known is None else known
    found: list[Publication] = []
    run: list[Entry] = []
    current: tuple[str | None, Mapping[str, bytes] | None] = (None, None)
    framable = True

    def close() -> None:
        if run:
            audience, meta = current
            found.append(Publication(tuple(run), time, publisher, framable, audience, meta))
            run.clear()

    for row, (tags, data, audience, pairs) in enumerate(
        zip(all_tags, all_data, audiences, metas, strict=True)
    ):
        try:
            tag_list = _tag_list(tags, limits, known)
            if data is None or len(data) > limits.data:
                raise DataTooLong
        except CommandError as error:
            raise InvalidRow(row, error) from None
        extras = (audience, None if pairs is None else dict(pairs))
        if extras != current or framable != (b"\n" not in data):
            close()
            current, framable = extras, b"\n" not in data
        run.append((tag_list, b"%b%b\n" % (tag_list.head, data), 1))
    close()
    return found


def _tag_list(
    tags: list[str] | None, limits: Limits, known: dict[tuple[str, ...], TagList]
) -> TagList:
    key = tuple(tags or ())
    found = known.get(key)
    if found is None:
        checked: TagSet = parse_tags(
            chain(["" if tag is None else tag for tag in key]), limits.message_tags
        )
        found = known[key] = TagList(checked)
    return found
