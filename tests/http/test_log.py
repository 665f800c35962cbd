"""The log as Arrow: every row once, from the history or the archive, for those who may."""

import math
import socket

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mist.archive.matching import matching
from mist.archive.schema import MESSAGES
from mist.archive.segments import read_segment
from mist.attributes import Attributes
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import Register, RemoveTags, SetAttributes, Unregister
from mist.history import Erasure, Policy
from mist.history.retention import Rule
from mist.http import held_pages
from mist.protocols.line.forms import PLAIN
from tests.history.messages import publication, run, some
from tests.http.arrow import ARROW
from tests.http.client import connect, request, stalled_connection
from tests.servers import listeners, running

LISTEN = listeners("http", "tcp")
TOKEN = {"X-Auth-Token": "t"}


@pytest.fixture
def server_settings(tmp_path):
    history = f"sqlite:///{tmp_path}/h.db"
    archive = tmp_path / "archive"
    return {"listen": LISTEN, "history": history, "archive": archive, "keep_age": math.inf}


async def append(server, *publications):
    """Into the history, and as if delivered."""
    sequencer = server.hub.sequencer
    await sequencer.history.append(publications)
    sequencer.delivery.newest = (await sequencer.history.position()).newest


async def trim(server, most):
    while (await server.hub.sequencer.history.trim(Policy(None, None, most), 1e9)).more:
        pass


async def get(server, query="", headers=None):
    return await request(server, "GET", f"/v1/log{query}", headers)


def table(response):
    assert response.status == 200, response.body
    assert response.headers["content-type"] == ARROW
    with pa.ipc.open_stream(response.body) as stream:
        assert stream.schema == MESSAGES
        return stream.read_all()


def ids(response):
    return table(response)["id"].to_pylist()


def told(response):
    """Mist-After, Mist-Complete and Mist-Lost."""
    headers = response.headers
    return int(headers["mist-after"]), headers["mist-complete"] == "true", headers.get("mist-lost")


def code(response):
    return response.status, response.json()["code"]


async def every(server, query, headers=None):
    """All rows, page by page."""
    rows, after = [], 0
    while True:
        response = await get(server, f"?after={after}&{query}", headers)
        rows += table(response).to_pylist()
        reached, complete, lost = told(response)
        assert lost is None
        assert reached > after or complete
        after = reached
        if complete:
            return rows


async def test_rows_come_with_all_that_is_known_of_them(server):
    first = publication(
        run("b,a", "1"), time=12.5, publisher="p", audience="x", meta={"k": b"\xff"}
    )
    await append(server, first, some("c", 2, time=13.0))
    response = await get(server)
    assert told(response) == (3, True, None)
    assert response.headers["mist-epoch"] == server.hub.sequencer.epoch
    assert (response.headers["mist-first"], response.headers["mist-newest"]) == ("1", "3")
    rows = table(response).to_pylist()
    assert rows[0] | {"time": rows[0]["time"].timestamp()} == {
        "id": 1,
        "time": 12.5,
        "tags": ["a", "b"],
        "data": b"1",
        "publisher": "p",
        "audience": "x",
        "meta": [("k", b"\xff")],
    }
    assert [(each["id"], each["data"]) for each in rows[1:]] == [(2, b"0"), (3, b"1")]


