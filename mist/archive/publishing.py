"""Rows as publications: the inverse of `rows`."""

from collections.abc import Mapping
from itertools import chain, repeat

import pyarrow as pa

from mist.audience import Audience
from mist.broker.attribute_index import for_site
from mist.errors import CommandError, DataTooLong
from mist.history import Publication
from mist.message import Limits, TagSet, format_tags, parse_tags
from mist.wire import Run, record

__all__ = ["InvalidRow", "to_publications"]


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


def to_publications(
    batch: pa.RecordBatch,
    time: float,
    publisher: str,
    limits: Limits,
    known: dict[tuple[str, ...], bytes] | None = None,
    site: str = "",
) -> list[Publication]:
    """Convert rows to publications, in their order.

    Args:
        batch: `tags` list<string> and `data` binary; `audience` and `meta` may be there, with
            the types of `MESSAGES`. Other columns are ignored.
        time, publisher: of all of them, see `Publication`.
        limits: of tags and data.
        known: a cache of validated tag lists, shared by the batches of a stream.
        site: of the publisher: messages are restricted to it, whatever the rows say. Empty is none.

    Returns:
        Neighbouring rows with the same audience and meta are one publication. Audiences are
        in canonical form.

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
    run: list[Run] = []
    current: tuple[str | None, Mapping[str, bytes] | None] = (None, None)
    framable = True

    def close() -> None:
        if run:
            audience, meta = current
            found.append(Publication.of_runs(tuple(run), time, publisher, framable, audience, meta))
            run.clear()

    for row, (tags, data, audience, pairs) in enumerate(
        zip(all_tags, all_data, audiences, metas, strict=True)
    ):
        try:
            tag_list = _tag_list(tags, limits, known)
            if data is None or len(data) > limits.data:
                raise DataTooLong
            audience = _audience(audience, site)
        except CommandError as error:
            raise InvalidRow(row, error) from None
        extras = (audience, None if pairs is None else dict(pairs))
        if extras != current or framable != (b"\n" not in data):
            close()
            current, framable = extras, b"\n" not in data
        run.append((tag_list, record(tag_list, data), 1))
    close()
    return found


def _audience(text: str | None, site: str) -> str | None:
    """The audience in canonical form. `Audience.parse` caches its results."""
    audience = None if text is None else Audience.parse(text)
    if site:
        audience = for_site(audience, site)
    return None if audience is None else audience.text


def _tag_list(tags: list[str] | None, limits: Limits, known: dict[tuple[str, ...], bytes]) -> bytes:
    key = tuple(tags or ())
    found = known.get(key)
    if found is None:
        checked: TagSet = parse_tags(
            chain(["" if tag is None else tag for tag in key]), limits.message_tags
        )
        found = known[key] = format_tags(checked).encode()
    return found
