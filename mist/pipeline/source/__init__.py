"""`spark.read.format("mist")`, `readStream`, `write`, `writeStream`: a Python Data Source.

    spark.dataSource.register(MistDataSource)       # mist.pipeline.session has done it
    spark.read.format("mist").option("path", "mist-data/archive").load()
    spark.readStream.format("mist").option("url", "http://127.0.0.1:8080").load()

    options, address    what was asked for, checked whole
    origins/            where messages are read from: an archive, a server
    splitting           a stretch of ids into what tasks read
    shaping             rows in exactly the schema that Spark was promised
    batch, stream       the readers
    staging, sink       rows to parts; the writers
    client              HTTP for all of them, patient

Spark pickles the class and what it makes, and runs each step in a process of its own: one that
looks at options, one that plans, tasks, one that commits. So nothing here keeps a file, a
socket or a lock; and PySpark is imported where a process needs it.
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
    """The format `mist`. Options: see `mist.pipeline.source.options` and the README."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "mist"

    def schema(self) -> "StructType":
        """A message's columns; asked for by `load()` without `.schema(…)`."""
        from mist.pipeline.source.options import ReadOptions
        from mist.pipeline.source.shaping import messages_schema

        ReadOptions.parse(self.options)  # an error at load(), not when the query runs
        return messages_schema()

    def reader(self, schema: "StructType") -> DataSourceReader:
        """`spark.read`."""
        from mist.pipeline.source.batch import Reader
        from mist.pipeline.source.options import ReadOptions

        return Reader(ReadOptions.parse(self.options, stream=False), schema)

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
