"""Lake ingestion: from a live server into a lake, without a row passing through Java.

    source      a streaming source whose tasks write what they read, and report their files
    tasks       one range of ids, read from the server and written as segments
    commit      the commit of a batch: its files are listed in the manifest, all or none
    lake        the directory: its lock, and deleting what crashes have left
    checkpoint  Spark's checkpoint: what a killed query left unfinished in it
    lineage     the lineage check: whether a new log continues the one in the lake

A lake is an archive (`mist.archive`) that a streaming query fills. Spark plans the batches,
keeps their offsets in its checkpoint, places the tasks and retries them; Java handles one row
for each task. So writing costs what Arrow needs for it.

Each message is in the lake exactly once, whatever crashes. A task writes below `_lake/landing`,
which readers ignore. When all tasks of a batch have ended, the driver moves their files to their
place and lists them in one new generation of the manifest, together with `sealed`, the id up to
which the lake is complete. Ids are consecutive, so `sealed` suffices: a batch that Spark repeats
after a crash, split into other tasks, lies below it and is dropped; the files of the first attempt
are deleted when the lake is next opened.
"""
