"""The open files of a log: connections, and the writer's lock."""

import logging
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import Durability
from mist.history.leaps import boot_id
from mist.history.log_metadata import LogMetadata, random_epoch
from mist.history.sqlite.block_store import SqliteBlockStore
from mist.history.sqlite.channels import number_all
from mist.history.sqlite.database import FileCheck, connect, lock, prepare, startup_errors
from mist.history.sqlite.gaps import begin_continuity
from mist.history.sqlite.maintenance import WalUsage
from mist.sqlite import DAMAGED, FileIdentity, create

__all__ = ["Files"]

log = logging.getLogger("mist.history")

_READERS: Final = 4  # threads; each holds about a page


class Files:
    """See the module. Blocks.

    Args:
        path: the database's.
        durability: what appends survive, where it is opened for writing.

    Attributes:
        writer: None where it is opened for reading only, or closed.
        readers: one for each thread that reads.
        metadata, durability: of the log, as found.

    Raises:
        StartupError: one line that says why not. Nothing stays open then.
    """

    def __init__(self, path: Path, durability: Durability, *, read_only: bool) -> None:
        self._path = path
        self.writer: SqliteBlockStore | None = None
        self.readers: list[SqliteBlockStore] = []
        self._lock: int | None = None
        self._wal_usage = WalUsage()
        try:
            with startup_errors(path):
                if read_only:
                    path.stat()
                    with closing(connect(path, read_only=True)) as connection:
                        prepare(connection, path, None, number_all)
                else:
                    create(path)
                    self._lock = lock(path)
                    if path.stat().st_mode & 0o077:
                        log.warning("others can read the history", extra={"path": str(path)})
                    self._open_writer(path, durability)
                for _ in range(_READERS):
                    reader = SqliteBlockStore(connect(path, read_only=True), self._wal_usage)
                    self.readers.append(reader)
                    # Read from each: SQLite opens some of its files on the first read, and they
                    # may be gone when the first peer needs them.
                    self.durability = reader.durability()
                self.metadata = LogMetadata.of(self.readers[0])
        except BaseException:
            self._close_all()
            raise

    def _open_writer(self, path: Path, durability: Durability) -> None:
        connection = connect(path)
        self.writer = SqliteBlockStore(
            connection, self._wal_usage, FileCheck(FileIdentity.of(path))
        )
        prepare(connection, path, random_epoch(), number_all)
        rows = connection.execute("SELECT durability, boot, clean FROM log").fetchall()
        if len(rows) != 1:
            raise HistoryDamaged(0, DAMAGED)
        ((before, boot, clean),) = rows
        with suppress(HistoryDamaged):  # then nothing is known, and nothing is checked
            begin_continuity(connection)
        now = boot_id()
        if before == Durability.PROCESS.value and not clean and (boot != now or not now):
            # The machine stopped with messages that were acknowledged but not on the disk.
            # Their ids may be given again, so they need another epoch.
            epoch = random_epoch()
            connection.execute("UPDATE log SET epoch = ?", (epoch,))
            log.warning("the machine stopped uncleanly: new epoch", extra={"epoch": epoch})
        connection.execute(
            "UPDATE log SET durability = ?, boot = ?, clean = 0", (durability.value, now)
        )
        if durability is Durability.PROCESS:
            connection.execute("PRAGMA synchronous = NORMAL")

    def beside(self, name: str) -> str:
        """The path of a file beside the real one, as SQLite's own files are."""
        return f"{os.path.realpath(self._path)}-{name}"

    def close(self) -> None:
        """Close all files; record a clean stop. Idempotent."""
        if self.writer is not None:
            with suppress(HistoryUnavailable):  # then it counts as an unclean stop
                self.writer.mark_clean()
        self._close_all()

    def _close_all(self) -> None:
        for store in self.readers:
            store.close()
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
