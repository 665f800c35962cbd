"""Spark's checkpoint of the query that fills a lake: what a killed query left unfinished in it.

Spark writes each file of a checkpoint under a temporary name, `.0.<uuid>.tmp`, and renames it when
it is complete. A query that is killed in between leaves the temporary file, which holds nothing
that was committed, and Spark ignores it, except beside the offsets of the first batch: there it
takes any file for the work of another query, and refuses to start
(STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
"""

import re
from pathlib import Path
from typing import Final

__all__ = ["clear_uncommitted"]

# With `.crc`: the checksum that Hadoop keeps beside a file, as a file with one dot more.
_TEMPORARY: Final = re.compile(
    r"\.{1,2}[^.]+\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?"
)


def clear_uncommitted(checkpoint: Path) -> None:
    """Delete the temporary files of a checkpoint. Only while no query uses it.

    Raises:
        OSError: one can't be deleted.
    """
    for path in checkpoint.rglob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)
