"""The erasure job: deletes messages on request, and writes a receipt.

The order ensures that no message slips through. First the hot log, so that the server seals none of
them any more; then its open segment is sealed, with what it had read before; then the affected
segments of the archive; then the exports that the archive has recorded. After a failure or an
interrupt, another run completes the erasure; the receipt says what the failed one has erased.

Old files are deleted at once, without the grace period that other jobs give to readers. A job that
reads one of these files in the meantime fails, and can be run again.

Out of reach are backups, exports that are not recorded, what subscribers have received, and freed
disk blocks that are not overwritten yet.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mist.archive import Archive
from mist.history.erasure import Erasure
from mist.pipeline.erasure.exports import ErasedExport, delete_uncommitted, erase_export
from mist.pipeline.erasure.tables import ErasedTable, erase_table
from mist.pipeline.exports import exports
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ACCOUNTS", "Result", "run"]

ACCOUNTS = ("deliveries", "subscriptions", "tokens")


@attrs.define
class Result:
    """The result of an erasure, filled in as it proceeds.

    Attributes:
        archive: its folder.
        began: Unix seconds.
        ended: Unix seconds; None while it is under way, and after a failure.
        hot: the result for the log (`mist.pipeline.erasure.hot`); None if it was left out, or not
            begun.
        tables: the results for messages and, if requested, for usage accounting.
        failure: why it ended early, in one line; None where it didn't.
    """

    erasure: Erasure
    archive: Path
    began: float
    ended: float | None = None
    hot: dict[str, Any] | None = None
    tables: list[ErasedTable] = attrs.field(factory=list)
    exports: list[ErasedExport] = attrs.field(factory=list)
    failure: str | None = None

    @property
    def complete(self) -> bool:
        """Whether everything was scanned: it ended, no export failed, and no file is still being
        written."""
        return (
            self.ended is not None
            and self.failure is None
            and not any(each.state == "failed" for each in self.exports)
            and not any(table.unfinished for table in self.tables)
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
            "ended": None if self.ended is None else _iso(self.ended),
            "complete": self.complete,
            **({} if self.failure is None else {"failure": self.failure}),
            "hot_log": self.hot,
            "archive": {
                "path": str(self.archive.absolute()),
                "tables": [_plain(table) for table in self.tables],
            },
            "exports": [_plain(each) for each in self.exports],
        }

    @property
    def gone(self) -> str:
        """What has been erased so far, in one line."""
        rows = sum(table.rows for table in self.tables) + sum(each.rows for each in self.exports)
        log = 0 if self.hot is None else self.hot["messages"]
        return f"{log:,} messages of the log and {rows:,} rows of files are erased"


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
    result: Result | None = None,
) -> Result:
    """Erase from the archive and its exports, after the log.

    Args:
        hot: the result for the log, which comes first; see `mist.pipeline.erasure.hot`.
        began: start of the erasure, Unix seconds.
        now: returns Unix seconds.
        accounts: also erase usage accounting of subscriptions to these tags, and of this token.
            Billing and audits lack them from then on.
        result: what to fill in, for a caller who needs it after a failure too; else a new one.

    Raises:
        ArchiveError: the archive can't be read or written.
        JobFailed: other writers keep changing the archive.
    """
    archive = Archive(archive.folder.absolute())  # tasks may have another working directory
    result = result or Result(erasure, archive.folder, began)
    result.hot = hot
    landing = delete_uncommitted(archive.folder)  # if it is a lake
    for name in ("messages", *(ACCOUNTS if accounts else ())):
        index = len(result.tables)

        def report(table: ErasedTable, index: int = index) -> None:
            result.tables[index:] = [_with(table, landing)]

        erase_table(spark, archive, name, erasure, progress=progress, report=report)
    for each in exports(archive):
        result.exports.append(erase_export(spark, each, erasure, progress=progress))
    result.ended = now()
    return result


def _with(table: ErasedTable, landing: list[str]) -> ErasedTable:
    if table.table != "messages":
        return table
    return attrs.evolve(table, unfinished=[*table.unfinished, *landing])


def _plain(value: Any) -> dict[str, Any]:
    return attrs.asdict(value)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
