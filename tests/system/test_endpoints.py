"""The contract of all endpoints: what one publishes, every other that can say its address gets."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected

from mist import client
from mist.attributes import Attributes
from mist.auth import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes
from mist.server import Server
from tests.endpoints import LISTEN, PUBLISHERS, RECEIVERS, SCENARIOS, Receive, Scenario, web
from tests.http.client import request
from tests.servers import running
from tests.transports.lines import talk

TOKEN = "t0ken-that-no-log-may-hold"
ADDRESSES = {"subjects": "subject", "topics": "topic", "topics over http": "topic"}
NEED_HISTORY = {"polls", "channels"}


@pytest.fixture(params=["none", "memory://"], ids=["live", "history"])
def server_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"listen": LISTEN, "history": request.param}


async def register(server: Server, token: str, **attributes: object) -> None:
    every = {"*", ">*", "/", ">/", ".>", ">.>"}
    (record,) = await server.hub.registry.execute([Register(token, frozenset(every))])
    assert isinstance(record, Record)
    if attributes:
        await server.hub.registry.execute([SetAttributes(token, Attributes.of_json(attributes))])


def speaks(endpoint: str, scenario: Scenario, server: Server) -> bool:
    if endpoint in NEED_HISTORY and server.hub.sequencer is None:
        return False
    if endpoint in ("subjects", "topics", "topics over http"):
        return bool(getattr(scenario, ADDRESSES[endpoint])[0])
    return endpoint != "channels" or bool(scenario.channel)


def says_all(endpoint: str, scenario: Scenario) -> bool:
    """Whether a publisher can say all of a scenario's tags."""
    return (
        endpoint in ("lines", "json", "frames", "json frames", "http") or "," not in scenario.tags
    )


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_everyone_who_asked_gets_it_once(server: Server, name: str, publisher: str) -> None:
    scenario = SCENARIOS[name]
    if not (speaks(publisher, scenario, server) and says_all(publisher, scenario)):
        return  # there is no such case: a subject can't be said in topics
    await register(server, TOKEN)
    async with AsyncExitStack() as stack:
        inboxes: dict[str, Receive] = {}
        for endpoint, receiver in RECEIVERS.items():
            if speaks(endpoint, scenario, server):
                inbox = receiver(server, scenario, TOKEN)
                inboxes[endpoint] = await stack.enter_async_context(inbox)
        for data in ("one", "two", "three"):
            await PUBLISHERS[publisher](server, scenario, data, TOKEN)
        for endpoint, receive in inboxes.items():
            got = [await receive() for _ in range(3)]
            assert got == ["one", "two", "three"], f"{publisher} to {endpoint}"
    assert len(inboxes) >= 5


def test_every_endpoint_is_a_case_somewhere() -> None:
    class Kept:
        class hub:
            sequencer = True

    for publisher in PUBLISHERS:
        assert any(
            speaks(publisher, each, Kept) and says_all(publisher, each)  # type: ignore[arg-type]
            for each in SCENARIOS.values()
        )
    for receiver in RECEIVERS:
        assert any(speaks(receiver, each, Kept) for each in SCENARIOS.values())  # type: ignore[arg-type]


async def to_line(server: Server, scenario: Scenario, data: str) -> None:
    async with talk(server) as lines:
        assert await lines.ask(f"publish-to users=1 {scenario.tags} {data}\n".encode()) == []


async def to_http(server: Server, scenario: Scenario, data: str) -> None:
    body = {"tags": scenario.tags.split(","), "data": data, "to": {"users": [1]}}
    assert (await request(server, "POST", "/v1/messages", json=body)).status < 300


@pytest.mark.parametrize("publish", [to_line, to_http])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_an_audience_holds_at_every_endpoint(
    server: Server, name: str, publish: object
) -> None:
    scenario = SCENARIOS[name]
    for user in ("1", "2"):
        await register(server, f"token-{user}", user=user)
    async with AsyncExitStack() as stack:
        inboxes: dict[tuple[str, str], Receive] = {}
        for endpoint, receiver in RECEIVERS.items():
            if endpoint in ("lines", "json_lines") or not speaks(endpoint, scenario, server):
                continue  # services have no attributes
            for user in ("1", "2"):
                inbox = receiver(server, scenario, f"token-{user}")
                inboxes[endpoint, user] = await stack.enter_async_context(inbox)
        await publish(server, scenario, "for one")  # type: ignore[operator]
        await PUBLISHERS["lines"](server, scenario, "for all", "")
        for (endpoint, user), receive in inboxes.items():
            wanted = ["for one", "for all"] if user == "1" else ["for all"]
            assert [await receive() for _ in wanted] == wanted, f"{endpoint} of user {user}"


