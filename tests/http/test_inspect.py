"""`/v1/connections`, `/v1/subscriptions`, `/v1/tags`."""

import time
from urllib.parse import quote

import pytest
import trio

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import Register
from mist.protocols.line.forms import PLAIN
from mist.sessions.session import Session
from mist.terms import Terms
from tests.http.client import request
from tests.http.test_stats import Peer, dial
from tests.servers import listeners, running

LISTEN = listeners("tcp", "http")
LISTS = ["connections", "subscriptions", "tags"]


@pytest.fixture
def server_settings():
    return {"listen": LISTEN, "history": "memory://"}


async def every(server, name, limit):
    """All pages, joined."""
    found, after = [], ""
    while after is not None:
        query = f"limit={limit}" + (f"&after={quote(after)}" if after else "")
        response = await request(server, "GET", f"/v1/{name}?{query}")
        assert response.status == 200
        page = response.json()
        assert len(page[name]) <= limit
        found += page[name]
        after = page["next"]
    return found, page["count"]


@pytest.mark.parametrize("name", LISTS)
async def test_where_there_is_nothing_lists_are_empty(server, name):
    response = await request(server, "GET", f"/v1/{name}")
    assert response.json() == {name: [], "count": 0, "next": None}
    assert response.headers["cache-control"] == "no-store"


# connections


async def test_a_connection_is_told_with_its_counts(server):
    peer = await dial(server, b"subscribe a\nsubscribe b\npublish a 12345\n")
    [found] = (await request(server, "GET", "/v1/connections")).json()["connections"]
    [session] = server.hub.sessions
    assert found == {
        "name": session.name,
        "transport": "tcp",
        "peer": "127.0.0.1",
        "token": None,
        "subscriptions": 2,
        "queued": 0,
        "queued_bytes": 0,
        "sent": 1,
        "sent_bytes": session.outbox.sent_bytes,
        "dropped": 0,
        "behind": False,
        "since": session.since,
    }
    assert abs(time.time() - found["since"]) < 60
    await peer.aclose()


async def test_a_tokens_connection_is_told_by_the_tokens_id(server):
    terms = Terms(name="nightly export")
    [record] = await server.hub.registry.execute(
        [Register("s3cret-t0ken", frozenset("a"), terms=terms)]
    )
    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws", peer="203.0.113.9")
    session.adopt(record)
    session.outbox.dropped_full = 2
    session.outbox.pause()
    response = await request(server, "GET", "/v1/connections")
    [found] = response.json()["connections"]
    assert (found["token"], found["peer"], found["transport"]) == (record.id, "203.0.113.9", "ws")
    assert (found["dropped"], found["behind"]) == (2, True)
    assert found["token_name"] == "nightly export"
    assert b"s3cret" not in response.body
    await session.aclose()


async def test_connections_come_oldest_first_in_pages(server):
    peers = [Peer(server.hub, f"tcp-{n}") for n in range(1, 26)]
    for peer in reversed(peers):
        server.hub.sessions.attach(peer)
    found, count = await every(server, "connections", 7)
    assert [each["name"] for each in found] == [peer.name for peer in peers]
    assert count == 25


async def test_who_leaves_between_two_pages_costs_nobody_their_place(server):
    peers = [Peer(server.hub, f"tcp-{n}") for n in range(1, 11)]
    for peer in peers:
        server.hub.sessions.attach(peer)
    page = (await request(server, "GET", "/v1/connections?limit=5")).json()
    for peer in peers[3:6]:
        server.hub.sessions.detach(peer)
    where = f"/v1/connections?after={page['next']}"
    rest = (await request(server, "GET", where)).json()
    assert [each["name"] for each in rest["connections"]] == ["tcp-7", "tcp-8", "tcp-9", "tcp-10"]
    assert rest["next"] is None


# subscriptions and tags


def subscribe(server, tag_lists):
    outbox = Outbox(PLAIN, OutboxLimits(), server.hub.broker.ready)
    for tags in tag_lists:
        server.hub.broker.subscribe(outbox, frozenset(tags.split(",")))


