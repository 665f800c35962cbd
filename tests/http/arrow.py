"""Arrow streams for tests, and what a server does with them."""

import pyarrow as pa

from tests.http.client import Response, request

ARROW = "application/vnd.apache.arrow.stream"
TAGS = pa.list_(pa.string())


def stream(*batches, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows(*found, **columns):
    """`rows(("a,b", "x"), ("c", "y"))`: tags and data of each; further columns by name."""
    arrays = {
        "tags": pa.array([tags.split(",") for tags, _ in found], TAGS),
        "data": pa.array(
            [d if isinstance(d, bytes) else d.encode() for _, d in found], pa.binary()
        ),
        **columns,
    }
    return pa.record_batch(list(arrays.values()), names=list(arrays))


def some(tags, count, start=0):
    return rows(*[(tags, str(n)) for n in range(start, start + count)])


def path(txn="q", batch=0, partition=0, attempt=0, part=0):
    return f"/v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{part}"


async def put(server, where, body, headers=None) -> Response:
    if not isinstance(body, bytes):
        body = stream(body)
    return await request(server, "PUT", where, {"Content-Type": ARROW, **(headers or {})}, body)


async def commit(server, *attempts, txn="q", batch=0, headers=None) -> Response:
    """Each attempt is `(partition, attempt, parts)`."""
    body = {
        "txn": txn,
        "batch": batch,
        "attempts": [
            dict(zip(("partition", "attempt", "parts"), a, strict=True)) for a in attempts
        ],
    }
    return await request(server, "POST", "/v1/log/commit", headers, json=body)
