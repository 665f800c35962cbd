"""Mixed churn: peers of every endpoint that come, use a server, and leave in any way.

A *visit* is one peer's stay: it uses tags that nobody has used before, and mostly a token of its
own, checks everything that it gets, and leaves nothing behind. So whatever a server still has
when all visits are over, it has leaked.
"""

import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from random import Random

import pytest
import trio
from trio.socket import SO_LINGER, SOL_SOCKET
from trio_websocket import ConnectionClosed

from tests.endpoints import PUBLISHERS, RECEIVERS, Scenario, web
from tests.http.client import connect, request
from tests.http.events import listen
from tests.servers import Served, port_of
from tests.transports.lines import Lines, talk

__all__ = ["VISITS", "Churn"]

_AT_ONCE = 40  # visits
_VISIT_SECONDS = 60.0  # what no visit takes
_FILLING = "0f9a3c5be7d2481689"  # a token
_TOGETHER = 500  # messages
_GROUPS = 8  # numbers of publishers that share a tag, so that some tag lists are seen again
PATH = "/subscribe/websocket"
REST = ("polls", "channels")  # endpoints that read the history


class Churn:
    """Visits to one server.

    Args:
        server: listens for `tcp`, `ws`, `http` and `nats`, in this order; has a history and no
            secret.

    Attributes:
        done: visits that are over, by name.
    """

    def __init__(self, server: Served, seed: int = 0) -> None:
        self.server = server
        self.random = Random(seed)
        self.done: Counter[str] = Counter()
        self._numbers = count()
        self._admin: Lines
        self._admin_lock = trio.Lock()

    async def run(
        self,
        *,
        only: str | None = None,
        rounds: int | None = None,
        rate: float = 1e9,
        until: float = 1e18,
    ) -> None:
        """Have peers come until all have left.

        Args:
            only: the kind of visit; None for all kinds.
            rounds: of one visit of each kind, in random order; None for no end of them.
            rate: visits in a second, at most.
            until: trio's time after which none comes.
        """
        places = trio.CapacityLimiter(_AT_ONCE)
        due = trio.current_time()
        async with talk(self.server) as self._admin, trio.open_nursery() as nursery:
            for name in self._names(rounds, sorted(VISITS) if only is None else [only]):
                if trio.current_time() >= until:
                    break
                borrower = object()
                await places.acquire_on_behalf_of(borrower)
                nursery.start_soon(self._visit, name, places, borrower)
                due = max(due + 1 / rate, trio.current_time() - 1)
                await trio.sleep_until(due)

    def _names(self, rounds: int | None, kinds: Sequence[str]) -> Iterator[str]:
        for _ in count() if rounds is None else range(rounds):
            yield from self.random.sample(kinds, len(kinds))

    async def fill(self, count: int) -> None:
        """Have the server see more names than it remembers of any kind.

        What it remembers is bounded, but so generously that a churn of an hour would not get
        there: its caches would grow to the end, as a leak does. After this they are full.

        Args:
            count: tag lists that are delivered and as many that are not, each published twice;
                fewer tokens, subjects of NATS and small blocks of the history.
        """
        async with talk(self.server) as peer:
            assert await peer.ask(f"register fill,fill-* {_FILLING}\n".encode()) == []
        async with trio.open_nursery() as nursery:
            await self._listen_to_all(nursery)
            async with talk(self.server) as peer:
                for _ in range(0, count, _TOGETHER):
                    names = [self.fresh("fill") for _ in range(_TOGETHER)]
                    lines = [f"publish fill,{name},.fill.{name},/fill/{name} x\n" for name in names]
                    for _ in range(2):
                        assert await peer.ask("".join(lines).encode()) == []
                # Read from the history, too.
                assert len(await peer.ask(b"subscribe fill 0\n")) > _TOGETHER
            nursery.cancel_scope.cancel()
        await self._fill_with_unmatched(count)
        await self._fill_with_subjects(count // 5)
        for _ in range(0, count // 10, _TOGETHER):
            await self._fill_with_tokens([self.fresh("token") for _ in range(_TOGETHER)])
        await self._fill_with_blocks(count // 15)
        async with talk(self.server) as peer:
            assert await peer.ask(f"unregister {_FILLING}\n".encode()) == []

    async def _listen_to_all(self, nursery: trio.Nursery) -> None:
        """Have what is published to fill caches delivered in every form, to nobody who looks."""

        async def discard(stream: trio.SocketStream) -> None:
            async with stream:
                async for _ in stream:
                    pass

        host = "Host: localhost\r\n"
        upgrade = (
            f"GET {PATH} HTTP/1.1\r\n{host}X-Auth-Token: {_FILLING}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        )
        frame = '{"command":"subscribe","tags":["fill"]}'
        masked = b"\x81" + bytes([0x80 | len(frame)]) + bytes(4) + frame.encode()
        for index, hello, then in (
            (0, "subscribe fill\n", b""),
            (0, frame, b""),
            (1, upgrade + "\r\n", masked),
            (1, upgrade + "Sec-WebSocket-Protocol: mist.json\r\n\r\n", masked),
            (2, f"GET /v1/stream?tags=fill HTTP/1.1\r\n{host}\r\n", b""),
            (3, 'CONNECT {"verbose":false}\r\nSUB fill.> 1\r\n', b""),
        ):
            port = port_of(self.server.urls[index].removesuffix(PATH))
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(hello.encode())
            if then:
                await stream.receive_some(4096)
                await stream.send_all(then)
            nursery.start_soon(discard, stream)

    async def _fill_with_unmatched(self, count: int) -> None:
        """Tag lists that stay in the memo: those that were delivered left it with who got them.

        They are no shorter than those of visits. Caches are bounded by estimates of their bytes:
        what takes the place of shorter ones would have them grow.
        """
        async with talk(self.server) as peer:
            for _ in range(0, count, _TOGETHER):
                names = [self.fresh("fill") for _ in range(_TOGETHER)]
                lines = [f"publish {name},.fill.{name},/fill/{name} x\n" for name in names]
                for _ in range(2):
                    assert await peer.ask("".join(lines).encode()) == []

    async def _fill_with_subjects(self, count: int) -> None:
        async with talk(self.server, 3) as peer:
            await peer.line()
            await peer.send(b'CONNECT {"verbose":false}\r\n')
            for _ in range(0, count, _TOGETHER):
                names = [self.fresh("fill") for _ in range(_TOGETHER)]
                lines = [f"SUB fill.{name} {name}\r\nUNSUB {name}\r\n" for name in names]
                lines += [f"PUB fill.{name} 1\r\nx\r\n" for name in names]
                await peer.send("".join(lines).encode() + b"PING\r\n")
                assert await peer.line() == b"PONG\r\n"

    async def _fill_with_tokens(self, tokens: list[str]) -> None:
        async with talk(self.server) as peer, connect(self.server) as client:
            lines = [f"register fill {token}\n" for token in tokens]
            assert await peer.ask("".join(lines).encode()) == []
            for token in tokens:
                headers = {"X-Auth-Token": token}
                found = await client.request("GET", "/v1/messages?tags=fill&limit=1", headers)
                assert found.status == 200
            lines = [f"unregister {token}\n" for token in tokens]
            assert await peer.ask("".join(lines).encode()) == []

    async def _fill_with_blocks(self, count: int) -> None:
        """Blocks of the history that have few messages each, as visits leave them, and are read.

        Tag lists that come once in a block of many are not kept. Those that are kept grow with
        each form in which they are delivered, so these are read in three.
        """
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(talk(self.server))
            client = await stack.enter_async_context(connect(self.server))
            socket = await stack.enter_async_context(web(self.server, PATH, _FILLING))
            (answer,) = await peer.ask(b"last\n")
            epoch = answer.split()[1].decode()
            for _ in range(count):
                name, others = self.fresh("fill"), [self.fresh("fill") for _ in range(4)]
                lines = [f"store {name},.fill.{each},/fill/{each} x\n" for each in others]
                stored = await peer.ask("".join(lines).encode())
                ids = [int(each.removeprefix(b"stored ")) for each in stored]
                before = ids[0] - 1
                read = f"subscribe {name} {epoch}:{before}\nunsubscribe {name}\n"
                assert len(await peer.ask(read.encode())) == len(lines)
                page = await client.request("GET", f"/v1/messages?tags={name}&since={before}")
                assert len(page.json()["messages"]) == len(lines)
                since = {"epoch": epoch, "id": before}
                for command in {"command": "subscribe", "since": since}, {"command": "unsubscribe"}:
                    await socket.send_message(json.dumps({**command, "tags": [name]}))
                found = [json.loads(await socket.get_message()) for _ in range(len(lines) + 2)]
                assert [each.get("id") for each in found[1:-1]] == ids

    async def _visit(self, name: str, places: trio.CapacityLimiter, borrower: object) -> None:
        try:
            with trio.fail_after(_VISIT_SECONDS):
                await VISITS[name](self)
        except BaseException as error:
            error.add_note(f"in a visit of {name}")
            raise
        finally:
            places.release_on_behalf_of(borrower)
        self.done[name] += 1

    def fresh(self, prefix: str = "tag") -> str:
        """A name that was never used before."""
        return f"{prefix}-{next(self._numbers)}-{self.random.getrandbits(80):020x}"

    async def ask(self, text: str) -> list[str]:
        """What a service is answered to a line."""
        async with self._admin_lock:
            return [
                line.decode().rstrip("\n") for line in await self._admin.ask(f"{text}\n".encode())
            ]

    async def store(self, tags: str, data: str) -> int:
        """Publish a message, and return its id."""
        (answer,) = await self.ask(f"store {tags} {data}")
        return int(answer.removeprefix("stored "))

    async def place(self) -> tuple[str, int]:
        """Epoch and id of the newest message."""
        (answer,) = await self.ask("last")
        _, epoch, id_ = answer.split()
        return epoch, int(id_)

    @asynccontextmanager
    async def token(self, *tags: str) -> AsyncIterator[str]:
        """A token for the length of the block, by the line or by HTTP."""
        token = self.fresh("token")
        if self.random.random() < 0.5:
            assert await self.ask(f"register {','.join(tags)} {token}") == []
            yield token
            assert await self.ask(f"unregister {token}") == []
        else:
            # A connection each: one that waited here for the visit would be closed as idle.
            body = {"token": token, "tags": list(tags), "attributes": {"plan": token}}
            made = await request(self.server, "PUT", "/v1/tokens", json=body)
            assert made.status in (200, 201), made
            yield token
            path = f"/v1/tokens/{made.json()['id']}"
            gone = await request(self.server, "DELETE", path)
            assert gone.status in (200, 204), gone

    async def leave(self, stream: trio.SocketStream) -> None:
        """Close a connection: in order, by a reset, or only one's own direction first."""
        way = self.random.randrange(3)
        if way == 0:
            stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        elif way == 1:
            await stream.send_eof()
        await trio.aclose_forcefully(stream)


# Each of these is one visit. What it publishes has a tag of its own, so it knows what it must get.


def receiving(endpoint: str) -> Callable[[Churn], Awaitable[None]]:
    """A visit of one receiver, who is told what publishers of several kinds say."""

    async def visit(churn: Churn) -> None:
        name = churn.fresh("n")
        scenario = Scenario(
            f".order.{name},/rooms/{name},{name}",
            f".order.{name},/rooms/{name}" if churn.random.random() < 0.5 else name,
            subject=(f"order.{name}", f"*.{name}"),
            topic=(f"/rooms/{name}", f"/rooms/{name}"),
            channel=f"/rooms/{name}",
        )
        grants = (name, f"/rooms/{name}", f".order.{name}", ".*.>", ">*", ">/", ">.>")
        async with churn.token(*grants) as token, AsyncExitStack() as stack:
            inbox = RECEIVERS[endpoint](churn.server, scenario, token)
            receive = await stack.enter_async_context(inbox)
            publishers = churn.random.choices(("lines", "json", "json frames", "http"), k=3)
            for n, publisher in enumerate(publishers):
                await PUBLISHERS[publisher](churn.server, scenario, f"{n}", token)
            assert [await receive() for _ in publishers] == ["0", "1", "2"]

    return visit


def publishing(endpoint: str) -> Callable[[Churn], Awaitable[None]]:
    """A visit of one publisher of an address of its own kind, heard over the line."""

    async def visit(churn: Churn) -> None:
        name = churn.fresh("n")
        subject, topic = f"order.{name}", f"/rooms/{name}"
        tags = f".{subject}" if endpoint == "subjects" else topic
        scenario = Scenario(tags, tags, subject=(subject, subject), topic=(topic, topic))
        async with RECEIVERS["lines"](churn.server, scenario, "") as receive:
            async with churn.token(">/", ">.>", "/rooms", name) as token:
                await PUBLISHERS[endpoint](churn.server, scenario, "x", token)
            assert await receive() == "x"

    return visit


async def coming_and_going(churn: Churn) -> None:
    """Subscriptions made, ended, and left to the end of the connection."""
    one, two = churn.fresh(), churn.fresh()
    common = f"common-{churn.random.randrange(_GROUPS)}"
    async with talk(churn.server) as peer:
        lines = [f"subscribe {one}", f"subscribe {one},{two}", f"publish {one},{two},{common} 1"]
        lines += [f"unsubscribe {one}", f"publish {one},{common} 2", f"publish {one},{two} 3"]
        lines += [f"subscribe {churn.fresh()},{common}" for _ in range(20)]
        found = await peer.ask("".join(f"{line}\n" for line in lines).encode())
        assert [line.split()[2] for line in found] == [b"1", b"3"]
        if churn.random.random() < 0.5:
            await peer.send(b"subscribe cut-in-the-mid")
        await churn.leave(peer.stream)


async def recovering(churn: Churn) -> None:
    """A connection that is lost and resumes, twice: over the line, and by frames."""
    tag = churn.fresh()
    async with talk(churn.server) as peer:
        epoch, first = await churn.place()
        assert await peer.ask(f"ids on\nsubscribe {tag} {epoch}:{first}\n".encode()) == []
        ids = [await churn.store(tag, "0")]
        assert await peer.line() == f"message {ids[0]} {tag} 0\n".encode()
        await churn.leave(peer.stream)
    ids += [await churn.store(tag, str(n)) for n in (1, 2)]
    async with talk(churn.server) as peer:
        found = await peer.ask(f"ids on\nsubscribe {tag} {epoch}:{ids[0]}\n".encode())
        assert found == [f"message {ids[n]} {tag} {n}\n".encode() for n in (1, 2)]
        await churn.leave(peer.stream)
    async with churn.token(tag) as token, web(churn.server, PATH, token) as socket:
        since = {"epoch": epoch, "id": ids[1]}
        await socket.send_message(
            json.dumps({"command": "subscribe", "tags": [tag], "since": since})
        )
        answer = json.loads(await socket.get_message())
        assert answer["recovered"]
        assert json.loads(await socket.get_message())["id"] == ids[2]


async def recovering_streams(churn: Churn) -> None:
    """An event stream that is lost and resumes, and one whose reader leaves in the replay."""
    tag = churn.fresh()
    ids = [await churn.store(tag, str(n)) for n in range(3)]
    epoch, _ = await churn.place()
    async with churn.token(tag) as token:
        headers = {"X-Auth-Token": token, "Last-Event-ID": f"{epoch}:{ids[0]}"}
        async with listen(churn.server, f"tags={tag}", headers) as stream:
            assert (await stream.get("ready"))["recovered"]
            assert [each["id"] for each in await stream.take(2)] == ids[1:]
        async with connect(churn.server) as client:
            await client.send_request("GET", f"/v1/stream?tags={tag}&since=0", headers)
            await churn.leave(client.connection)


async def revoked(churn: Churn) -> None:
    """A WebSocket and an event stream that end with their token."""
    tag = churn.fresh()
    token = churn.fresh("token")
    assert await churn.ask(f"register {tag} {token}") == []
    query, headers = f"tags={tag}", {"X-Auth-Token": token}
    async with (
        web(churn.server, PATH, token) as socket,
        listen(churn.server, query, headers) as stream,
    ):
        await stream.get("ready")
        await socket.send_message(json.dumps({"command": "subscribe", "tags": [tag]}))
        assert json.loads(await socket.get_message())["success"]
        assert await churn.ask(f"unregister {token}") == []
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await socket.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 4401
        await stream.rest()


async def hanging_up(churn: Churn) -> None:
    """Requests that wait, left in the middle: polls, chunks of MessageBus, a slow body."""
    tag, channel = churn.fresh(), f"/{churn.fresh()}"
    await churn.store(channel, "x")
    async with churn.token(tag, channel) as token:
        headers = {"X-Auth-Token": token}
        for method, path, body in (
            ("GET", f"/v1/poll?tags={tag}&client={churn.fresh()}", None),
            ("POST", f"/message-bus/{churn.fresh()}/poll", {channel: 1}),
            ("POST", f"/message-bus/{churn.fresh()}/poll", {channel: -1}),
        ):
            async with connect(churn.server) as client:
                await client.send_request(method, path, headers, json=body)
                if churn.random.random() < 0.5:
                    await trio.sleep(churn.random.random() / 10)
                await churn.leave(client.connection)
        async with connect(churn.server) as client:
            await client.connection.send_all(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n")
            await churn.leave(client.connection)


async def queueing(churn: Churn) -> None:
    """A queue group of NATS, a request with its answer, subscriptions with an end."""
    subject = f"q.{churn.fresh()}"
    async with talk(churn.server, 3) as one, talk(churn.server, 3) as two:
        for peer in (one, two):
            await peer.line()
            await peer.send(b'CONNECT {"verbose":false}\r\n')
            await peer.send(f"SUB {subject} workers 1\r\nSUB {subject}.> 2\r\nPING\r\n".encode())
            assert await peer.line() == b"PONG\r\n"
        await one.send(f"SUB inbox.{subject} 3\r\nUNSUB 3 1\r\n".encode())
        await one.send(f"PUB {subject} inbox.{subject} 2\r\nhi\r\n".encode())
        got = []
        for peer in (one, two):  # in this order: the first fence tells that it is published
            await peer.send(b"PING\r\n")
            while (line := await peer.line()) != b"PONG\r\n":
                got.append((peer, line))
        assert [line for _, line in got[1:]] == [b"hi\r\n"]  # one of them, once
        worker = got[0][0]
        await worker.send(f"PUB inbox.{subject} 3\r\nyes\r\n".encode())
        assert (await one.line()).startswith(f"MSG inbox.{subject} 3 ".encode())
        assert await one.line() == b"yes\r\n"
        await churn.leave(one.stream)


async def administering(churn: Churn) -> None:
    """Tokens changed, tickets taken and not redeemed, the pages of an operator."""
    tag, other = churn.fresh(), churn.fresh()
    async with churn.token(tag) as token:
        assert await churn.ask(f"set {other} {token}") == []
        (found,) = await churn.ask(f"tags {token}")
        assert tag in found
        assert other in found
        assert await churn.ask(f"unset {tag} {token}") == []
        async with connect(churn.server) as client:
            host = client._host
            headers = {"X-Auth-Token": token, "Origin": f"http://{host}"}
            ticket = await client.request("POST", "/v1/tickets", headers, json={})
            assert ticket.status == 201, ticket
            for page in ("connections", "subscriptions", "tags", "stats"):
                assert (await client.request("GET", f"/v1/{page}")).status == 200
            assert (await client.request("GET", "/metrics")).status == 200
            page = await client.request("GET", f"/v1/messages?tags={tag}&since=0")
            assert page.json()["messages"] == []


async def repeating(churn: Churn) -> None:
    """Requests with an idempotency key, made twice."""
    tag = churn.fresh()
    headers = {"Idempotency-Key": churn.fresh("key")}
    body = [{"tags": [tag], "data": str(n)} for n in range(3)]
    async with connect(churn.server) as client:
        ids = [
            (await client.request("POST", "/v1/messages", headers, json=body)).json()["ids"]
            for _ in range(2)
        ]
        assert ids[0] == ids[1]
        found = await client.request("GET", f"/v1/messages?tags={tag}&since=0")
        assert [each["data"] for each in found.json()["messages"]] == ["0", "1", "2"]


async def erring(churn: Churn) -> None:
    """Peers that are wrong: garbage, unknown tokens and paths, handshakes that aren't finished."""
    noise = churn.random.randbytes(churn.random.randrange(1, 300))
    for index in range(4):
        async with talk(churn.server, index) as peer:
            try:
                await peer.send(noise)
                if churn.random.random() < 0.3:
                    await peer.stream.send_eof()
                    await peer.rest()
                await churn.leave(peer.stream)
            except (trio.BrokenResourceError, OSError):
                pass
    path = f"/{churn.fresh()}"
    assert (await request(churn.server, "GET", path)).status == 404
    async with talk(churn.server) as peer:
        found = await peer.ask(
            f"{churn.fresh()} a\nsubscribe a,,b\npublish {'x' * 300} a\n".encode()
        )
        assert len(found) == 3
        assert all(line.startswith(b"error ") for line in found)


async def refused(churn: Churn) -> None:
    """Tokens that aren't known, over HTTP, and subscriptions that aren't granted."""
    tag = churn.fresh()
    headers = {"X-Auth-Token": churn.fresh("token")}
    assert (await request(churn.server, "GET", f"/v1/stream?tags={tag}", headers)).status == 401
    async with churn.token(churn.fresh()) as token, web(churn.server, PATH, token) as socket:
        await socket.send_message(json.dumps({"command": "subscribe", "tags": [tag]}))
        assert not json.loads(await socket.get_message())["success"]


VISITS: dict[str, Callable[[Churn], Awaitable[None]]] = {
    **{f"receiving {each}": receiving(each) for each in RECEIVERS},
    **{
        f"publishing {each}": publishing(each)
        for each in ("subjects", "topics", "topics over http")
    },
    **{
        each.__name__: each
        for each in (
            coming_and_going,
            recovering,
            recovering_streams,
            revoked,
            hanging_up,
            queueing,
            administering,
            repeating,
            erring,
            refused,
        )
    },
}