@pytest.mark.parametrize(
    ("query", "expected", "after", "complete"),
    [
        ("?after=4", [5, 6, 7, 8, 9], 9, True),
        ("?after=4&limit=2", [5, 6], 6, False),
        ("?after=4&upto=6", [5, 6], 6, True),
        ("?upto=0", [], 0, True),
        ("?after=6&upto=3", [], 6, True),
        ("?after=9", [], 9, True),
        ("?after=99", [], 99, True),
        ("?subscribe=a", [1, 2, 3, 4], 9, True),
        ("?subscribe=a,b%3Bd", [4, 8, 9], 9, True),
        ("?subscribe=a%20,b%3B%20d", [4, 8, 9], 9, True),
        ("?subscribe=a,b%3Bd%3B", [4, 8, 9], 9, True),
        ("?subscribe=zz", [], 9, True),
        ("?subscribe=a&limit=3", [1, 2, 3], 3, False),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
async def test_what_is_asked_for_comes(server, sealed, query, expected, after, complete):
    await append(server, publication(run("a", "1", "2", "3"), run("a,b", "4")))
    await append(server, publication(run("b,c", "5"), run("c", "6", "7")), some("d", 2))
    if sealed:
        await server.hub.sealer.seal_now()
        await trim(server, 0)
        assert (await server.hub.sequencer.history.position()).first == 10
    response = await get(server, query)
    assert ids(response) == expected
    assert told(response) == (after, complete, None)
    assert response.headers["mist-first"] == "1"


@pytest.mark.parametrize("most", [1, 20, 1_000_000])
async def test_a_page_is_one_however_little_becomes_rows_at_a_time(server, monkeypatch, most):
    monkeypatch.setattr("mist.http.log_pages._HELD", most)
    monkeypatch.setattr("mist.http.log_pages._BATCH", most)
    monkeypatch.setattr("mist.history.replay._MAX_BLOCKS", 2)
    for number in range(12):
        await append(server, some("a" if number % 3 else "b", 2))
        if number == 7:
            await server.hub.sealer.seal_now()
    await trim(server, 16)  # the rest comes from the archive
    assert (await server.hub.sequencer.history.position()).first == 9
    response = await get(server)
    assert ids(response) == list(range(1, 25))
    assert told(response) == (24, True, None)
    assert table(response)["data"].to_pylist() == [b"0", b"1"] * 12
    response = await get(server, "?after=3&limit=13&subscribe=a")
    assert ids(response) == [n for n in range(4, 24) if (n - 1) // 2 % 3][:13]
    assert told(response)[1:] == (False, None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("after=-1", "invalid_position"),
        ("after=x", "invalid_position"),
        ("after=9007199254740992", "invalid_position"),
        ("after=%D9%A1", "invalid_position"),
        ("upto=1.5", "invalid_position"),
        ("limit=0", "invalid_limit"),
        ("limit=200001", "invalid_limit"),
        ("after=1&after=2", "invalid_query"),
        ("subscribe=", "empty_tag"),
        ("subscribe=%3B", "empty_tag"),
        ("subscribe=a%3B%3Bb", "empty_tag"),
        ("subscribe=a,,b", "empty_tag"),
        ("subscribe=a%20b", "invalid_tag"),
        ("subscribe=a*", "invalid_tag"),
    ],
)
async def test_questions_that_are_none_are_refused(server, query, expected):
    assert code(await get(server, f"?{query}")) == (400, expected)


async def test_another_epoch_is_told(server):
    assert code(await get(server, "?epoch=other")) == (410, "epoch_changed")
    assert (await get(server, f"?epoch={server.hub.sequencer.epoch}")).status == 200


async def test_without_a_history_there_is_none(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        for path in ("/v1/log", "/v1/log/position"):
            assert code(await request(server, "GET", path)) == (409, "history_off")
        erase = await request(server, "POST", "/v1/log/erase", json={"tags": ["a"]})
        assert code(erase) == (409, "history_off")
        sealing = await request(server, "POST", "/v1/log/seal", json={})
        assert code(sealing) == (409, "archive_off")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("/a", [1, 2, 3]),
        ("%3D/a", [1]),
        ("/a,x", [3]),
        (".b.*", [4]),
        (".b.%3E", [4, 5]),
        ("%3D/a;.b.%3E", [1, 4, 5]),
        ("*", [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
async def test_addresses_stand_for_what_they_do_live(server, sealed, query, expected):
    for tags in ("/a", "/a/b", "/a/b,x", ".b.c", ".b.c.d", "x"):
        await append(server, some(tags, 1))
    if sealed:
        await server.hub.sealer.seal_now()
        await trim(server, 0)
    response = await get(server, f"?subscribe={query}")
    assert ids(response) == expected
    assert told(response) == (6, True, None)


# sealed and not


async def test_what_was_trimmed_comes_from_the_archive_and_the_rest_from_the_log(server):
    for n in range(10):
        await append(server, some("a,b" if n % 2 else "a", 100, time=1000.0 + n))
    await server.hub.sealer.seal_now()
    for n in range(10, 14):
        await append(server, some("a,b" if n % 2 else "a", 100, time=1000.0 + n))
    await trim(server, 700)
    position = await server.hub.sequencer.history.position()
    assert 600 < position.first <= 1_000
    assert [each["id"] for each in await every(server, "limit=300")] == list(range(1, 1_401))
    some_rows = await every(server, "limit=70&subscribe=b")
    assert [each["id"] for each in some_rows] == [n + 1 for n in range(1_400) if (n // 100) % 2]
    whole = table(await get(server, "?limit=200000"))
    assert whole["data"].to_pylist() == [str(n % 100).encode() for n in range(1_400)]


async def test_without_an_archive_what_was_trimmed_is_told_as_lost(tmp_path):
    # Messages of 1970, which the server's own retention is not to take.
    settings = {"listen": LISTEN, "history": "memory://", "keep_age": math.inf}
    async with running(tmp_path, **settings) as server:
        for _ in range(10):
            await append(server, some("a", 100))
        await trim(server, 500)
        # Blocks go whole, and the server's own maintenance beside may have joined some.
        first = (await server.hub.sequencer.history.position()).first
        assert 501 <= first <= 1_000
        response = await get(server)
        assert ids(response) == list(range(first, 1_001))
        assert told(response) == (1_000, True, f"1-{first - 1}")
        assert response.headers["mist-first"] == f"{first}"
        assert told(await get(server, f"?after={first - 1}"))[2] is None
        assert told(await get(server, "?after=300&upto=400")) == (400, True, "301-400")


async def test_what_was_never_sealed_is_told_as_lost_and_what_was_erased_is_not(server):
    await append(server, some("a", 50), some("b", 50))
    await server.hub.sealer.erase(Erasure(frozenset("b")))
    await append(server, some("a", 50))
    await server.hub.sealer.seal_now()
    await trim(server, 0)
    response = await get(server)
    assert ids(response) == [*range(1, 51), *range(101, 151)]
    assert told(response) == (150, True, None)


async def test_what_rules_have_kept_is_told_from_what_is_gone_around_it(tmp_path):
    # The server's own maintenance, which runs beside, keeps them, too.
    rules = (Rule.parse("room:*=2"),)
    async with running(tmp_path, listen=LISTEN, history="memory://", keep=rules) as server:
        await append(server, some("room:1", 1), some("b", 50), some("room:1", 2), some("b", 50))
        history = server.hub.sequencer.history
        policy = Policy(None, None, 0, rules)
        while (await history.trim(policy, 1e9)).more:
            pass
        gone = (await history.position()).expired
        assert gone > 53
        where = (await request(server, "GET", "/v1/log/position")).json()
        assert (where["first"], where["gone"]) == (52, gone)
        # Who asks for all behind an id is told what he doesn't get.
        assert told(await get(server)) == (103, True, f"1-{gone}")
        response = await get(server, "?subscribe=room:1&after=51")
        assert (ids(response), told(response)) == ([52, 53], (103, True, None))


TAGS = st.sampled_from(["a", "b", "a,b", "c", "Ä,b"])
WANTED = {
    "": [set()],
    "&subscribe=b": [{"b"}],
    "&subscribe=a,b%3Bc": [{"a", "b"}, {"c"}],
}
RUNS = st.lists(st.tuples(TAGS, st.integers(1, 30)), min_size=1, max_size=5)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
async def test_any_pages_together_are_all_rows_sealed_or_not(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    blocks = data.draw(st.lists(RUNS, min_size=1, max_size=6))
    sealed_at = data.draw(st.integers(0, len(blocks)))
    kept = data.draw(st.integers(0, 60))
    wanted = data.draw(st.sampled_from(sorted(WANTED)))
    settings = {"history": f"sqlite:///{folder}/h.db", "archive": folder / "archive"}
    async with running(folder, listen=LISTEN, **settings) as server:
        expected, newest = [], 0
        for number, runs in enumerate(blocks):
            if number == sealed_at:
                await server.hub.sealer.seal_now()
                await trim(server, kept)
            await append(server, *[some(tags, count) for tags, count in runs])
            for tags, count in runs:
                carried = set(tags.split(","))
                for n in range(count):
                    newest += 1
                    if any(each <= carried for each in WANTED[wanted]):
                        expected.append((newest, str(n).encode()))
        rows, after, complete = [], 0, False
        while not complete:
            limit = data.draw(st.integers(1, 40))
            response = await get(server, f"?after={after}&limit={limit}{wanted}")
            page = table(response)
            assert len(page) <= limit
            rows += zip(page["id"].to_pylist(), page["data"].to_pylist(), strict=True)
            after, complete, lost = told(response)
            assert lost is None
        assert rows == expected
        assert after == newest


def test_rows_match_as_sets_do_also_in_a_slice():
    lists = [["a"], ["b", "a"], [], ["ab"], ["b"], ["c", "b", "a"]]
    whole = pa.array(lists, pa.list_(pa.string()))
    for wanted in ([{"a"}], [{"a", "b"}], [{"b"}, {"ab"}], [{"x"}], [{"x", "a"}, {"c"}]):
        for start in range(len(lists)):
            expected = [any(w <= set(each) for w in wanted) for each in lists[start:]]
            found = matching(whole.slice(start), [frozenset(each) for each in wanted])
            assert found.tolist() == expected, (wanted, start)


# who may


@pytest.fixture
async def granted(server):
    await server.hub.registry.execute([Register("t", frozenset({"a", "room:*"}))])
    await append(
        server,
        publication(run("a", "1"), publisher="p", audience="except=x", meta={"k": b"v"}),
        some("b", 1),
        some("a,b", 1),
    )
    return server


async def test_a_thousand_alternatives_are_as_many_as_can_be_asked_for(server):
    assert (await get(server, "?subscribe=" + "%3B".join(["a"] * 1000))).status == 200
    response = await get(server, "?subscribe=" + "%3B".join(["a"] * 1001))
    assert code(response) == (429, "too_many_subscriptions")


async def test_a_token_reads_what_it_may_subscribe_to_and_is_told_no_more(granted):
    response = await get(granted, "?subscribe=a", TOKEN)
    assert ids(response) == [1, 3]
    for row in table(response).to_pylist():
        assert (row["publisher"], row["audience"], row["meta"]) == ("", None, None)
    assert ids(await get(granted, "?subscribe=a,b", TOKEN)) == [3]


async def test_a_token_needs_to_say_what_and_the_right_to_each(granted):
    assert code(await get(granted, "", TOKEN)) == (400, "subscribe_needed")
    for wanted in ("b", "a%3Bb", "a%3Broom:1%3Bc"):
        assert code(await get(granted, f"?subscribe={wanted}", TOKEN)) == (403, "not_granted")


async def test_a_token_needs_the_right_to_an_address_as_it_asks_for_it(granted):
    await granted.hub.registry.execute([Register("u", frozenset({"/a/*", ".b.>"}))])
    await append(granted, some("/a", 1), some("/a/b", 1), some(".b.c", 1))
    token = {"X-Auth-Token": "u"}
    for wanted, found in [("/a/b", [5]), ("%3D/a/b", [5]), (".b.*", [6]), (".b.%3E", [6])]:
        assert ids(await get(granted, f"?subscribe={wanted}", token)) == found
    for wanted in ("/a", "/", "%3D/a", ".%3E", ".*.c", "*"):
        assert code(await get(granted, f"?subscribe={wanted}", token)) == (403, "not_granted")


FOR = [None, "users=1", "users=2", "groups=g", "users=2&groups=g", "except=c", "site=s", "plan=pro"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", [1, 6, 9]),
        ("user=1", [1, 2, 6, 9]),
        ("user=2&groups=g", [1, 3, 4, 5, 6, 9]),
        ("client=c&plan=pro", [1, 8, 9]),
        ("site=s", [7, 9]),
        ("site=other&user=1", [9]),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
async def test_a_token_reads_what_is_for_it_and_a_service_all(server, sealed, attributes, expected):
    await server.hub.registry.execute(
        [
            Register("t", frozenset({"a", "/global"})),
            SetAttributes("t", Attributes.parse(attributes)),
        ]
    )
    for audience in FOR:
        await append(server, publication(run("a", "x"), audience=audience))
    await append(server, publication(run("/global/a", "x"), audience="site=s"))
    if sealed:
        await server.hub.sealer.seal_now()
        await trim(server, 0)
    query = "subscribe=a;/global"
    assert [each["id"] for each in await every(server, query, TOKEN)] == expected
    assert [each["id"] for each in await every(server, f"limit=2&{query}", TOKEN)] == expected
    assert ids(await get(server, f"?{query}")) == list(range(1, 10))


async def test_whose_token_it_became_while_the_page_was_made_counts(server):
    registry, history = server.hub.registry, server.hub.sequencer.history
    await registry.execute([Register("t", frozenset("a"))])
    await registry.execute([SetAttributes("t", Attributes.parse("user=1"))])
    for user in "12":
        await append(server, publication(run("a", "x"), audience=f"users={user}"))
    assert ids(await get(server, "?subscribe=a", TOKEN)) == [1]
    plain = history.columns

    async def columns(*about, **more):
        await registry.execute([SetAttributes("t", Attributes.parse("user=2"))])
        return await plain(*about, **more)

    history.columns = columns
    assert ids(await get(server, "?subscribe=a", TOKEN)) == [2]


async def test_a_right_lost_between_two_pages_ends_the_reading(granted):
    granted.hub.hub_limits = type(granted.hub.hub_limits)(failed_auth_delay=0.0)
    assert ids(await get(granted, "?subscribe=a&limit=1", TOKEN)) == [1]
    await granted.hub.registry.execute([RemoveTags("t", frozenset("a"))])
    assert code(await get(granted, "?after=1&subscribe=a", TOKEN)) == (403, "not_granted")
    await granted.hub.registry.execute([Unregister("t")])
    assert code(await get(granted, "?after=1&subscribe=a", TOKEN)) == (401, "unauthorized")


async def test_a_right_lost_while_the_page_is_made_counts(granted):
    history = granted.hub.sequencer.history
    plain = history.columns

    async def columns(*about, **more):
        page = await plain(*about, **more)
        await granted.hub.registry.execute([RemoveTags("t", frozenset("a"))])
        return page

    history.columns = columns
    assert code(await get(granted, "?subscribe=a", TOKEN)) == (403, "not_granted")


async def test_a_token_whose_pages_are_not_read_waits_and_nobody_else(server, monkeypatch):
    monkeypatch.setattr(held_pages, "_OF_TOKEN", 2)
    monkeypatch.setattr(held_pages, "_WAIT", 0.2)
    for token in ("t", "other"):
        await server.hub.registry.execute([Register(token, frozenset("a"))])
    await append(server, publication(run("a", *["x" * 1_000_000] * 8)))
    where = "/v1/log?subscribe=a"
    async with stalled_connection(server) as one, stalled_connection(server) as two:
        for each in (one, two):
            await each.send_request("GET", where, TOKEN)
        pages = [await each.receive_head() for each in (one, two)]
        refused = await get(server, "?subscribe=a", TOKEN)
        assert code(refused) == (429, "too_many_pages")
        assert refused.headers["retry-after"] == "5"
        assert ids(await get(server, "?subscribe=a", {"X-Auth-Token": "other"})) == [*range(1, 9)]
        assert ids(await get(server)) == [*range(1, 9)]
        # Who waits gets a page once another is read to its end, or its reader has gone.
        monkeypatch.setattr(held_pages, "_WAIT", 60.0)
        one.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        async with connect(server) as third, connect(server) as fourth:
            await third.send_request("GET", where, TOKEN)
            assert len(await pages[0].read()) > 8_000_000
            assert len(await (await third.receive_head()).read()) > 8_000_000
            await one.send_request("GET", where, TOKEN)
            await one.receive_head()
            await fourth.send_request("GET", where, TOKEN)
            await two.connection.aclose()
            assert (await fourth.receive_head()).status == 200


async def test_only_services_seal_and_erase(granted):
    for path, body in (("seal", {}), ("erase", {"tags": ["a"]})):
        refused = await request(granted, "POST", f"/v1/log/{path}", TOKEN, json=body)
        assert code(refused) == (403, "secret_needed")


# positions, sealing, erasing


@pytest.mark.parametrize("sealed", [False, True])
async def test_where_the_log_stands_and_where_a_time_is_in_it(server, sealed):
    for time in (100.0, 200.0, 200.5, 300.0):
        await append(server, some("a", 2, time=time))
    if sealed:
        assert (await request(server, "POST", "/v1/log/seal", json={})).json() == {"sealed": 8}
        await trim(server, 0)
    where = (await request(server, "GET", "/v1/log/position")).json()
    assert where == {
        "epoch": server.hub.sequencer.epoch,
        "first": 1,
        "newest": 8,
        "sealed": 8 if sealed else 0,
        "gone": 0,
        "after": None,
    }
    for time, after in [
        ("0", 0),
        ("100000", 0),
        ("100001", 2),
        ("1970-01-01T00:03:20Z", 2),
        ("1970-01-01T00:03:20", 2),
        ("1970-01-01T01:03:20.500000%2B01:00", 4),
        ("1970-01-01T00:03:20.500001%2B00:00", 6),
        ("2030-01-01", 8),
        ("253402300799999", 8),
    ]:
        response = await request(server, "GET", f"/v1/log/position?time={time}")
        assert response.json()["after"] == after, time


@pytest.mark.parametrize(
    "time",
    ["", "x", "-1", "1e3", "2026-13-01", "1969-12-31", "9999-12-31T23:59:59-23:59", "9" * 16],
)
async def test_times_that_are_none_are_refused(server, time):
    response = await request(server, "GET", f"/v1/log/position?time={time}")
    assert code(response) == (400, "invalid_time")


async def test_what_is_erased_is_gone_from_the_log(server):
    await append(server, some("a", 3), some("b", 2), publication(run("a", "x"), publisher="p"))
    erased = await request(server, "POST", "/v1/log/erase", json={"publisher": "p"})
    assert erased.json() == {"erased": 1, "first": 6, "last": 6}
    erased = await request(server, "POST", "/v1/log/erase", json={"tags": ["a"]})
    assert erased.json() == {"erased": 3, "first": 1, "last": 3}
    again = await request(server, "POST", "/v1/log/erase", json={"tags": ["a"]})
    assert again.json() == {"erased": 0, "first": None, "last": None}
    response = await get(server)
    assert ids(response) == [4, 5]
    assert told(response)[2] is None


async def test_sealing_writes_the_accounts_too(server):
    outbox = Outbox(PLAIN, OutboxLimits(), server.hub.broker.ready)
    server.hub.broker.assign(outbox, "t", ())
    server.hub.broker.subscribe(outbox, frozenset("a"))
    await server.hub.store(frozenset("a"), b"12345")
    deliveries = server.hub.sealer.archive.table("deliveries")
    assert not deliveries.exists
    assert (await request(server, "POST", "/v1/log/seal", json={})).json() == {"sealed": 1}
    (segment,) = deliveries.current().segments
    (row,) = read_segment(deliveries, segment).to_pylist()
    assert (row["token"], row["sent"], row["bytes"]) == ("t", 1, 5)
    assert deliveries.current().sealed > 0


async def test_accounts_wait_until_all_is_sealed(server, monkeypatch):
    async def some_of_it(*, seconds):
        return 0

    outbox = Outbox(PLAIN, OutboxLimits(), server.hub.broker.ready)
    server.hub.broker.assign(outbox, "t", ())
    server.hub.broker.subscribe(outbox, frozenset("a"))
    await server.hub.store(frozenset("a"), b"12345")
    deliveries = server.hub.sealer.archive.table("deliveries")
    with monkeypatch.context() as patch:
        patch.setattr(server.hub.sealer, "seal_now", some_of_it)
        response = await request(server, "POST", "/v1/log/seal?seconds=1", json={})
        assert response.json() == {"sealed": 0}
        assert not deliveries.exists
    response = await request(server, "POST", "/v1/log/seal?seconds=1", json={})
    assert response.json() == {"sealed": 1}
    assert len(deliveries.current().segments) == 1


async def test_an_erasure_may_be_done_in_steps(server, monkeypatch):
    monkeypatch.setattr("mist.history.erasing._LOOKED_AT", 1)
    for _ in range(4):
        await append(server, some("a", 3))
    path, steps = "/v1/log/erase?seconds=1", []
    real = type(server.hub.sequencer.history).erase

    async def erase(self, erasure, *, after=0, upto=None, seconds=None):
        return await real(self, erasure, after=after, seconds=seconds and 0)

    monkeypatch.setattr(type(server.hub.sequencer.history), "erase", erase)
    while not steps or steps[-1]["after"] is not None:
        assert len(steps) < 10
        after = f"&after={steps[-1]['after']}" if steps else ""
        steps.append((await request(server, "POST", path + after, json={"tags": ["a"]})).json())
    assert [each["erased"] for each in steps][:4] == [3, 3, 3, 3]
    assert [each["after"] for each in steps][:3] == [3, 6, 9]
    assert ids(await get(server)) == []
    sealed = await request(server, "POST", "/v1/log/seal?seconds=1", json={})
    assert sealed.json() == {"sealed": 12}


@pytest.mark.parametrize("seconds", ["0", "61", "x", "1.5", ""])
async def test_the_time_of_a_step_is_bounded(server, seconds):
    for path, body in (("erase", {"tags": ["a"]}), ("seal", {})):
        refused = await request(server, "POST", f"/v1/log/{path}?seconds={seconds}", json=body)
        assert code(refused) == (400, "invalid_seconds")


async def test_an_erasure_takes_tags_as_they_were_published(server):
    await append(server, some("/a", 2), some("/a/b", 2), some(".b.c", 2))
    erased = await request(server, "POST", "/v1/log/erase", json={"tags": ["/a"]})
    assert erased.json() == {"erased": 2, "first": 1, "last": 2}
    erased = await request(server, "POST", "/v1/log/erase", json={"tags": [".b.*"]})
    assert code(erased) == (400, "invalid_tag")
    assert ids(await get(server)) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tags": ["a"], "publisher": "p"},
        {"publisher": ""},
        {"tags": []},
        {"tags": ["a b"]},
        {"tags": "a"},
        {"tag": "a"},
        [],
    ],
)
async def test_an_erasure_that_is_none_is_refused(server, body):
    await append(server, some("a", 3))
    refused = await request(server, "POST", "/v1/log/erase", json=body)
    assert refused.status == 400
    assert len(ids(await get(server))) == 3
