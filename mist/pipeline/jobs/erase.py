"""The erasure job: deletes messages on request, and writes a receipt.

In an order in which nothing slips through: first the hot log, so that nothing more of it can be
sealed; then the server seals what it was about to, with what it had read before; then the
archive, which only the segments concerned are written anew of; then the exports that the archive
knows of. Where it fails or is interrupted, part of it is done, and another run does the rest.

Old files are removed at once. The grace that other jobs give to readers would be a time in which
the data is still there; a job that reads one of these files meanwhile fails, and is run again.

What this doesn't reach: backups, exports that were made without the archive's knowledge, what
subscribers have received, and blocks of a disk that a file system has given up but not yet
written over.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from mist.archive import Archive
from mist.history.erasing import Erasure
from mist.pipeline.erasure.copies import CopyErased, erase_copy
from mist.pipeline.erasure.lakes import delete_uncommitted
from mist.pipeline.erasure.tables import TableErased, erase_table
from mist.pipeline.exports import exports
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ACCOUNTS", "Result", "run"]

ACCOUNTS = ("deliveries", "subscriptions", "tokens")


@attrs.frozen
class Result:
    """What is gone.

    Attributes:
        hot: what became of the log (`mist.pipeline.erasure.hot`); None where it was left out.
        tables: of the archive; of messages, and of accounts where that was asked for.
    """

    erasure: Erasure
    began: float
    ended: float
    hot: dict[str, Any] | None
    archive: str
    tables: Sequence[TableErased]
    copies: Sequence[CopyErased]

    @property
    def complete(self) -> bool:
        """Whether all of it was looked into: no export failed, and no file is being written
        that nobody can look into."""
        return not any(copy.state == "failed" for copy in self.copies) and not any(
            table.unfinished for table in self.tables
        )

    @property
    def receipt(self) -> dict[str, Any]:
        """Proof of the erasure, for the requester and for auditors."""
        tags = self.erasure.tags
        what = {
            "tags": None if tags is None else sorted(tags),
            "publisher": self.erasure.publisher,
        }
        return {
            "version": 1,
            "erased": {name: value for name, value in what.items() if value is not None},
            "began": _iso(self.began),
            "ended": _iso(self.ended),
            "complete": self.complete,
            "hot_log": self.hot,
            "archive": {
                "path": self.archive,
                "tables": [_plain(table) for table in self.tables],
            },
            "exports": [_plain(copy) for copy in self.copies],
        }

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return self.receipt


def run(
    spark: "SparkSession",
    archive: Archive,
    erasure: Erasure,
    *,
    hot: dict[str, Any] | None,
    began: float,
    now: Callable[[], float],
    accounts: bool = False,
    progress: Progress = silent,
) -> Result:
    """Erase in the archive and in its exports, after the log.

    Args:
        hot: what became of the log, which goes first; see `mist.pipeline.erasure.hot`.
        began: when it began, Unix seconds.
        now: gives Unix seconds.
        accounts: also take out what the accounts say of subscriptions to these tags, and of
            this token. Bills and audits lack that then.

    Raises:
        ArchiveError: the archive can't be read or written.
        JobFailed: others change it faster than it can be gone over.
    """
    archive = Archive(archive.folder.absolute())  # tasks may run in another folder
    names = ["messages", *(ACCOUNTS if accounts else ())]
    landing = delete_uncommitted(archive.folder)  # where it is a lake
    tables = [erase_table(spark, archive, name, erasure, progress=progress) for name in names]
    copies = [erase_copy(spark, each, erasure, progress=progress) for each in exports(archive)]
    return Result(
        erasure,
        began,
        now(),
        hot,
        str(archive.folder.absolute()),
        [_with(table, landing) for table in tables if table is not None],
        copies,
    )


def _with(table: TableErased, landing: list[str]) -> TableErased:
    if table.table != "messages":
        return table
    return attrs.evolve(table, unfinished=[*table.unfinished, *landing])


def _plain(value: Any) -> dict[str, Any]:
    return attrs.asdict(value)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
