"""Two sites on one server: clients of one learn nothing of the other, not even how much it says."""

from typing import Any

import pytest

from mist.attributes import Attributes
from mist.audience import Audience
from mist.bus.sites import SitePositions
from mist.commands import SetAttributes
from mist.history import ChannelPosition, Publication
from mist.history.opening import open_history
from mist.message import Envelope
from mist.server import Server
from tests.history.messages import run
from tests.http.bus.polls import SETTINGS, Polling, poll, status, told

TOKENS = {"token-a": "a", "token-b": "b"}
OF_A = {"X-Auth-Token": "token-a"}
OF_B = {"X-Auth-Token": "token-b"}
TAGS = {"/foo", "/bar", "/global/x", ">/foo"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {**SETTINGS, "grants": dict.fromkeys(TOKENS, TAGS)}


@pytest.fixture
async def sites(server: Server) -> Server:
    """The server, with a token for each site."""
    await server.hub.registry.execute(
        [
            SetAttributes(token, Attributes(user=f"u{site}", others={"site": site}))
            for token, site in TOKENS.items()
        ]
    )
    return server


async def publish(server: Server, site: str, *data: str, tag: str = "/foo", **who: Any) -> None:
    audience = Audience.of(others={"site": site}, **who)
    messages = [(frozenset({tag}), each.encode()) for each in data]
    await server.hub.store_all(messages, envelopes=[Envelope(audience=audience)] * len(data))


async def answers(server: Server) -> list[Any]:
    """All that b can find out by asking: every kind of place, and numbers around the last ones."""
    places = [-1, -2, -5, -1000, *range(30), 10**6]
    found: list[Any] = [
        await poll(server, {"/foo": place, "/bar": -1}, OF_B, dlp=True) for place in places
    ]
    return [*found, await poll(server, {"/foo": 2}, OF_B, client="c2", dlp=False)]


async def test_no_answer_tells_how_much_another_site_publishes(
    sites: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 0.05)
    await publish(sites, "a", "1")
    await publish(sites, "b", "2")
    before = await answers(sites)
    for count in (1, 5, 12):
        await publish(sites, "a", *["x"] * count)
        await publish(sites, "a", *["x"] * count, tag="/bar")
        assert await answers(sites) == before


async def test_a_chunked_poll_says_nothing_of_it_either(
    sites: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 1.0)
    async with Polling(sites, {"/foo": 0}, OF_B) as chunked:
        assert await chunked.chunk() == []
        await publish(sites, "a", "x", "y")
        assert await chunked.ended()


async def test_a_site_misses_none_of_its_own(sites: Server) -> None:
    place = -1
    for number in range(6):
        answer = await poll(sites, {"/foo": place}, OF_B)
        place = answer[-1]["data"]["/foo"] if answer else place
        await publish(sites, "a", *"xyz")
        await publish(sites, "b", str(number))
        await publish(sites, "a", *"xyz")
        [message] = await poll(sites, {"/foo": place}, OF_B)
        assert message["data"] == str(number)
        place = message["message_id"]
    assert told(await poll(sites, {"/foo": -8}, OF_B)) == [("/foo", "5")]


async def test_a_site_is_told_of_what_others_of_it_get(sites: Server) -> None:
    await publish(sites, "b", "1", users=["x"])
    assert told(await poll(sites, {"/foo": 0}, OF_B)) == [status(foo=1)]
    assert await poll(sites, {"/foo": 0}, OF_A, client="of-a") == []


async def test_what_is_for_every_site_counts_for_each(sites: Server) -> None:
    await publish(sites, "a", "1", "2", tag="/global/x")
    assert told(await poll(sites, {"/global/x": -1}, OF_B)) == [
        ("/__status", {"/global/x": 2}),
    ]


async def test_only_what_is_new_is_looked_at_again() -> None:
    async with await open_history("memory://") as history:

        async def append(site: str, count: int) -> dict[str, ChannelPosition]:
            audience = Audience.of(others={"site": site}).text
            await history.append(
                [Publication.of_runs([run("/foo", *["x"] * count)], 1000.0, audience=audience)]
            )
            return await history.channels(["/foo"])

        reads: list[int] = []
        read = history.read

        async def counted(selection: Any, **options: Any) -> Any:
            reads.append(options["after"])
            return await read(selection, **options)

        history.read = counted  # type: ignore[method-assign]
        positions = SitePositions(history, 100)
        assert (await positions.of("b", await append("a", 50)))["/foo"].last == 0
        assert (await positions.of("b", await append("b", 10)))["/foo"].last == 60
        assert (await positions.of("b", await append("a", 1)))["/foo"].last == 60
        assert (await positions.of("b", await history.channels(["/foo"])))["/foo"].id == 60
        assert reads == [0, 50, 60]
        # Of what came since, no more than is shown.
        assert (await positions.of("b", await append("a", 500)))["/foo"].last == 60
        assert reads[3:] == [461]
