"""Archives made by hand: segments of the rows of `fake`."""

import msgspec

from mist.archive.manifest import Manifest, Segment
from mist.archive.schema import MESSAGES
from mist.archive.segments import write_segment
from mist.archive.table import Table
from tests.pipeline.source.fake import rows

__all__ = ["seal"]


def seal(table: Table, *ranges: tuple[int, int], epoch: str = "e1") -> list[Segment]:
    """Segments of these ids, entered."""
    made = [write_segment(table, rows(a, b), MESSAGES, a, b) for a, b in ranges]

    def edit(manifest: Manifest) -> Manifest:
        last = max(manifest.sealed, *(b for _, b in ranges))
        return msgspec.structs.replace(manifest.plus(*made), sealed=last, epoch=epoch)

    table.change(edit)
    return made
