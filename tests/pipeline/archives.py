"""Archives as a server makes them, of messages that a test names."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from mist.archive import Archive, Manifest
from mist.archive.schema import TABLES
from mist.archive.segments import write_segment

BEGIN = 1_795_219_200_000_000  # 2026-11-21 00:00 UTC, in microseconds
MINUTE = 60_000_000
DAY = 1440 * MINUTE


@attrs.frozen
class Told:
    """A message as a test writes it."""

    tags: str
    data: bytes = b""
    publisher: str = "default"
    audience: str | None = None
    meta: Mapping[str, bytes] | None = None
    after: int = 1_000_000  # microseconds since the one before


def rows_of(messages: Iterable[Told], first: int = 1, time: int = BEGIN) -> list[dict[str, Any]]:
    found = []
    for number, told in enumerate(messages, first):
        time += told.after
        found.append(
            {
                "id": number,
                "time": time,
                "tags": sorted(told.tags.split(",")),
                "data": told.data or f"message {number}".encode(),
                "publisher": told.publisher,
                "audience": told.audience,
                "meta": None if told.meta is None else list(told.meta.items()),
            }
        )
    return found


def make_archive(folder: Path, messages: Sequence[Told], *, segment: int = 1000) -> Archive:
    """An archive of these messages, ids from 1, so many in a segment, and never two days."""
    archive = Archive.create(folder)
    pending: list[dict[str, Any]] = []
    for row in rows_of(messages):
        other_day = pending and pending[-1]["time"] // DAY != row["time"] // DAY
        if other_day or len(pending) == segment:
            _seal(archive, "messages", pending)
            pending = []
        pending.append(row)
    _seal(archive, "messages", pending)
    return archive


def add_accounts(archive: Archive, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A segment a day of a side table. `minute` counts from the beginning."""
    archive.table(name).create()
    moved = [{**row, "minute": BEGIN + row["minute"] * MINUTE} for row in rows]
    for day in sorted({row["minute"] // DAY for row in moved}):
        _seal(archive, name, [row for row in moved if row["minute"] // DAY == day])


def _seal(archive: Archive, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    table, schema = archive.table(name), TABLES[name]
    if name == "messages":
        first, last = rows[0]["id"], rows[-1]["id"]
    else:
        first, last = (rows[n]["minute"] // MINUTE for n in (0, -1))
    part = "" if name == "messages" else f"-{secrets.token_hex(4)}"  # as the server has it
    batch = pa.RecordBatch.from_pylist(list(rows), schema)
    written = write_segment(table, batch, schema, first, last, part=part)

    def enter(manifest: Manifest) -> Manifest:
        # Of the side tables, an older server told no more than it had an account of.
        sealed = max(last, manifest.sealed) if name == "messages" else 0
        return msgspec.structs.replace(manifest.plus(written), sealed=sealed, epoch="e")

    table.change(enter)


def day_of(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1e6, UTC):%Y-%m-%d}"
