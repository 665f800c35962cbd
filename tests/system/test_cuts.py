"""Connections cut at any byte while messages are published: none is missing, none comes twice.

Our client recovers over the line and over a WebSocket; an event stream is resumed as a browser
does it, by the last id that came whole.
"""

import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import attrs
import h11
import pytest
import trio
from trio.socket import SO_LINGER, SOL_SOCKET

from mist.client import Subscription, connect
from tests.client.test_client import Proxy
from tests.http.events import listen
from tests.processes import serving
from tests.waiting import until

LISTEN = ("tcp", "ws", "http")
ASKED = ("a", "b", "a,b")
BEHIND = 500  # messages that the slowest reader may be behind for more to be published
NOTHING = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, OSError)


class CuttingProxy(Proxy):
    """Cuts each connection at a byte chosen at random, in either direction.

    Attributes:
        cuts: how many so far.
        cutting: whether it goes on with that.
    """

    def __init__(self, url: str, random: Random) -> None:
        super().__init__(url)
        self.cuts = 0
        self.cutting = True
        self._random = random

    def _length(self, from_client: bool) -> int:
        """Bytes that pass in one direction of a connection."""
        random = self._random
        if from_client:  # most of it is what the client begins with
            return random.randrange(1, 600) if random.random() < 0.15 else 1 << 60
        return random.randrange(random.choice([1, 400, 2_000]), random.choice([3_000, 40_000]))

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, from_client: bool
    ) -> None:
        left = self._length(from_client)
        with suppress(*NOTHING):
            async for data in source:
                if self.cutting and left <= len(data):
                    await sink.send_all(data[:left])
                    self.cuts += 1
                    for stream in (source, sink):
                        self._break(stream)
                    return
                left -= len(data)
                await sink.send_all(data)
            await sink.send_eof()

    def _break(self, stream: trio.SocketStream) -> None:
        if self._random.random() < 0.5:  # a reset, or an end like any other
            stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()


@attrs.define
class Reader:
    """One subscription over one kind of connection.

    Attributes:
        tags: that are asked for.
        ids: what came, in order.
        gaps: what is said to be missing.
    """

    name: str
    tags: str
    ids: list[int] = attrs.field(factory=list)
    gaps: list[object] = attrs.field(factory=list)


@attrs.frozen
class Urls:
    """A server behind proxies."""

    urls: list[str]


