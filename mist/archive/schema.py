"""Schemas: the columns of each table of an archive, and how they are written.

Every column is nullable, as for any file that Spark reads; comments tell which are never null.
Names inside lists and maps are Spark's, so that it can take a batch unchanged.
"""

from typing import Any, Final

import pyarrow as pa

__all__ = [
    "DELIVERIES",
    "MESSAGES",
    "ROW_GROUP",
    "SPARK_MESSAGES",
    "SUBSCRIPTIONS",
    "TABLES",
    "TIME",
    "TOKENS",
    "writer_options",
]

TIME: Final = pa.timestamp("us", tz="UTC")
_TAGS: Final = pa.list_(pa.field("element", pa.string()))
_META: Final = pa.map_(pa.string(), pa.binary())

MESSAGES: Final = pa.schema(
    [
        ("id", pa.int64()),  # never null, ascending
        ("time", TIME),  # never null, never going back
        ("tags", _TAGS),  # never null nor empty; sorted, without repeats
        ("data", pa.binary()),  # never null
        ("publisher", pa.string()),  # registry id of a token, or a listener's name; never null
        ("audience", pa.string()),  # null: everyone
        ("meta", _META),
    ]
)

SPARK_MESSAGES: Final = (
    "id bigint, time timestamp, tags array<string>, data binary, "
    "publisher string, audience string, meta map<string,binary>"
)
"""`MESSAGES` as Spark writes it."""

DELIVERIES: Final = pa.schema(
    [
        ("minute", TIME),
        ("token", pa.string()),  # registry id; empty for services without one
        ("subscription", pa.string()),  # canonical tag list: a,b
        ("sent", pa.int64()),
        ("dropped", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

SUBSCRIPTIONS: Final = pa.schema(
    [
        ("minute", TIME),
        ("token", pa.string()),
        ("subscription", pa.string()),
        ("opened", pa.int64()),
        ("closed", pa.int64()),
    ]
)

TOKENS: Final = pa.schema([("minute", TIME), ("token", pa.string()), ("tags", _TAGS)])

TABLES: Final = {
    "messages": MESSAGES,
    "deliveries": DELIVERIES,
    "subscriptions": SUBSCRIPTIONS,
    "tokens": TOKENS,
}

ROW_GROUP: Final = 100_000  # rows


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """How a table is written: arguments of `pyarrow.parquet.ParquetWriter`.

    Repeating values get a dictionary, ascending ones are delta-encoded. Minimum and maximum are
    stored for columns that readers skip by; those of tags and data are of no use, and computing
    them takes a tenth of the writing time.
    """
    counting = [field.name for field in schema if field.type in (pa.int64(), TIME)]
    repeating = {
        "tags": "tags.list.element",
        "publisher": "publisher",
        "audience": "audience",
        "token": "token",
        "subscription": "subscription",
    }
    with_statistics = [field.name for field in schema if not _is_opaque(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": [path for name, path in repeating.items() if name in schema.names],
        "column_encoding": dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
        "write_statistics": with_statistics,
        "write_page_index": True,
    }


def _is_opaque(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))
