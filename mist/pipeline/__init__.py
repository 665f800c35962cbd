"""What was published, worked on by Spark: the extra `mist-pubsub[spark]`.

    session         a Spark session as the jobs want it; `java` below it, kept `quiet`
    failures        what went wrong, in a line; `errors`, what is raised
    selection       which messages: by tags, ids, times
    reading         an archive as a DataFrame, or by segments, the unit of work
    origin          where a job's messages come from; `side_tables`, the accounts beside them
    kernels/        what touches rows: numpy and Arrow, no Spark
    jobs/           match, compact, the reports, export, erase …: each a `run`
    erasure/        taking messages out of log, archive and `exports`; `delta`
    source/         `spark.read.format("mist")`, streams and the sink
    landing/        a server's messages into a lake, written by Arrow
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