class Cuts:
    """A server process behind a proxy for each kind of connection, readers, and one publisher."""

    def __init__(self, urls: list[str], random: Random) -> None:
        self.proxies = [CuttingProxy(f"tcp://{url.split('/')[2]}", random) for url in urls]
        self.readers: list[Reader] = []
        self.published: list[frozenset[str]] = []
        self._tcp = urls[0]
        self._random = random

    @property
    def cuts(self) -> int:
        return sum(proxy.cuts for proxy in self.proxies)

    @property
    def slowest(self) -> int:
        """The id up to which every reader has come, who are all given the last message."""
        return min(reader.ids[-1] if reader.ids else 0 for reader in self.readers)

    def expected(self, tags: str) -> list[int]:
        wanted = frozenset(tags.split(","))
        return [n for n, carried in enumerate(self.published, 1) if wanted <= carried]

    async def run(self, cuts: int) -> None:
        """Publish until there were so many cuts; then wait until everyone has everything."""
        async with trio.open_nursery() as nursery:
            for proxy in self.proxies:
                await nursery.start(proxy.run)
            for start, scheme, proxy in (
                *2 * [(self._client, "tcp", self.proxies[0])],
                *2 * [(self._client, "ws", self.proxies[1])],
                (self._stream, "http", self.proxies[2]),  # opens a connection for each reader
            ):
                await nursery.start(start, proxy.url.replace("tcp", scheme))
            await self._publish(cuts)
            for proxy in self.proxies:
                proxy.cutting = False
            await until(lambda: self.slowest == len(self.published), 120)
            nursery.cancel_scope.cancel()

    async def _publish(self, cuts: int) -> None:
        random = self._random
        async with connect(self._tcp) as publisher:
            while self.cuts < cuts:
                for _ in range(random.randint(1, 40)):
                    await self._message(publisher, random.choice(["a", "b", "a,b", "c"]))
                await publisher.flush()
                await until(lambda: self.slowest >= len(self.published) - BEHIND, 120)
            await self._message(publisher, "a,b")

    async def _message(self, publisher, tags: str) -> None:
        self.published.append(frozenset(tags.split(",")))
        text = f"{len(self.published)} " + "x" * self._random.choice([5, 200, 2_000])
        await publisher.publish(tags.split(","), text)

    # readers

    def _reader(self, name: str, tags: str) -> Reader:
        reader = Reader(name, tags)
        self.readers.append(reader)
        return reader

    async def _client(self, url: str, *, task_status: trio.TaskStatus[None]) -> None:
        token = "T" if url.startswith("ws") else None
        client = connect(url, token=token, wait=True, backoff_base=0.001, backoff_cap=0.01)
        async with (
            client as connected,
            trio.open_nursery() as nursery,
            AsyncExitStack() as stack,
        ):
            for tags in ASKED:
                reader = self._reader(url.partition(":")[0], tags)
                subscription = connected.subscribe(
                    tags.split(","), since=0, queue=100_000, on_gap=reader.gaps.append
                )
                opened = await stack.enter_async_context(subscription)
                nursery.start_soon(self._read, opened, reader)
            task_status.started()
            await trio.sleep_forever()

    async def _read(self, subscription: Subscription, reader: Reader) -> None:
        async for message in subscription:
            assert message.id == int(message.text.split()[0])
            reader.ids.append(message.id)

    async def _stream(self, url: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            for tags in ASKED:
                nursery.start_soon(self._listen, url, self._reader("event stream", tags))
            task_status.started()

    async def _listen(self, url: str, reader: Reader) -> None:
        last = ""
        while True:
            headers = {"X-Auth-Token": "T"} | ({"Last-Event-ID": last} if last else {})
            with suppress(*NOTHING):
                query = f"tags={reader.tags.replace(',', '%2C')}&since=0"
                async with listen(Urls([url]), query, headers) as events:
                    while (event := await events.next()) is not None:
                        last = event.id or last
                        if event.name == "message":
                            assert event.data["id"] == int(event.data["data"].split()[0])
                            reader.ids.append(event.data["id"])
                        elif not event.data["recovered"]:
                            reader.gaps.append(event.data)


async def survive_cuts(folder: Path, cuts: int) -> None:
    began = trio.current_time()
    listen = [part for each in LISTEN for part in ("--listen", f"{each}://127.0.0.1:0")]
    with serving(folder, "--token-rate", "100000", listen=listen) as process:
        async with connect(process.urls[0]) as admin:
            await admin.register(["*"], "T")
        run = Cuts(process.urls, Random(cuts))
        await run.run(cuts)
        assert process.stop() == 0
        assert process.popen.stderr is not None
        assert "Traceback" not in process.popen.stderr.read()
    seconds = trio.current_time() - began
    for scheme, proxy in zip(LISTEN, run.proxies, strict=True):
        print(f"{scheme:5} {proxy.cuts:6,} cuts of {proxy.connections:,} connections")
    delivered = sum(len(reader.ids) for reader in run.readers)
    print(f"{run.cuts:,} cuts, {len(run.published):,} messages, {delivered:,} deliveries", end=" ")
    print(f"to {len(run.readers)} readers in {seconds:.0f} s")
    for reader in run.readers:
        assert reader.ids == run.expected(reader.tags), reader.name
        assert reader.gaps == []
    assert all(proxy.cuts >= cuts / 20 for proxy in run.proxies)


async def test_nothing_is_missing_and_nothing_comes_twice_through_cuts(tmp_path: Path) -> None:
    with trio.fail_after(60):
        await survive_cuts(tmp_path, 100)


@pytest.mark.slow
async def test_nothing_is_missing_and_nothing_comes_twice_through_ten_thousand_cuts(
    tmp_path: Path,
) -> None:
    await survive_cuts(tmp_path, 10_000)
