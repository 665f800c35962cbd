"""What was published, worked on by Spark: the extra `mist-pubsub[spark]`.

    session, java   a Spark session as the jobs want it, and the Java below it
    selection       which messages: by tags, ids, times
    reading         an archive as a DataFrame, or by segments, the unit of work
    kernels/        what touches rows: numpy and Arrow, no Spark
    jobs/           match, compact, the reports …: each a `run`
    source/         `spark.read.format("mist")`, streams and the sink
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
