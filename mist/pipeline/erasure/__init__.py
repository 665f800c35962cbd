"""Erasure: deleting messages from everything that holds them.

    hot         the log that a server appends to
    tables      the archive: segments are rewritten, old ones deleted at once
    exports     exports that the archive has recorded; lakes and what their streams hold
    files       one Parquet file: the matching rows, and the rewrite

`mist.pipeline.jobs.erase` runs all of these, in an order in which no message can slip through.
"""
