"""The archive: what has been published, as Parquet, for whoever works on all of it.

    schema      the columns of each table, and how they are written
    rows        messages of a log as rows; `publishing`: rows as what can be published
    matching    which rows are wanted by their tags; `derived`: what these stand for
    admission   which rows are for somebody
    segments    one Parquet file: written so that it is whole or not there
    manifest    which segments a table consists of, one generation after the other
    sealer      the task that moves a log's messages into segments
    filling     the segment that it is at
    companions  the task that keeps the tables beside the messages: who got how much, who may
    kinship     whether an archive is of this log
    ranges      which ids are gone, in few words

A table is a folder:

    date=2026-11-21/00000000000000000001-00000000000000500000.parquet
    _manifest/00000000000000000042.json
    _manifest/lock

Only what the newest manifest lists belongs to the table. A segment is first written, then
listed; one that is replaced is first unlisted, and deleted a while later, when nobody can be
reading it any more. So a crash between any two steps leaves at most a file that nobody asks
for, and readers need no lock.

This package and its `manifest` do without pyarrow, the extra `archive`; the rest needs it.
"""

from mist.archive.manifest import (
    Archive,
    ArchiveDamaged,
    ArchiveError,
    ArchiveMissing,
    Manifest,
    Retired,
    Segment,
    Table,
)

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
