"""The directory of a lake: an archive, and the state of the query that fills it.

date=2026-11-21/…       segments, as readers of Parquet want them
_manifest/…             which of these count
_lake/lock              held by the one query that writes; says that this is a lake
_lake/landing/…         what tasks have written and nobody has entered yet
_lake/erasures          changes with each erasure, see `Lake.mark`
_checkpoint/…           Spark's, unless it is kept elsewhere
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

_OWN: Final = "_lake"
_FORMER: Final = "_spark_metadata"  # of a folder that Spark's own sink has written
# As a segment is named that hasn't been compacted or erased from.
_SEGMENT: Final = re.compile(r"[0-9]{20}-[0-9]{20}\.parquet")


@attrs.frozen
class Lake:
    """A lake in the folder `folder`. A plain value, which travels to tasks.

    Attributes:
        folder: absolute; on a cluster, where each executor finds it.
    """

    folder: Path

    @property
    def archive(self) -> Archive:
        """As everything else reads it."""
        return Archive(self.folder)

    @property
    def table(self) -> Table:
        """Its messages."""
        return self.archive.messages

    @property
    def landing(self) -> Path:
        """Where tasks write."""
        return self.folder / _OWN / "landing"

    @property
    def exists(self) -> bool:
        """Whether the folder is a lake, rather than another archive or anything else."""
        return (self.folder / _OWN / "lock").is_file()

    def check(self) -> None:
        """See that the folder is a lake, or can become one. Touches nothing.

        Raises:
            BadInput: it holds something else.
        """
        if self.exists or not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise BadInput(f"{self.folder} is a file; --to names a folder")
        if (self.folder / _FORMER).exists():
            raise BadInput(
                f"{self.folder} was written by Spark's own sink ({_FORMER}): it is no lake of mist"
                " and stays as it is; give --to another folder"
            )
        if self.table.exists and any(self.table.folder.glob("_manifest/*")):
            raise BadInput(f"{self.folder} is an archive and no lake; give --to another folder")
        if any(path.is_file() for path in self.folder.rglob("*")):
            raise BadInput(f"{self.folder} holds other things; give --to a new or empty folder")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the one that fills it, for the length of the block; make it where there is none.

        What tasks of an earlier query have left is deleted.

        Raises:
            BadInput: see `check`; or another query fills it now.
            OSError, ArchiveError: it can't be written.
        """
        self.check()
        self.archive.messages.create()
        own = self.folder / _OWN
        own.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{self.folder}: another stream writes into it") from None
            self.delete_leftovers()
            yield
        finally:
            os.close(handle)

    def delete_leftovers(self) -> None:
        """Delete what was never entered. For who has claimed it, while no task is at work."""
        shutil.rmtree(self.landing, ignore_errors=True)
        self.drop_strays()
        self.table.sweep()

    def drop_strays(self) -> None:
        """Delete files that a commit has moved to their places and then not entered.

        What others write (compaction, erasure) is named otherwise, and stays: they may be about
        to enter it.
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
    def is_claimed(self) -> bool:
        """Whether a query fills it now."""
        try:
            handle = os.open(self.folder / _OWN / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def mark(self) -> str:
        """Changes when something is erased: what a task began to read before mustn't be entered.

        It might hold what has been erased from the server's log meanwhile.
        """
        with suppress(FileNotFoundError):
            return (self.folder / _OWN / "erasures").read_text()
        return ""

    def turn_away(self) -> None:
        """Have nothing entered that tasks have read up to now: they will have to read it again.

        To be called by an erasure when the server's log has been erased from. Nothing where
        this is no lake.
        """
        if not self.exists:
            return
        path = self.folder / _OWN / "erasures"
        temporary = path.with_name(f".{path.name}")
        with self.table.locked():  # an entry is done, or not begun
            temporary.write_text(secrets.token_hex(8))
            temporary.rename(path)
