"""Erasure in a lake that a streaming query may be writing.

What its tasks have read from the server before the log was erased from, and not entered yet,
would come to the lake behind our back. So they are turned away first (`Lake.fence`): none of
it can be entered any more, and the query reads it again, from a log that lacks what is to go.
Then their files are waited for, which the query deletes; what nobody is at work on is deleted
here.
"""

import shutil
import time
from pathlib import Path
from typing import Final

from mist.pipeline.ingestion.lake import Lake

__all__ = ["delete_uncommitted"]

TIMEOUT: Final = 60.0  # seconds for tasks to end and their files to go
POLL: Final = 0.2  # seconds


def delete_uncommitted(folder: Path, *, timeout: float = TIMEOUT) -> list[str]:
    """See that nothing gets into the lake that was read before. Nothing where it is no lake.

    To be called behind the erasure from the server's log, and ahead of that from the table.

    Args:
        timeout: seconds.

    Returns:
        Folders that a query is at work in even then, relative to that of the lake. They can't
        get into the lake, and go when their batch ends; but they may hold what was to go.
    """
    lake = Lake(folder)
    if not lake.exists:
        return []
    lake.fence()
    # Behind that, since a task makes its folder before it looks whether it is turned away.
    written = sorted(lake.landing.glob("*"))
    deadline = time.monotonic() + timeout
    while lake.has_writer and any(path.exists() for path in written):
        if time.monotonic() >= deadline:
            return [str(path.relative_to(folder)) for path in written if path.exists()]
        time.sleep(POLL)
    for path in written:
        shutil.rmtree(path, ignore_errors=True)
    return []
