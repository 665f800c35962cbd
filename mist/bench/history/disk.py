"""Where a benchmark makes its files, and which file system that is."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mist.bench.errors import BenchError

__all__ = ["file_system", "scratch"]

_MOUNTS: Final = Path("/proc/self/mountinfo")


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """A folder of our own in `folder`, gone at the end with all that is in it.

    Args:
        folder: None for the system's place for temporary files.

    Raises:
        BenchError: there can't be one.
    """
    try:
        made = tempfile.TemporaryDirectory(dir=folder, prefix="mist-bench-")
    except OSError as error:
        raise BenchError(f"{error.filename}: {error.strerror}") from error
    with made as inside:
        yield Path(inside)


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """`ext4`, `tmpfs` …; None where the system doesn't tell.

    Args:
        mounts: a table as Linux writes it (proc_pid_mountinfo(5)).
    """
    try:
        table = mounts.read_text()
    except OSError:
        return None
    found: str | None = None
    longest = -1
    # Blanks in a mount point are written as octal escapes.
    path = str(folder.resolve()).replace("\\", "\\134").replace(" ", "\\040")
    for line in table.splitlines():
        mount, _, source = line.partition(" - ")
        point = mount.split(" ")[4].rstrip("/")
        within = path == point or path.startswith(f"{point}/")
        # Of two on one point the later covers the earlier.
        if within and len(point) >= longest:
            longest, found = len(point), source.split(" ")[0]
    return found