@pytest.mark.parametrize("name", SCENARIOS)
async def test_what_was_reaches_those_who_come_later(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        with trio.fail_after(60):
            for user in ("1", "2"):
                await register(server, f"token-{user}", user=user)
            await PUBLISHERS["lines"](server, scenario, "for all", "")
            await to_line(server, scenario, "for one")
            # A service has no attributes, so it isn't user 1.
            async with talk(server) as lines:
                found = await lines.ask(f"subscribe {scenario.asked} 0\n".encode())
                assert [line.split(b" ", 2)[2] for line in found] == [b"for all\n"]
            for user, wanted in (("1", ["for all", "for one"]), ("2", ["for all"])):
                async with RECEIVERS["polls"](server, scenario, f"token-{user}") as receive:
                    assert [await receive() for _ in wanted] == wanted
                path = f"/v1/messages?tags={scenario.asked.replace('>', '%3E')}"
                headers = {"X-Auth-Token": f"token-{user}"}
                page = (await request(server, "GET", path, headers)).json()
                assert [each["data"] for each in page["messages"]] == wanted


async def test_a_client_id_is_its_tokens_for_as_long_as_it_lives(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        with trio.fail_after(60):
            for user in ("1", "2"):
                await register(server, f"token-{user}", user=user)
            path = "/v1/poll?tags=a&timeout=0&client=tab"
            for user, status in (("1", 200), ("2", 409), ("1", 200)):
                headers = {"X-Auth-Token": f"token-{user}"}
                response = await request(server, "GET", path, headers)
                assert response.status == status, response
            assert response.json()["messages"] == []


async def test_an_empty_client_id_is_none_that_anybody_has(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        with trio.fail_after(60):
            for user in ("1", "2"):
                await register(server, f"token-{user}", user=user)
                headers = {"X-Auth-Token": f"token-{user}"}
                path = "/v1/poll?tags=a&timeout=0&client="
                assert (await request(server, "GET", path, headers)).status == 200
                async with web(server, "/subscribe/websocket?client=", f"token-{user}") as socket:
                    await socket.send_message('{"command":"ping"}')
                    assert '"success":true' in await socket.get_message()


async def test_a_client_chooses_its_id_on_a_websocket(tmp_path: Path) -> None:
    path = "/subscribe/websocket?client=tab"
    async with running(tmp_path, listen=LISTEN) as server:
        with trio.fail_after(60):
            for user in ("1", "2"):
                await register(server, f"token-{user}", user=user)
            async with web(server, path, "token-1") as first:
                await first.send_message('{"command":"subscribe","tags":["a"]}')
                await first.get_message()
                with pytest.raises(ConnectionRejected) as refused:
                    async with web(server, path, "token-2"):
                        pass
                assert refused.value.status_code == 409
                async with web(server, path, "", ["mist.v1"]) as late:
                    # Whose it is shows when the token does.
                    await late.send_message('{"command":"auth","token":"token-2"}')
                    with pytest.raises(ConnectionClosed) as closed:
                        await late.get_message()
                    assert closed.value.reason is not None
                    assert closed.value.reason.code == 4409
                async with web(server, path, "", ["mist.v1"]) as second:
                    await second.send_message('{"command":"auth","token":"token-1"}')
                    assert '"success":true' in await second.get_message()
                    await second.send_message('{"command":"subscribe","tags":["a"]}')
                    await second.get_message()
                    async with talk(server) as lines:
                        await lines.ask(b"publish-to clients=tab a x\npublish-to clients=no a y\n")
                        await lines.ask(b"publish a z\n")
                    for socket in (first, second):
                        got = [json.loads(await socket.get_message())["data"] for _ in range(2)]
                        assert got == ["x", "z"]


@pytest.mark.parametrize("history", ["none", "memory://"])
async def test_messages_of_one_request_may_be_for_different_people(
    tmp_path: Path, history: str
) -> None:
    scenario = SCENARIOS["tags"]
    async with running(tmp_path, listen=LISTEN, history=history) as server:
        with trio.fail_after(60):
            for user in ("1", "2"):
                await register(server, f"token-{user}", user=user)
            async with (
                RECEIVERS["frames"](server, scenario, "token-1") as one,
                RECEIVERS["frames"](server, scenario, "token-2") as two,
            ):
                body: list[dict[str, object]] = [
                    {"tags": ["eu", "order"], "data": str(n)} for n in range(6)
                ]
                for message, to in zip(body[:5], ([1], [1], [2], None, [2, 1]), strict=True):
                    if to is not None:
                        message["to"] = {"users": to}
                response = await request(server, "POST", "/v1/messages", json=body)
                if history != "none":
                    assert response.json() == {"ids": [1, 6], "count": 6}
                assert [await one() for _ in range(5)] == ["0", "1", "3", "4", "5"]
                assert [await two() for _ in range(4)] == ["2", "3", "4", "5"]
                body[3]["to"] = {"users": []}
                refused = await request(server, "POST", "/v1/messages", json=body)
                assert (refused.status, refused.json()["code"]) == (400, "invalid_audience")


async def test_a_token_at_the_bound_of_its_attributes_loses_its_tags_at_once(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        with trio.fail_after(60):
            registry = server.hub.registry
            await registry.execute([Register("token-1", frozenset({"a"}))])
            path = "/subscribe/websocket?client=" + "x" * 200
            async with web(server, path, "token-1") as socket:
                await socket.send_message('{"command":"subscribe","tags":["a"]}')
                await socket.get_message()
                long = Attributes.of_json({f"name{n}": "y" * 250 for n in range(63)})
                outcomes = await registry.execute(
                    [
                        AddTags("token-1", frozenset({"b"})),
                        SetAttributes("token-1", long),
                        RemoveTags("token-1", frozenset({"a"})),
                    ]
                )
                assert not any(isinstance(each, Exception) for each in outcomes)
                assert '"command":"revoked"' in await socket.get_message()


def test_scenarios_differ() -> None:
    assert len({attrs.astuple(each) for each in SCENARIOS.values()}) == len(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_python_client_gets_what_its_addresses_stand_for(
    server: Server, name: str
) -> None:
    scenario = SCENARIOS[name]
    async with client.connect(server.urls[0]) as peer:
        async with peer.subscribe(scenario.asked.split(",")) as messages:
            await peer.publish(scenario.tags.split(","), "x")
            with trio.fail_after(10):
                message = await anext(aiter(messages))
            assert (message.tags, message.data) == (frozenset(scenario.tags.split(",")), b"x")
