"""An archive that nodes share, over HTTP: any of them may be asked, whichever seals."""

import json
import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.archive import Archive
from mist.archive.segments import read_segment
from mist.archive.sharing import SharedSealer
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import Register
from mist.protocols.line.forms import PLAIN
from mist.server import Server
from tests.http.client import request
from tests.servers import listeners, running
from tests.waiting import until


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


@pytest.fixture
async def nodes(tmp_path: Path, archive: Archive) -> AsyncIterator[list[Server]]:
    """Two nodes: the one that seals, and another."""
    realm = f"memory://{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(
                running(
                    tmp_path / name,
                    listen=listeners("tcp", "http"),
                    history="memory://",
                    engine=realm,
                    tokens=realm,
                    node=name,
                    archive=archive.folder,
                )
            )
            for name in ("n1", "n2")
        ]
        await until(lambda: any(each.describe().sealing for each in started))
        for server in started:
            with trio.fail_after(5):
                while await known(server) != [False, True]:  # noqa: ASYNC110  # nothing tells
                    await trio.sleep(0.05)
        yield sorted(started, key=lambda each: not each.describe().sealing)


async def known(server: Server) -> list[bool]:
    """Of each node that this one knows, whether it seals."""
    found = (await request(server, "GET", "/v1/nodes")).json()["nodes"]
    return sorted([each["sealing"] for each in found])


async def post(server: Server, path: str, body: Any = None) -> Any:
    response = await request(
        server,
        "POST",
        path,
        {"Content-Type": "application/json"},
        json.dumps({} if body is None else body).encode(),
    )
    assert response.status == 200, response.body
    return response.json()


def rows(archive: Archive, name: str, *columns: str) -> list[tuple[object, ...]]:
    table = archive.table(name)
    if not table.exists:
        return []
    return [
        tuple(row.values())
        for segment in table.current().segments
        for row in read_segment(table, segment, list(columns)).to_pylist()
    ]


async def published(server: Server, *texts: str) -> None:
    for text in texts:
        tag = "secret" if text.startswith("s") else "a"
        await server.hub.store(frozenset({tag}), text.encode())


@pytest.mark.parametrize("asked", [0, 1])
async def test_it_is_sealed_whichever_node_is_asked(
    nodes: list[Server], archive: Archive, asked: int
) -> None:
    await published(nodes[0], "1")
    await published(nodes[1], "2")
    assert await post(nodes[asked], "/v1/log/seal") == {"sealed": 2}
    assert rows(archive, "messages", "id", "data") == [(1, b"1"), (2, b"2")]
    for server in nodes:
        sealer = server.hub.sealer
        assert sealer is not None
        await until(lambda sealer=sealer: sealer.sealed == 2)  # type: ignore[misc]
        found = (await request(server, "GET", "/v1/log/position")).json()
        assert found["sealed"] == 2


async def test_what_is_erased_at_any_node_is_not_sealed(
    nodes: list[Server], archive: Archive
) -> None:
    await published(nodes[0], "1", "secret", "3")
    shared = nodes[0].hub.sealer
    assert isinstance(shared, SharedSealer)
    sealer = shared._sealer
    assert sealer is not None
    await until(lambda: sealer._open is not None)  # it has been read
    erased = await post(nodes[1], "/v1/log/erase", {"tags": ["secret"]})
    assert erased["erased"] == 1
    manifest = archive.messages.current()
    assert manifest.erasure[1] > 0
    await post(nodes[1], "/v1/log/seal")
    assert rows(archive, "messages", "id", "data") == [(1, b"1"), (3, b"3")]


async def test_accounts_are_of_all_nodes_and_complete_once_all_have_written(
    nodes: list[Server], archive: Archive
) -> None:
    for number, server in enumerate(nodes):
        broker = server.hub.broker
        outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
        broker.assign(outbox, f"t{number}", ())
        broker.subscribe(outbox, frozenset("a"))
    began = math.floor(time.time() / 60)
    await published(nodes[0], "1")
    await until(lambda: nodes[1].hub.broker.statistics().relayed == 1)
    await post(nodes[1], "/v1/log/seal")
    columns = ("token", "subscription", "sent")
    assert sorted(rows(archive, "deliveries", *columns)) == [("t0", "a", 1), ("t1", "a", 1)]
    table = archive.table("deliveries")
    assert table.current().sealed >= began
    # One that has written later: what it has not written yet is not complete.
    later = nodes[0].hub.side_tables
    assert later is not None
    later.accounted += 60
    await later._note_all()
    assert table.current().sealed < later.accounted


async def test_tokens_are_written_by_the_node_that_seals(
    nodes: list[Server], archive: Archive
) -> None:
    await nodes[1].hub.registry.execute([Register("t", frozenset("a"))])
    await until(lambda: nodes[0].hub.registry.page(10, ""))
    await published(nodes[0], "1")
    for server in (nodes[1], nodes[0]):
        await post(server, "/v1/log/seal")
    assert [tags for _, tags in rows(archive, "tokens", "token", "tags")] == [["a"]]


async def test_the_node_that_seals_is_told(nodes: list[Server]) -> None:
    for server, value in zip(nodes, ("1.0", "0.0"), strict=True):
        text = (await request(server, "GET", "/metrics")).body.decode()
        assert f"\nmist_archive_sealing {value}\n" in text