async def test_what_most_subscribe_to_comes_first(server):
    subscribe(server, ["a", "b,a", "ä/ö,🙂"])
    subscribe(server, ["a,b", "z"])
    found, count = await every(server, "subscriptions", 2)
    assert found == [
        {"tags": ["a", "b"], "subscribers": 2},
        {"tags": ["a"], "subscribers": 1},
        {"tags": ["z"], "subscribers": 1},
        {"tags": ["ä/ö", "🙂"], "subscribers": 1},
    ]
    assert count == 4


async def test_tags_come_by_how_many_tag_sets_have_them(server):
    subscribe(server, ["a", "a,b", "a,c", "b,d"])
    found, count = await every(server, "tags", 1)
    assert found == [
        {"tag": "a", "subscriptions": 3},
        {"tag": "b", "subscriptions": 2},
        {"tag": "c", "subscriptions": 1},
        {"tag": "d", "subscriptions": 1},
    ]
    assert count == 4


@pytest.mark.parametrize("limit", [9, 100, 101, 1000])
async def test_pages_hold_each_of_many_once(server, limit):
    subscribe(server, [f"t{n % 10},u{n}" for n in range(100)])
    subscribe(server, [f"t{n % 10},u{n}" for n in range(0, 100, 3)])
    found, _ = await every(server, "subscriptions", limit)
    assert len(found) == len({tuple(each["tags"]) for each in found}) == 100
    numbers = [each["subscribers"] for each in found]
    assert numbers == sorted(numbers, reverse=True)
    found, _ = await every(server, "tags", limit)
    assert len(found) == len({each["tag"] for each in found}) == 110


async def test_a_tag_set_of_the_longest_tags_can_be_paged_over(server):
    long = ",".join(sorted(chr(0xE4 + n) * 126 for n in range(16)))
    subscribe(server, [long, "zz"])
    found, _ = await every(server, "subscriptions", 1)
    assert len(found) == 2


async def test_a_tag_set_that_is_gone_is_not_shown_as_subscribed_to(server, monkeypatch):
    subscribe(server, [f"t{n}" for n in range(5)])
    slices = list(server.hub.broker.groups())
    [victim] = [each for some in slices for each in some if each.tag_list == b"t3"]
    for outbox in list(victim.members):
        server.hub.broker.unsubscribe(outbox, victim)
    # As it is when it goes after the list of its slice was made.
    monkeypatch.setattr(server.hub.broker, "groups", lambda: iter(slices))
    found, count = await every(server, "subscriptions", 100)
    assert sorted(each["tags"][0] for each in found) == ["t0", "t1", "t2", "t4"]
    assert count == 4


@pytest.mark.parametrize("name", LISTS)
async def test_looking_through_many_lets_others_run(server, name):
    if name == "connections":
        for n in range(20_000):
            server.hub.sessions.attach(Peer(server.hub, f"tcp-{n}"))
    else:
        subscribe(server, [f"t{n}" for n in range(20_000)])
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        response = await request(server, "GET", f"/v1/{name}?limit=1")
        nursery.start_soon(count)
        response = await request(server, "GET", f"/v1/{name}?limit=1000")
        nursery.cancel_scope.cancel()
    assert len(response.json()[name]) == 1_000
    assert turns >= 20


# who may ask, and what


@pytest.mark.parametrize("name", LISTS)
async def test_only_services_may(tmp_path, name):
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        await server.hub.registry.execute([Register("t0ken", frozenset("a"))])
        for headers, status in [
            ({}, 401),
            ({"X-Auth-Token": "t0ken"}, 403),
            ({"Authorization": "Bearer s3cret"}, 200),
        ]:
            assert (await request(server, "GET", f"/v1/{name}", headers)).status == status


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=a", "limit=1&limit=1", "after=", "after=x", "after=1:",
     "after=-1:a", "after=:a", "after=1:a%0Ab", "after=" + "9" * 16 + ":a", "after=tcp-",
     "after=tcp--1", "after=tcp-" + "9" * 5_000, "after=1:" + "x" * 5_001],
)  # fmt: skip
async def test_page_that_means_nothing_is_refused(server, name, query):
    response = await request(server, "GET", f"/v1/{name}?{query}")
    assert response.status == 400
    assert response.json()["code"] in ("invalid_limit", "invalid_position", "invalid_query")
