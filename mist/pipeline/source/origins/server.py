"""A live server's log, by `GET /v1/log`.

A page is requested while Spark processes the one before it: the server, the network and the JVM
work at the same time.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import pyarrow as pa

from mist.pipeline.selection import Alternatives, Bounds, format_alternatives
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import FIRST_TIMEOUT, RETRY_TIMEOUT, Answer, Client
from mist.pipeline.source.errors import ServerRefused, SourceError
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.splitting import OffsetRange

__all__ = ["ServerOrigin"]

LARGEST_PAGE: Final = 200_000  # rows; the server's limit; it also ends a page at some 16 MiB


@attrs.frozen
class ServerOrigin(Origin):
    """The log of the server at `address`."""

    address: Address

    def position(self, *, moment: int | None = None, retry: bool = True) -> LogPosition:
        retry_timeout = RETRY_TIMEOUT if retry else FIRST_TIMEOUT
        asked = None if moment is None else _iso(moment)
        with Client(self.address, retry_timeout=retry_timeout) as client:
            found = client.request("GET", "/v1/log/position", {"time": asked}).json()
        return LogPosition(
            found["epoch"],
            found["first"],
            found["newest"],
            found.get("after"),
            found.get("gone", 0),
        )

    def segments(self, offsets: OffsetRange) -> Sequence[Bounds]:
        return ()

    def read(
        self,
        offsets: OffsetRange,
        alternatives: Alternatives,
        columns: Sequence[str],
        batch_size: int,
        losses: Losses,
    ) -> Iterator[pa.RecordBatch]:
        with Client(self.address) as client, ThreadPoolExecutor(1) as ahead:
            pages = _Pages(client, offsets, format_alternatives(alternatives), losses)
            at = offsets.after
            asked = ahead.submit(pages.fetch, at)
            while True:
                try:
                    page = asked.result()
                except ServerRefused as error:
                    if error.problem != "epoch_changed":
                        raise
                    losses.gone(at + 1, offsets.upto, f"{self.address.name} has a new log")
                    return
                at = page.after
                if not page.complete:
                    asked = ahead.submit(pages.fetch, page.after)
                yield from page.batches(batch_size)
                if page.complete:
                    return


@attrs.frozen
class _Page:
    after: int
    complete: bool
    body: bytes = attrs.field(repr=False)

    def batches(self, batch_size: int) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as stream:
            for batch in stream:
                for at in range(0, len(batch), batch_size):
                    yield batch.slice(at, batch_size)


@attrs.frozen
class _Pages:
    """Requests the pages of one range; from one thread at a time."""

    client: Client
    offsets: OffsetRange
    subscribe: str
    losses: Losses

    def fetch(self, after: int) -> _Page:
        answer = self.client.request(
            "GET",
            "/v1/log",
            {
                "after": after,
                "upto": self.offsets.upto,
                "limit": LARGEST_PAGE,
                "subscribe": self.subscribe or None,
                "epoch": self.offsets.epoch,
            },
        )
        for first, last in _lost(answer):
            if last <= self.offsets.gaps_upto:
                continue
            first = max(first, self.offsets.gaps_upto + 1)
            self.losses.gone(first, last)
        reached = int(answer.headers["mist-after"])
        complete = answer.headers["mist-complete"] == "true"
        if not complete and reached <= after:
            # The next request would return the same, without end.
            raise SourceError(f"the server's log does not go on behind {after}")
        return _Page(reached, complete, answer.body)


def _lost(answer: Answer) -> list[tuple[int, int]]:
    found = []
    for part in filter(None, answer.headers.get("mist-lost", "").split(",")):
        first, _, last = part.strip().partition("-")
        found.append((int(first), int(last)))
    return found


def _iso(moment: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).isoformat()
