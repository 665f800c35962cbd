"""Kernels: the work on rows in numpy and Arrow, without Spark, so tests need no JVM.

    tags            dictionary encoding of tags
    deduplication   rows with the same tags, to be matched once
    subscriptions   tag sets to be matched, as an Arrow array for the executors
    matching        the subscriptions that each message matches
    rollup          roll-up of messages by hour and tag
    cooccurrence    counts of pairs of tags on the same message
    coverage        subscriptions without messages, unmatched tags, fan-out
    merging         one segment merged from many, for compaction

A kernel takes Arrow batches and returns arrays, and keeps only its result in memory. Kernels don't
know where batches come from: `mist.pipeline.reading` reads them from segments, and the jobs have
Spark run a kernel on each scan task of an archive.
"""
