"""Nodes whose clocks differ by more than a day go by their engine's: the times of messages, what is
too old, keys and tickets are the same at all of them."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.http.client import request
from tests.processes import Process, dial, token_key
from tests.system.nodes import ON_REDIS, EngineServer, engine_server
from tests.system.test_faults import HOUR, put, serving_by
from tests.transports.test_websocket import PATH
from tests.transports.websockets import open_websocket

# Hours. More than a day, for which idempotency keys are kept.
AHEAD = {"right": 0.0, "fast": 25.0, "slow": -25.0}
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
OPTIONS = ("--keep-age", "1s", "--keep", "a=30m")
TOKEN = "t0ken"
PAGE = {"Origin": "http://localhost:3000"}


@pytest.fixture(params=ON_REDIS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineServer]:
    with engine_server(request.param, tmp_path) as server:
        yield server


def start(folder: Path, url: str, stack: ExitStack) -> dict[str, Process]:
    """The nodes, each with its own clock; by its name."""
    options = ("--engine", url, "--token-key-file", str(token_key(folder)), *OPTIONS)
    nodes = {}
    for name, ahead in AHEAD.items():
        clock = folder / f"{name}.clock"
        put(clock, ahead * HOUR)
        node = serving_by(clock, folder / name, *options, listen=LISTEN)
        nodes[name] = stack.enter_context(node)
    return nodes


async def messages(node: Process) -> list[dict]:
    """All that it has."""
    answer = await request(node, "GET", "/v1/messages?tags=a&since=0")
    other = await request(node, "GET", "/v1/messages?tags=soon&since=0")
    return [*answer.json()["messages"], *other.json()["messages"]]


async def test_clocks_of_nodes_do_not_matter(tmp_path: Path, engine: EngineServer) -> None:
    with ExitStack() as stack:
        nodes = start(tmp_path, engine.url(), stack)
        for name, node in nodes.items():
            for tag in ("a", "soon"):
                body = {"tags": [tag], "data": name}
                key = {"Idempotency-Key": json.dumps(f"{tag} {name}")}
                assert (await request(node, "POST", "/v1/messages", key, json=body)).status == 200
        with dial(nodes["slow"].urls[0]) as admin:
            admin.sendall(f"register a {TOKEN}\nping\n".encode())
            assert admin.recv(100) == b"pong\n"
        answer = await request(
            nodes["slow"], "POST", "/v1/tickets", {"X-Auth-Token": TOKEN, **PAGE}, json={}
        )
        url = f"{PATH}?ticket={answer.json()['ticket']}"
        async with open_websocket(
            nodes["fast"], url, index=1, subprotocols=["mist.v1"], headers=PAGE
        ):
            pass
        for node in nodes.values():
            assert (await request(node, "GET", "/readyz")).status == 200
            while len(await messages(node)) < 6:  # noqa: ASYNC110  # which nothing tells of
                await trio.sleep(0.05)
    await trio.sleep(1)
    with ExitStack() as stack:
        # Retention begins with a node: what is too old goes, and what isn't stays.
        nodes = start(tmp_path, engine.url(), stack)
        found = {}
        for name, node in nodes.items():
            give_up = time.monotonic() + 20
            while len(found.setdefault(name, await messages(node))) > 3:
                assert time.monotonic() < give_up, f"{name}: {found[name]}"
                await trio.sleep(0.05)
                found[name] = await messages(node)
        assert found["right"] == found["fast"] == found["slow"]
        assert [each["data"] for each in found["right"]] == list(AHEAD)
        times = [each["time"] for each in found["right"]]
        assert times == sorted(times)
        assert abs(times[0] - time.time()) < 60
        # A key is known at all of them, whichever has stored it.
        for key, first in zip(AHEAD, found["right"], strict=True):
            for node in nodes.values():
                body = {"tags": ["a"], "data": key}
                headers = {"Idempotency-Key": json.dumps(f"a {key}")}
                again = await request(node, "POST", "/v1/messages", headers, json=body)
                assert again.json()["id"] == first["id"]
