"""Conversion of rows to the schema that Spark was promised.

Spark compares the schema of the first RecordBatch with the declared one, field for field, and
believes the rest: a later batch of another layout is read as garbage by the JVM. So every batch
goes through `Shape.fit`, which is where its schema is decided.
"""

from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from mist.pipeline.source.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["Shape", "columns_of", "messages_schema"]


def messages_schema() -> "StructType":
    """The schema of a message as Spark has it, `mist.archive.schema.SPARK_MESSAGES`."""
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
    """The columns that were asked for by `.schema(…)`, in that order.

    A column left out is not read from the disk, nor sent to the JVM: there is no other way to
    say so, since Spark tells a Python source nothing of the columns that a query needs.

    Raises:
        InvalidOption: a column that messages don't have, or one of another type.
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
    # Nullability within arrays and maps is the asker's to say: mist has no nulls there.
    return asked.simpleString() == known.simpleString()


@attrs.frozen
class Shape:
    """The schema that was promised to Spark, as Arrow has it.

    Attributes:
        promised: what a batch has to equal.
    """

    promised: pa.Schema

    @classmethod
    def of(cls, schema: "StructType") -> "Shape":
        """From Spark's schema, by the function that Spark itself checks batches with."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return cls(to_arrow_schema(schema, timezone="UTC"))

    @property
    def columns(self) -> list[str]:
        """The names, in order."""
        return list(self.promised.names)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the promised shape. O(columns) where it has that already, as it does
        unless somebody's `.schema(…)` is stricter about nulls.

        Args:
            batch: has the columns promised, and perhaps others.
        """
        arrays = []
        for field in self.promised:
            array = batch.column(field.name)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.promised)
