"""Two servers with one token registry: who gets in where, and what each protocol says without it.

Both are in this process; `test_nodes_tokens.py` has them in their own.
"""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from trio_websocket import ConnectionClosed

from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, Unregister
from mist.server import Server
from tests.auth.shared_stores import FlakyStore
from tests.http.client import Response, request
from tests.servers import listeners, running
from tests.transports.lines import talk
from tests.transports.test_websocket import PATH, browse, code, status
from tests.transports.websockets import open_websocket
from tests.waiting import until

A, AB = frozenset("a"), frozenset("ab")
TOKEN = "t0ken-that-no-log-may-hold"
PAGE = {"Origin": "http://localhost:3000"}


@attrs.define(eq=False)
class Node:
    """A server, and the store that its registry sees."""

    server: Server
    registry: SharedRegistry
    store: FlakyStore

    async def lose_contact(self, seconds: float) -> None:
        """Go on as if it had had none for so long."""
        self.store.down = True
        await until(lambda: bool(self.registry._outage))
        self.registry._contact = trio.current_time() - seconds

    async def ask(
        self, method: str, path: str, token: str | None = TOKEN, **options: object
    ) -> Response:
        headers = {"X-Auth-Token": token} if token else {"Authorization": "Bearer s3cret"}
        headers |= options.pop("headers", {})  # type: ignore[call-overload]
        return await request(self.server, method, path, headers, **options)  # type: ignore[arg-type]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Two, the second of which hears nothing of the first one before it asks."""
    settings: dict[str, object] = {
        "listen": listeners("tcp", "ws", "http"),
        "tokens": f"memory://{secrets.token_hex(4)}",
        "history": "memory://",
        "secret": "s3cret",
        "failed_auth_delay": 0.0,
        "token_rate": 10_000,
    }
    async with (
        running(tmp_path / "one", **settings) as one,  # type: ignore[arg-type]
        running(tmp_path / "two", **settings) as two,  # type: ignore[arg-type]
    ):
        nodes = []
        for server in (one, two):
            registry = server.hub.registry
            assert isinstance(registry, SharedRegistry)
            registry._store = store = FlakyStore(registry._store)
            nodes.append(Node(server, registry, store))
        nodes[1].store.deaf = True
        # It has been waiting for news since before it was deaf.
        await until(lambda: nodes[1].store.questions)
        yield nodes[0], nodes[1]


# Who gets in


async def test_a_token_is_good_at_once_at_the_other(nodes: tuple[Node, Node]) -> None:
    one, two = nodes

    async def fresh() -> str:
        """One that the other server doesn't know of."""
        token = secrets.token_hex(8)
        await one.registry.execute([Register(token, A)])
        assert two.registry.lookup(token) is None
        return token

    async with browse(two.server, await fresh()) as page:
        assert (await page.ask("ping"))["success"]
    async with browse(two.server, await fresh(), ours=False) as page:
        assert (await page.ask("ping"))["success"]
    async with browse(two.server, None) as page:
        assert (await page.ask("auth", token=await fresh()))["success"]
        assert (await page.ask("auth", token=await fresh()))["success"]
    for path in ("/v1/poll?tags=a&timeout=0", "/v1/messages?tags=a"):
        assert (await two.ask("GET", path, await fresh())).status == 200
    assert (
        await two.ask("POST", "/v1/tickets", await fresh(), headers=PAGE, json={})
    ).status == 201
    assert (await two.ask("GET", "/v1/messages?tags=a", "wrong")).status == 401
    assert await status(two.server, token="wrong", ours=False) == 401


