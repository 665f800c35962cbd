"""A block store over one connection to a database; see `mist.history.block_store`.

What it reads, what it writes, and here its maintenance and verification.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mist.errors import HistoryUnavailable
from mist.history.block_store import BlockStore
from mist.history.record import Problem
from mist.history.sqlite.block_writer import BlockWriter
from mist.history.sqlite.damage import damaged_pages, unreadable
from mist.history.sqlite.database import translated
from mist.history.sqlite.gaps import removed_upto
from mist.history.sqlite.maintenance import empty_wal, missing, next_step, return_space
from mist.history.sqlite.rows import fetch

__all__ = ["SqliteBlockStore"]


class SqliteBlockStore(BlockWriter):
    """See the module, and `BlockWriter` for the arguments."""

    def next_maintenance(self) -> Callable[[BlockStore], None] | None:
        with translated():
            step = next_step(self._connection, self._wal_usage)
        if step is None:
            return None

        def work(store: BlockStore) -> None:
            assert isinstance(store, SqliteBlockStore)
            with translated():
                step(store._connection)

        return work

    def sync(self) -> None:
        # What is no longer in the write-ahead log was synced by a checkpoint. SQLite holds no lock
        # on that file, which closing it here would release.
        path = Path(f"{self._path()}-wal")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HistoryUnavailable(f"History is unavailable: {error.strerror}") from error

    def wipe(self) -> bool:
        with translated():
            if return_space(self._connection):
                return True
            empty_wal(self._connection)
        self._wal_usage.written = 0
        return False

    def file_size(self) -> int:
        path = self._path()
        return sum(
            file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists()
        )

    def _path(self) -> str:
        # As bytes: the name may not be UTF-8.
        ((path,), *_) = fetch(
            self._connection, "SELECT CAST(file AS BLOB) FROM pragma_database_list ORDER BY seq"
        )
        return os.fsdecode(path)

    def check(self) -> Iterator[Problem]:
        yield from self._check_pages()
        with suppress(HistoryUnavailable):  # without `removed`: of that, the pages tell
            yield from unreadable(self._connection, removed_upto(self._connection))
        try:
            with self.snapshot(), translated():
                for first, last in missing(self._connection):
                    yield Problem(first, last, "the directory doesn't list it")
        except (HistoryUnavailable, ValueError) as error:
            yield Problem(0, 0, f"the directory can't be read: {error}")

    def _check_pages(self) -> Iterator[Problem]:
        pages = list(damaged_pages(self._connection))
        for table, offset in pages:
            yield Problem(0, 0, f"a page of the table {table} is damaged, at byte {offset:,}")
        try:
            for (text,) in fetch(self._connection, "PRAGMA quick_check(20)"):
                if text != "ok":
                    yield Problem(0, 0, f"the database is damaged: {text}")
        except HistoryUnavailable as error:
            if not pages:
                yield Problem(0, 0, str(error))

    def mark_clean(self) -> None:
        """Checkpoint the write-ahead log, and record a clean stop."""
        with translated():
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("UPDATE log SET clean = 1")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()
