"""Who reads the history next: requests of one token wait for each other, and not others for all."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from mist.bus import Bus
from mist.commands import Register
from mist.history.cursor import Cursor
from mist.http.read_turns import ReadTurns
from mist.server import Server
from tests.http.client import request
from tests.servers import listeners
from tests.waiting import until


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": listeners("http"), "history": "memory://"}


@pytest.mark.parametrize("path", ["/v1/messages?tags={}", "/v1/poll?since=0&tags={}"])
async def test_others_wait_for_few_pages_of_one_who_asks_for_many(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    hub = server.hub
    assert hub.sequencer is not None
    history = hub.sequencer.history
    for token in ("many", "one"):
        await hub.registry.execute([Register(token, frozenset([token]))])
        await hub.store(frozenset([token]), b"x")
    asked: Counter[str] = Counter()
    go_on, read = trio.Event(), history.read

    async def read_late(selection: Any, **options: Any) -> Any:
        (tags,) = selection.alternatives
        asked.update(str(tag) for tag in tags)
        await go_on.wait()
        return await read(selection, **options)

    monkeypatch.setattr(history, "read", read_late)
    answered: list[int] = []

    async def ask(token: str) -> None:
        answer = await request(server, "GET", path.format(token), {"X-Auth-Token": token})
        assert len(answer.json()["messages"]) == 1
        answered.append(answer.status)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, "many")
        await until(lambda: asked.total() >= 2)
        nursery.start_soon(ask, "one")
        await until(lambda: asked.total() >= 3)
        assert sorted(asked.values()) == [1, 2]
        go_on.set()
    assert answered == [200] * 21


async def test_a_poll_of_message_bus_waits_for_few_of_one_who_asks_for_many(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of them all together one page is read at a time."""
    for token in ("many", "one"):
        await server.hub.registry.execute([Register(token, frozenset([f"=/{token}"]))])
        await Bus(server.hub).publish(f"/{token}", "x")
    go_on, read, waits = trio.Event(), Cursor.read, 0

    async def read_late(self: Cursor, *place: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        await go_on.wait()
        return await read(self, *place, **options)

    monkeypatch.setattr(Cursor, "read", read_late)
    answered: list[str] = []

    async def ask(client: int, token: str) -> None:
        path = f"/message-bus/c{client}/poll?dlp=t"
        answer = await request(server, "POST", path, {"X-Auth-Token": token}, json={f"/{token}": 0})
        assert [each["data"] for each in answer.json()] == ["x"]
        answered.append(token)

    def polls() -> int:
        return len([each for each in server.hub.sessions if each.transport == "bus"])

    async with trio.open_nursery() as nursery:
        for client in range(20):
            nursery.start_soon(ask, client, "many")
        await until(lambda: waits and polls() == 20)
        nursery.start_soon(ask, 20, "one")
        await until(lambda: polls() == 21)
        go_on.set()
    assert answered.index("one") < 8


async def test_a_turn_is_given_back_also_by_one_who_gave_up_and_nothing_is_kept() -> None:
    turns = ReadTurns()
    had: list[str] = []

    async def read() -> None:
        async with turns.turn("a"):
            had.append("a")
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        async with turns.turn("b"):
            assert had == ["a", "a"]
        nursery.cancel_scope.cancel()
    assert had == ["a", "a"]
    assert not turns._turns
