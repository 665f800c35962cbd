"""A server that speaks what the source needs of `/v1/log`, with faults at will.

The real one is what the other tests use; this one is for what the real one does not do on
demand: break a connection in the middle of a body, be busy three times, lose a range.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from mist.archive.schema import MESSAGES
from mist.pipeline.selection import Range, Selection, parse_alternatives

Fault = Callable[["Handler"], bool]
"""Answers a request in its own way and says True, or leaves it to the fake."""


def rows(first: int, last: int) -> pa.RecordBatch:
    """Messages with these ids; tags `n<id>`, `odd` or `even`; a second between two."""
    ids = range(first, last + 1)
    return pa.record_batch(
        [
            list(ids),
            [n * 1_000_000 for n in ids],
            [[f"n{n}", "odd" if n % 2 else "even"] for n in ids],
            [b"%d" % n for n in ids],
            ["service"] * len(ids),
            [None] * len(ids),
            [[("k", b"v")] if n % 3 == 0 else None for n in ids],
        ],
        schema=MESSAGES,
    )


def at(after: int, epoch: str = "e1", *, began: int | None = None) -> dict[str, Any]:
    """An offset of a stream; with `began` the end of a batch."""
    return {"epoch": epoch, "id": after} | ({} if began is None else {"began": began})


class Fake:
    """What the server has.

    Attributes:
        log: its messages.
        page: rows of a page.
        lost: ranges to be told as lost.
        staged, committed: what came; committed by (txn, batch).
        faults: asked in turn for each request until one of them answers.
        requests: method, path and headers of each.
    """

    def __init__(self) -> None:
        self.epoch = "e1"
        self.log = rows(1, 0)
        self.first = 1
        self.page = 1000
        self.lost: list[tuple[int, int]] = []
        self.staged: dict[tuple[str, int, int, int, int], pa.Table] = {}
        self.committed: dict[tuple[str, int], pa.Table] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self.url = ""

    @property
    def newest(self) -> int:
        return self.log.column("id")[-1].as_py() if len(self.log) else self.first - 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *arguments: object) -> None:
        pass

    def handle_any(self) -> None:
        fake: Fake = self.server.fake
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with fake.lock:
            fake.requests.append((self.command, self.path, dict(self.headers)))
            for fault in list(fake.faults):
                if fault(self):
                    return
            self.route(fake)

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def route(self, fake: Fake) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path.split("/")[2:]:
            case ["log", "position"]:
                self.position(fake, query)
            case ["log"]:
                self.page(fake, query)
            case ["log", "stage", txn, *numbers] if self.command == "PUT":
                table = pa.ipc.open_stream(self.body).read_all()
                batch, partition, attempt, part = map(int, numbers)
                fake.staged[txn, batch, partition, attempt, part] = table
                self.answer(201, {"rows": len(table)})
            case ["log", "stage", txn, batch]:
                for key in [key for key in fake.staged if key[:2] == (txn, int(batch))]:
                    del fake.staged[key]
                self.answer(204, None)
            case ["log", "commit"]:
                self.commit(fake, json.loads(self.body))
            case _:
                self.answer(404, {"code": "not_found", "detail": "not found"})

    def position(self, fake: Fake, query: dict[str, str]) -> None:
        found: dict[str, object] = {"epoch": fake.epoch, "first": fake.first}
        found |= {"newest": fake.newest, "sealed": 0, "after": None}
        if "time" in query:
            from mist.pipeline.selection import parse_time

            chosen = Selection(Range(until=parse_time(query["time"]))).filter(fake.log)
            found["after"] = chosen.column("id")[-1].as_py() if len(chosen) else fake.first - 1
        self.answer(200, found)

    def page(self, fake: Fake, query: dict[str, str]) -> None:
        if query.get("epoch", fake.epoch) != fake.epoch:
            self.answer(410, {"code": "epoch_changed", "detail": "another log"})
            return
        after, upto = int(query["after"]), int(query.get("upto", fake.newest))
        reached = min(after + min(fake.page, int(query["limit"])), upto, max(fake.newest, after))
        asked = Selection(Range(after, reached), parse_alternatives(query.get("subscribe")))
        chosen = asked.filter(fake.log)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, MESSAGES) as writer:
            writer.write_batch(chosen)
        lost = [f"{a}-{b}" for a, b in fake.lost if a <= reached and b > after]
        headers = {
            "Content-Type": "application/vnd.apache.arrow.stream",
            "Mist-Epoch": fake.epoch,
            "Mist-After": str(reached),
            "Mist-Complete": "true" if reached >= min(upto, fake.newest) else "false",
        }
        if lost:
            headers["Mist-Lost"] = ",".join(lost)
        self.raw(200, sink.getvalue().to_pybytes(), headers)

    def commit(self, fake: Fake, asked: dict[str, Any]) -> None:
        key = asked["txn"], asked["batch"]
        repeated = any(txn == key[0] and batch >= key[1] for txn, batch in fake.committed)
        if not repeated:
            parts = [
                (*key, one["partition"], one["attempt"], part)
                for one in asked["attempts"]
                for part in range(one["parts"])
            ]
            if any(part not in fake.staged for part in parts):
                self.answer(409, {"code": "part_missing", "detail": "a part is missing"})
                return
            fake.committed[key] = pa.concat_tables([fake.staged.pop(part) for part in parts])
        self.answer(200, {"first": 1, "last": 1, "rows": 0, "repeated": repeated})

    def answer(self, status: int, body: object) -> None:
        self.raw(status, b"" if body is None else json.dumps(body).encode(), {})

    def raw(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def faking() -> Iterator[Fake]:
    """A fake that listens on loopback for the length of the block."""
    fake = Fake()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.fake = fake  # type: ignore[attr-defined]
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
