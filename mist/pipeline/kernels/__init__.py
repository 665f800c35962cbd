"""Kernels: the work on rows in numpy and Arrow, without Spark, so tests need no JVM.

    tags            a column of tags as numbers; which of them somebody cares for
    repeats         rows that carry the same tags, to be looked at once
    subscriptions   tag sets to be matched, as an Arrow table that travels to the executors
    matching        which of them does each message satisfy?
    rollup          messages by hour and tag
    together        which tags travel together
    coverage        who hears nothing, and what nobody listens to
    merging         one segment of many

A kernel takes Arrow batches and gives arrays; it keeps no more than its result. None knows
where batches come from: `mist.pipeline.reading` has them come out of segments, and
`mist.pipeline.jobs` has Spark run that on each segment of an archive.
"""
