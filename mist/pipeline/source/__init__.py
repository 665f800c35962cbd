"""`spark.read.format("mist")`, `readStream`, `write`, `writeStream`: a Python Data Source.

    spark.dataSource.register(MistDataSource)       # mist.pipeline.session has done it
    spark.read.format("mist").option("path", "mist-data/archive").load()
    spark.readStream.format("mist").option("url", "http://127.0.0.1:8080").load()

    options, address    the options of a reader or a writer, validated together
    origins/            what messages are read from: an archive, a server
    splitting           a range of ids split into partitions
    schema              conversion of rows to the declared schema
    batch, stream       the readers of a batch and of micro-batches
    staging, sink       rows encoded as parts; the writers
    client              the HTTP client, with retries

Spark pickles the data source and its readers and writers, and runs each step in a process of its
own: option parsing, planning, tasks, commit. So no object here holds an open file, a socket or a
lock, and PySpark is imported only where a process needs it.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from mist.pipeline.source.errors import (
    DataLoss,
    InvalidOption,
    ServerRefused,
    ServerUnavailable,
    SourceError,
    UnfitRows,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "DataLoss",
    "InvalidOption",
    "MistDataSource",
    "ServerRefused",
    "ServerUnavailable",
    "SourceError",
    "UnfitRows",
]


class MistDataSource(DataSource):
    """The format `mist`. Options: see `mist.pipeline.source.options` and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "mist"

    def schema(self) -> "StructType":
        """The columns of a message; `load()` without `.schema(…)` calls this."""
        from mist.pipeline.source.options import ReadOptions
        from mist.pipeline.source.schema import messages_schema

        ReadOptions.parse(self.options)  # an error at load(), not when the query runs
        return messages_schema()

    def reader(self, schema: "StructType") -> DataSourceReader:
        """`spark.read`."""
        from mist.pipeline.source.batch import BatchReader
        from mist.pipeline.source.options import ReadOptions

        return BatchReader(ReadOptions.parse(self.options, stream=False), schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """`spark.readStream`."""
        from mist.pipeline.source.options import ReadOptions
        from mist.pipeline.source.stream import StreamReader

        return StreamReader(ReadOptions.parse(self.options, stream=True), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """`df.write`."""
        from mist.pipeline.source.options import WriteOptions
        from mist.pipeline.source.sink import Writer

        return Writer(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> DataSourceStreamWriter:
        """`df.writeStream`."""
        from mist.pipeline.source.options import WriteOptions
        from mist.pipeline.source.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)
