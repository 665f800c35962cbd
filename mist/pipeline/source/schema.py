"""Conversion of rows to the schema declared to Spark.

Spark checks the schema of the first RecordBatch only, field by field. A later batch with another
layout would be read as garbage by the JVM, so every batch goes through `ReadSchema.conform`.
"""

from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from mist.pipeline.source.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["ReadSchema", "columns_of", "messages_schema"]


def messages_schema() -> "StructType":
    """The schema of a message as a Spark type: `mist.archive.schema.SPARK_MESSAGES`."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        LongType,
        MapType,
        StringType,
        StructType,
        TimestampType,
    )

    columns: dict[str, DataType] = {
        "id": LongType(),
        "time": TimestampType(),
        "tags": ArrayType(StringType()),
        "data": BinaryType(),
        "publisher": StringType(),
        "audience": StringType(),
        "meta": MapType(StringType(), BinaryType()),
    }
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def columns_of(schema: "StructType") -> tuple[str, ...]:
    """The columns requested with `.schema(…)`, in that order: column pruning.

    A column left out is neither read from disk nor sent to the JVM. It has to be requested
    explicitly, since Spark does not tell a Python source which columns a query needs.

    Raises:
        InvalidOption: a column that messages don't have, or that has another type.
    """
    known = {field.name: field.dataType for field in messages_schema().fields}
    for field in schema.fields:
        if field.name not in known:
            raise InvalidOption(
                f"schema: messages have no column {field.name}; there are {', '.join(known)}"
            )
        if not _alike(field.dataType, known[field.name]):
            raise InvalidOption(
                f"schema: {field.name} is {known[field.name].simpleString()},"
                f" not {field.dataType.simpleString()}"
            )
    if not schema.fields:
        raise InvalidOption("schema: no column")
    return tuple(field.name for field in schema.fields)


def _alike(asked: "DataType", known: "DataType") -> bool:
    # The reader may declare arrays and maps nullable or not: mist has no nulls in them.
    return asked.simpleString() == known.simpleString()


@attrs.frozen
class ReadSchema:
    """The schema declared to Spark, as an Arrow schema.

    Attributes:
        declared: the schema that each batch has to have.
    """

    declared: pa.Schema

    @classmethod
    def of(cls, schema: "StructType") -> "ReadSchema":
        """Convert Spark's schema with the function that Spark uses to check batches."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return cls(to_arrow_schema(schema, timezone="UTC"))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.declared.names)

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch to the declared schema.

        O(columns) where it matches already: always, unless `.schema(…)` is stricter about nulls.

        Args:
            batch: has the declared columns, and may have others.
        """
        arrays = []
        for field in self.declared:
            array = batch.column(field.name)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.declared)
