"""The archive: published messages as Parquet tables, for batch jobs over all of them.

    schema        the columns of each table, and how they are written
    rows          messages of a log as rows; `publishing`: rows as publications
    matching      which rows match tag sets; `derived`: tags derived from addresses
    visibility    which rows a session may get: targeted delivery
    segments      one Parquet file, written atomically
    manifest      the list of a table's segments; `table`: the tables, and changes of them
    generations   manifests on the disk, of which one follows another
    sealer        the task that moves a log's messages into segments
    open_segment  the segment that it writes
    side_tables   the task that writes usage accounting and token grants as tables
    opening       opens an archive to seal it, for a server alone or for a node
    lineage       the lineage check: whether an archive is of this log
    sharing       an archive that nodes share: one seals at a time. `claiming`: it takes over;
                  `tenure`: until when it may seal; `locking`: which servers use an archive

A table is a directory:

    date=2026-11-21/00000000000000000001-00000000000000500000.parquet
    _manifest/00000000000000000042.json
    _manifest/lock

Only what the newest manifest lists belongs to the table. A segment is written before it is
listed; one that is replaced is first unlisted, and deleted after a grace period, when no reader
can be using it. So a crash between any two steps leaves at most an unused file, and readers need
no lock.

This package, `manifest` and `table` do without pyarrow, the extra `archive`; the rest needs it.
"""

from mist.archive.manifest import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveMissing,
    Manifest,
    Retired,
    Segment,
)
from mist.archive.table import Archive, Table

__all__ = [
    "Archive",
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveMissing",
    "Manifest",
    "Retired",
    "Segment",
    "Table",
]
