"""The pipeline: batch jobs on Spark over published messages; the extra `mist-pubsub[spark]`.

    session         the Spark session of a job; `java` finds the runtime, `quiet` silences it
    failures        error reporting in one line; `errors`
    selection       selections by tags, ids and times
    reading         an archive as a DataFrame, or by segments
    origin          where a job's messages come from; `side_tables`, the accounts beside them
    kernels/        what touches rows: numpy and Arrow, no Spark
    jobs/           match, compact, the reports, export, erase …: each a `run`
    erasure/        taking messages out of log, archive and `exports`; `delta`
    source/         `spark.read.format("mist")`, streams and the sink
    ingestion/      lake ingestion: a server's messages into a lake, written by Arrow
    html/           reports as pages for people

Spark plans, places, retries, shuffles and merges; kernels inside `mapInArrow` touch the rows;
a segment of the archive is the unit of work.

    from mist.pipeline.session import session
    from mist.pipeline.reading import read_log

    with session() as spark:
        read_log(spark, "mist-data/archive", subscribe="order,eu").show()

The server never imports this. Nothing here is imported before it is asked for, since that
takes a second and needs packages that few have.
"""