async def test_administrators_see_changes_of_other_servers(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    (record,) = await one.registry.execute([Register(TOKEN, A)])
    assert record is not None
    path = f"/v1/tokens/{record.id}"  # type: ignore[union-attr]
    async with talk(two.server) as admin:
        await admin.ask(b"auth s3cret\n")
        assert await admin.ask(f"tags {TOKEN}\n".encode()) == [f"tags {TOKEN} a\n".encode()]
        assert (await two.ask("GET", path, None)).json()["tags"] == ["a"]
        await one.registry.execute([AddTags(TOKEN, AB)])
        assert (await two.ask("GET", path, None)).json()["tags"] == ["a", "b"]
        assert await admin.ask(f"tags {TOKEN}\n".encode()) == [f"tags {TOKEN} a,b\n".encode()]
        await one.registry.execute([Unregister(TOKEN)])
        assert (await two.ask("GET", "/v1/tokens", None)).json()["tokens"] == []
        assert (await two.ask("GET", path, None)).status == 404
        assert await admin.ask(f"tags {TOKEN}\n".encode()) == [b"error Token not found\n"]


async def test_a_session_ends_where_its_token_is_revoked_elsewhere(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    await two.registry.execute([Register(TOKEN, A)])
    await until(lambda: one.registry.lookup(TOKEN))
    async with browse(one.server) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        await two.registry.execute([Unregister(TOKEN)])
        assert await page.closed() == 4401
    assert await code(one.server) == 4401


# Without contact


async def test_without_contact_each_protocol_says_so(nodes: tuple[Node, Node]) -> None:
    _, node = nodes
    await node.registry.execute([Register(TOKEN, A)])
    async with browse(node.server) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        ticket = (await node.ask("POST", "/v1/tickets", headers=PAGE, json={})).json()["ticket"]
        await node.lose_contact(1.5)
        for token in (TOKEN, "unknown"):
            assert await code(node.server, token=token) == 1013
            assert await status(node.server, token=token, ours=False) == 503
            for path in ("/v1/poll?tags=a&timeout=0", "/v1/messages?tags=a", "/v1/stream?tags=a"):
                answer = await node.ask("GET", path, token)
                assert (answer.status, answer.json()["code"]) == (503, "registry_unavailable")
                assert answer.headers["retry-after"]
            async with browse(node.server, None) as other:
                refused = await other.ask("auth", token=token)
                assert (refused["success"], refused["error"]) == (False, "Registry is unavailable")
        answer = await node.ask("GET", f"/v1/poll?tags=a&ticket={ticket}", None, headers=PAGE)
        assert answer.status == 400  # with the secret, too
        async with open_websocket(
            node.server, f"{PATH}?ticket={ticket}", subprotocols=["mist.v1"], headers=PAGE
        ) as socket:
            with pytest.raises(ConnectionClosed, match="1013"):
                await socket.get_message()
        # Who is in stays, and is given what is published; what was is not replayed.
        assert await node.server.hub.store(A, b"live") == 1
        assert (await page.get())["data"] == "live"
        answer_ = await page.ask("subscribe", tags=["a"], since=0)
        assert (answer_["success"], answer_["error"]) == (False, "Registry is unavailable")
        assert not node.server.hub.failed_auths
        # All comes back by itself, and the ticket was not used up.
        node.store.down = False
        await until(lambda: node.registry.silence < 0.5)
        assert (await page.ask("subscribe", tags=["a"], since=0))["success"]
        async with open_websocket(
            node.server, f"{PATH}?ticket={ticket}", subprotocols=["mist.v1"], headers=PAGE
        ):
            pass


async def test_services_need_no_registry(nodes: tuple[Node, Node]) -> None:
    _, node = nodes
    await node.lose_contact(100)
    async with talk(node.server) as service:
        assert await service.ask(b"auth s3cret\nstore a 1\nlast\n")
        assert (await node.ask("GET", "/v1/messages?tags=a", None)).status == 200
        (refused,) = await service.ask(b"tags t\n")
        assert b"Registry is unavailable" in refused
    assert (await node.ask("GET", "/v1/tokens", None)).status == 503


async def test_without_contact_for_three_seconds_it_is_not_ready(nodes: tuple[Node, Node]) -> None:
    _, node = nodes
    assert (await node.ask("GET", "/readyz", None)).status == 200
    await node.lose_contact(2.5)
    assert (await node.ask("GET", "/readyz", None)).status == 200
    await node.lose_contact(3.1)
    answer = await node.ask("GET", "/readyz", None)
    assert (answer.status, answer.json()["code"]) == (503, "registry_unavailable")
    assert (await node.ask("GET", "/healthz", None)).status == 200
    node.store.down = False
    await until(lambda: node.registry.silence < 0.5)
    assert (await node.ask("GET", "/readyz", None)).status == 200
