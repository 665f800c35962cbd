"""The directory of a lake: an archive, and the state of the query that fills it.

date=2026-11-21/…       segments, in Hive-style partitions by day
_manifest/…             which of the segments are live
_lake/lock              held by the one query that writes; marks the directory as a lake
_lake/landing/…         files of tasks, not committed yet
_lake/erasures          the fencing token, new with each erasure: see `Lake.fence_token`
_checkpoint/…           the checkpoint of Spark, unless it is kept elsewhere
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from mist.archive import Archive, Table
from mist.pipeline.errors import BadInput

__all__ = ["Lake"]

_STATE: Final = "_lake"
_SPARK_SINK: Final = "_spark_metadata"  # in a folder written by Spark's own sink
# The name of a segment that has not been rewritten by compaction or erasure.
_SEGMENT: Final = re.compile(r"[0-9]{20}-[0-9]{20}\.parquet")


@attrs.frozen
class Lake:
    """The lake in a folder. A plain value, picklable for tasks.

    Attributes:
        folder: absolute; on a cluster, where each executor finds it.
    """

    folder: Path

    @property
    def archive(self) -> Archive:
        """The lake as an archive, which all other jobs read."""
        return Archive(self.folder)

    @property
    def table(self) -> Table:
        """The table of messages."""
        return self.archive.messages

    @property
    def landing(self) -> Path:
        """The landing zone: the directory that tasks write to."""
        return self.folder / _STATE / "landing"

    @property
    def exists(self) -> bool:
        """Whether the folder is a lake, rather than another archive or anything else."""
        return (self.folder / _STATE / "lock").is_file()

    def check(self) -> None:
        """Check that the folder is a lake, or can become one. Changes nothing.

        Raises:
            BadInput: it holds something else.
        """
        if self.exists or not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise BadInput(f"{self.folder} is a file; --to names a folder")
        if (self.folder / _SPARK_SINK).exists():
            raise BadInput(
                f"{self.folder} was written by Spark's own sink ({_SPARK_SINK}): it is no lake of"
                " mist and stays as it is; give --to another folder"
            )
        if self.table.exists and any(self.table.folder.glob("_manifest/*")):
            raise BadInput(f"{self.folder} is an archive and no lake; give --to another folder")
        if any(path.is_file() for path in self.folder.rglob("*")):
            raise BadInput(f"{self.folder} holds other things; give --to a new or empty folder")

    @contextmanager
    def exclusive_writer(self) -> Iterator[None]:
        """Hold the lock of the only writer in the block; create the lake if it does not exist.

        What tasks of an earlier query have left behind is deleted.

        Raises:
            BadInput: see `check`; or another query is writing to it.
            OSError, ArchiveError: it can't be written.
        """
        self.check()
        self.archive.messages.create()
        own = self.folder / _STATE
        own.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{self.folder}: another stream writes into it") from None
            self.clean_up()
            yield
        finally:
            os.close(handle)

    def clean_up(self) -> None:
        """Delete uncommitted files. For the exclusive writer, while no task is running."""
        shutil.rmtree(self.landing, ignore_errors=True)
        self.delete_orphans()
        self.table.sweep()

    def delete_orphans(self) -> None:
        """Delete orphan files: moved to their paths by a commit that failed afterwards.

        Files of other writers (compaction, erasure) have other names and stay: their commit may
        be in progress.
        """
        table = self.table
        with table.locked():
            manifest = table.current()
            known = {each.file for each in manifest.segments + manifest.retired}
            for path in self.folder.glob("date=*/*.parquet"):
                file = str(path.relative_to(self.folder))
                if _SEGMENT.fullmatch(path.name) and file not in known:
                    path.unlink(missing_ok=True)

    @property
    def has_writer(self) -> bool:
        """Whether a query is writing to the lake now."""
        try:
            handle = os.open(self.folder / _STATE / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def fence_token(self) -> str:
        """The fencing token, replaced by each erasure.

        The output of a task that began to read under an earlier token must not be committed: it
        might hold messages that have been erased from the server's log since.
        """
        with suppress(FileNotFoundError):
            return (self.folder / _STATE / "erasures").read_text()
        return ""

    def fence(self) -> None:
        """Fence off all running tasks: their output is rejected, and the batch is read again.

        An erasure calls this after it has erased from the server's log. No effect on a folder
        that is not a lake.
        """
        if not self.exists:
            return
        path = self.folder / _STATE / "erasures"
        temporary = path.with_name(f".{path.name}")
        with self.table.locked():  # a commit is complete, or has not begun
            temporary.write_text(secrets.token_hex(8))
            temporary.rename(path)
