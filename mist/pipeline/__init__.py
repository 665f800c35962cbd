"""The pipeline: batch jobs on Spark over published messages; the extra `mist-pubsub[spark]`.

    session         the Spark session of a job; `gateway`, its Java process
    preflight       checks before Spark is started: Java, PySpark, the Spark master
    errors          errors and error reporting in one line; `progress`
    selection       selections by tags, ids and times
    reading         an archive as a DataFrame, or by segments
    origin          where a job's messages come from; `side_tables`, the accounts beside them
    kernels/        the computation on rows: numpy and Arrow, no Spark
    jobs/           match, compact, the reports, export, erase …: each a `run`
    erasure/        erasure from the log, the archive and its `exports`; `delta`
    source/         `spark.read.format("mist")`, streams and the sink
    ingestion/      lake ingestion: a server's messages into a lake, written by Arrow
    html/           reports as pages for people

Spark plans, schedules, retries, shuffles and merges; kernels inside `mapInArrow` process the rows.
A segment of the archive is the unit of work.

    from mist.pipeline.session import session
    from mist.pipeline.reading import read_log

    with session() as spark:
        read_log(spark, "mist-data/archive", subscribe="order,eu").show()

The server never imports this package, and commands import its modules lazily: that takes a second
and needs optional packages.
"""
