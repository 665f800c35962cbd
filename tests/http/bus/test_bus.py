"""The MessageBus dialect, by a plain client of a real server; a browser's is in `test_browser`."""

import math

import pytest
import trio
import trio.testing

from mist.attributes import Attributes
from mist.audience import Audience
from mist.bus import Bus
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, SetTerms, Unregister
from mist.errors import HistoryUnavailable
from mist.history import Erasure
from mist.message import Envelope
from mist.terms import Terms
from tests.http.bus.polls import (
    FORM,
    PLAIN,
    SECRET,
    SETTINGS,
    TOKEN,
    WITH_TOKEN,
    Polling,
    ask,
    numbers,
    poll,
    status,
    told,
    waiting,
)
from tests.http.client import connect, request, stalled_connection
from tests.servers import running
from tests.waiting import until

TAGS = frozenset({"/foo", "/bar", "/rooms/*"})


@pytest.fixture
def server_settings():
    return {**SETTINGS, "grants": {TOKEN: TAGS}, "failed_auth_delay": 0.0}


@pytest.fixture
def bus(server):
    return Bus(server.hub)


async def store(server, tags, data=b"x", **envelope):
    messages = [(frozenset(tags.split(",")), data)]
    return await server.hub.store_all(messages, envelopes=[Envelope(**envelope)] * len(messages))


# answers, to the byte


async def test_answer_is_to_the_byte(server):
    await store(server, "x")
    await store(server, "/foo", b"hello")
    await store(server, "/foo", b'{"a": [1]}')
    response = await ask(server, {"/foo": 0, "/bar": -1, "__seq": 1})
    assert response.body == (
        b'[{"global_id":2,"message_id":1,"channel":"/foo","data":"hello"},'
        b'{"global_id":3,"message_id":2,"channel":"/foo","data":{"a": [1]}},'
        b'{"global_id":-1,"message_id":-1,"channel":"/__status","data":{"/bar":0}}]'
    )
    headers = {
        "content-type": "application/json; charset=utf-8",
        "cache-control": "must-revalidate, private, max-age=0",
        "pragma": "no-cache",
        "expires": "0",
        "x-content-type-options": "nosniff",
    }
    assert headers.items() <= response.headers.items()


async def test_nothing_is_an_empty_array(server):
    assert (await ask(server, {"/foo": 0})).body == b"[]"
    assert (await ask(server, {})).body == b"[]"


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("headers", [PLAIN, {}], ids=["plain", "chunks"])
async def test_without_waiting_nothing_new_is_an_empty_array(server, form, headers):
    await store(server, "/foo", b"1")
    await store(server, "/foo", b"for another", audience=Audience.of(users=["2"]))
    await store(server, "/bar", b"1")
    for places in ({"/foo": 2}, {"/foo": 2, "/bar": 1}, {"/foo": 2, "__seq": 7}):
        response = await ask(server, places, {**WITH_TOKEN, **headers}, form=form)
        assert response.headers["content-type"] == "application/json; charset=utf-8"
        assert response.body == b"[]"


async def test_now_is_when_the_clients_last_poll_ended(server):
    await store(server, "/bar", b"long ago")
    assert told(await poll(server, {"/foo": -1, "__seq": 1})) == [status(foo=0)]
    await store(server, "/bar,/foo", b"1")
    # It was paused, and has not taken that status; /bar it has subscribed to since.
    both = await poll(server, {"/foo": -1, "/bar": -1, "__seq": 2})
    assert told(both) == [("/bar", "1"), ("/foo", "1")]
    await store(server, "/bar", b"2")
    again = await poll(server, {"/foo": -1, "/bar": -1, "__seq": 3})
    assert told(again) == [("/bar", "2"), status(foo=1)]
    assert told(await poll(server, {"/bar": -1, "__seq": 4})) == [status(bar=3)]


async def test_now_is_now_for_other_clients_and_where_polls_are_not_numbered(server):
    assert told(await poll(server, {"/foo": -1, "__seq": 5})) == [status(foo=0)]
    await store(server, "/foo", b"1")
    for places, client in (({}, "c1"), ({"__seq": 5}, "c1"), ({"__seq": 6}, "c2")):
        answer = await poll(server, {"/foo": -1, **places}, client=client)
        assert told(answer) == [status(foo=1)]


@pytest.mark.parametrize("gone", [True, False])
async def test_who_ends_a_poll_before_it_has_read_it_misses_nothing(server, gone):
    """As a page does that subscribes to one channel, and shortly after to another."""
    await store(server, "/foo,/bar", b"long ago")
    async with Polling(server, {"/foo": -1, "__seq": 1}) as first:
        assert told(await first.chunk()) == [status(foo=1)]  # which the page never reads
        await store(server, "/foo", b"1")
        assert told(await first.chunk()) == [("/foo", "1")]  # nor that
        if not gone:  # the server hears of the next one first
            answer = await poll(server, {"/foo": -1, "/bar": -1, "__seq": 2})
    if gone:
        await until(lambda: not server.hub.broker.tag_sets())
        answer = await poll(server, {"/foo": -1, "/bar": -1, "__seq": 2})
    assert told(answer) == [("/foo", "1"), status(bar=1)]


async def test_what_is_read_for_another_channel_from_before_now_is_not_told(server):
    await store(server, "/foo", b"1")
    await store(server, "/bar", b"long ago")
    assert told(await poll(server, {"/foo": -1, "__seq": 1})) == [status(foo=1)]
    await store(server, "/bar", b"2")
    answer = await poll(server, {"/foo": 0, "/bar": -1, "__seq": 2})
    assert told(answer) == [("/foo", "1"), ("/bar", "2")]


async def test_chunks_are_to_the_byte(server):
    async with connect(server) as client:
        path = "/message-bus/c1/poll"
        await client.send_request("POST", path, WITH_TOKEN, json={"/foo": 0})
        streamed = await client.receive_head()
        assert streamed.headers["content-type"] == "text/plain; charset=utf-8"
        assert streamed.headers["x-content-type-options"] == "nosniff"
        assert streamed.headers["transfer-encoding"] == "chunked"
        assert await streamed.receive() == b"[]\r\n|\r\n"
        await store(server, "/foo", b"1")
        one = b'[{"global_id":1,"message_id":1,"channel":"/foo","data":"1"}]\r\n|\r\n'
        assert await streamed.receive() == one


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"text", "text"),
        (b"7", "7"),
        (b"{broken", "{broken"),
        (b'{"a":1e999}', math.inf),
        (b"[\r\n|\r\n]", "[\r\n|\r\n]"),
        (b"\r\n|\r\n", "\r\n|\r\n"),
        (b"\xff", "\ufffd"),
        (b'["\xff"]', '["\ufffd"]'),
        (b"[" * 100_000, "[" * 100_000),
        (b'{"a":"\\ud800"}', '{"a":"\\ud800"}'),
        (b"", ""),
    ],
)
async def test_data_is_json_where_it_is_and_a_text_where_it_is_not(server, data, shown):
    await store(server, "/foo", data)
    (message,) = await poll(server, {"/foo": 0})
    assert message["data"] in (shown, {"a": shown})
    async with Polling(server, {"/foo": 0}) as chunked:
        assert await chunked.chunk() == [message]


# positions


@pytest.fixture
async def ten(server):
    for number in range(1, 11):
        await store(server, "/foo", b"%d" % number)
    return server


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (0, list(range(1, 11))),
        (7, [8, 9, 10]),
        (9, [10]),
        (10, []),
        (-2, [10]),
        (-4, [8, 9, 10]),
        (-11, list(range(1, 11))),
        (-1000, list(range(1, 11))),
        ("8", [9, 10]),
    ],
)
@pytest.mark.parametrize("form", [True, False])
async def test_where_it_begins(ten, place, expected, form):
    answer = await poll(ten, {"/foo": place}, form=form)
    assert numbers(answer) == expected
    assert all(each["channel"] == "/foo" for each in answer)


@pytest.mark.parametrize("place", [-1, 11, 10**30, "", None])
async def test_now_is_told_as_a_status_at_once(ten, place):
    assert told(await poll(ten, {"/foo": place}, dlp=False)) == [status(foo=10)]


@pytest.mark.parametrize("place", ["x", "1.5", 1.5, True, [], {}, "0x1", "1" * 20])
async def test_where_nothing_can_begin(server, place):
    response = await ask(server, {"/foo": place})
    assert (response.status, response.json()["code"]) == (400, "invalid_body")


async def test_channels_are_told_in_the_order_of_their_messages(server):
    for name in ("/foo", "/bar", "/foo,/bar", "/rooms/1", "/foo"):
        await store(server, name, name.encode())
    answer = await poll(server, {"/foo": 0, "/bar": 1, "/rooms/1": 0})
    assert [(each["global_id"], each["channel"], each["message_id"]) for each in answer] == [
        (1, "/foo", 1),
        (3, "/bar", 2),
        (3, "/foo", 2),
        (4, "/rooms/1", 1),
        (5, "/foo", 3),
    ]


async def test_channel_is_that_channel_and_nothing_below(server):
    await store(server, "/rooms/1/x", b"below")
    await store(server, "/rooms/1", b"here")
    assert told(await poll(server, {"/rooms/1": 0})) == [("/rooms/1", "here")]


async def test_what_is_gone_is_told_as_a_status(ten):
    await ten.hub.sequencer.history.erase(Erasure(frozenset({"/foo"})))
    assert told(await poll(ten, {"/foo": 3})) == [status(foo=10)]
    await store(ten, "/foo", b"11")
    assert numbers(await poll(ten, {"/foo": 3})) == [11]


async def test_what_does_not_fit_comes_with_the_next_poll(server):
    for _ in range(4):
        await store(server, "/foo", b"y" * 600_000)
    place, found = 0, []
    while answer := numbers(await poll(server, {"/foo": place})):
        assert len(answer) <= 2
        found += answer
        place = answer[-1]
    assert found == [1, 2, 3, 4]


async def test_what_does_not_fit_leaves_nothing_behind_of_who_asked_for_the_last(server):
    for _ in range(3):
        await store(server, "/foo", b"y" * 600_000)
    await store(server, "/bar", b"1")
    await store(server, "/bar", b"2")
    answer = await poll(server, {"/foo": 0, "/bar": -2})
    assert numbers(answer) == [1, 2]
    assert told(answer)[-1] == status(bar=1)
    await store(server, "/bar", b"3")
    assert told(await poll(server, {"/foo": 3, "/bar": 1})) == [("/bar", "2"), ("/bar", "3")]


async def test_many_channels_far_apart(server, monkeypatch):
    monkeypatch.setattr("mist.bus.feed._NEAR", 0)
    names = [f"/rooms/{number}" for number in range(100)]
    for number in range(300):
        await store(server, names[number % 100], b"%d" % number)
        await store(server, "x")
    answer = await poll(server, {name: place % 3 for place, name in enumerate(names)})
    expected = {number for number in range(300) if number // 100 >= number % 100 % 3}
    assert {int(each["data"]) for each in answer} == expected


# waiting


async def test_poll_waits_for_what_comes(server, nursery):
    answers = []

    async def wait():
        answers.append(await poll(server, {"/foo": 0}, dlp=False))

    nursery.start_soon(wait)
    await waiting(server)
    assert not answers
    await store(server, "/rooms/1")
    await store(server, "/foo", b"here")
    await until(lambda: answers)
    assert told(answers[0]) == [("/foo", "here")]


async def test_chunks_come_until_time_is_over(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 3.0)
    async with Polling(server, {"/foo": -1}) as chunked:
        assert told(await chunked.chunk()) == [status(foo=0)]
        for number in range(3):
            await store(server, "/foo", b"%d" % number)
            assert told(await chunked.chunk()) == [("/foo", str(number))]
        assert await chunked.ended()


async def test_plain_poll_ends_with_nothing(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 0.2)
    assert await poll(server, {"/foo": 0}, dlp=False) == []


async def test_old_http_is_not_sent_chunks(server):
    await store(server, "/foo", b"old")
    async with connect(server) as client:
        body = b'{"/foo":0}'
        await client.connection.send_all(
            b"POST /message-bus/c1/poll HTTP/1.0\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nX-Auth-Token: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (TOKEN.encode(), len(body), body)
        )
        answer = b""
        while data := await client.receive_some():
            answer += data
    assert b"content-type: application/json; charset=utf-8" in answer
    assert answer.endswith(b'"data":"old"}]')


async def test_first_chunk_comes_though_the_history_takes_its_time(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._FIRST_CHUNK", 0.05)
    history = server.hub.sequencer.history
    release, real = trio.Event(), history.channels

    async def slow(names):
        await release.wait()
        return await real(names)

    monkeypatch.setattr(history, "channels", slow)
    await store(server, "/foo", b"late")
    async with Polling(server, {"/foo": 0}) as chunked:
        assert await chunked.chunk() == []
        release.set()
        assert told(await chunked.chunk()) == [("/foo", "late")]


async def test_one_who_hangs_up_is_forgotten(server):
    async with connect(server) as client:
        await client.send_request("POST", "/message-bus/c1/poll", WITH_TOKEN, json={"/foo": 0})
        await waiting(server)
        assert server.hub.sessions.connected == 1
    await until(lambda: not server.hub.sessions.connected)
    assert server.hub.broker.tag_sets() == 0


async def test_connection_can_be_used_again_after_chunks(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 0.1)
    async with connect(server) as client:
        for _ in range(3):
            path = "/message-bus/c1/poll"
            response = await client.request("POST", path, WITH_TOKEN, json={"/foo": 0})
            assert response.body == b"[]\r\n|\r\n"


async def test_polls_that_are_told_the_same_share_its_bytes(server, monkeypatch):
    async with (
        Polling(server, {"/foo": 0}, client="c1") as one,
        Polling(server, {"/foo": 0}, client="c2") as other,
    ):
        assert await one.chunk() == await other.chunk() == []
        await waiting(server)
        outboxes = [session.outbox for session in server.hub.sessions]
        for outbox in outboxes:
            outbox.flush = lambda: None
        await store(server, "/foo", b"shared")
        await until(lambda: all(outbox.size for outbox in outboxes))
        first, second = [outbox.peek() for outbox in outboxes]
        assert first is second
        assert b'"shared"' in first


async def test_poll_whose_client_does_not_read_is_bounded(tmp_path):
    async with running(tmp_path, **SETTINGS, outbox_bytes=1_048_576 + 100) as server:
        async with stalled_connection(server) as client:
            await client.send_request("POST", "/message-bus/c1/poll", SECRET, json={"/foo": 0})
            assert (await client.receive_head()).status == 200
            await waiting(server)
            (session,) = server.hub.sessions
            most = 0
            for _ in range(100):
                await store(server, "/foo", b"y" * 100_000)
                most = max(most, session.outbox.size)
        assert 0 < most < 2_500_000  # an answer beyond what is queued


async def test_messages_told_count_once_as_delivered(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 0.2)
    async with Polling(server, {"/foo": 0}) as chunked:
        assert await chunked.chunk() == []
        await store(server, "/foo", b"1")
        assert len(await chunked.chunk()) == 1
        assert await chunked.ended()
    await store(server, "/foo", b"2")
    assert numbers(await poll(server, {"/foo": 0})) == [1, 2]
    await until(lambda: not server.hub.sessions.connected)
    assert server.hub.sessions.gone_messages["bus"] == 3


# one poll a client


async def test_older_poll_of_a_client_is_answered_and_closed(server, nursery):
    async with connect(server) as client:
        path = "/message-bus/c1/poll"
        await client.send_request(
            "POST", path, {**WITH_TOKEN, **PLAIN}, json={"/foo": 0, "__seq": 1}
        )
        await waiting(server)
        assert await poll(server, {"/foo": 0, "__seq": 2}) == []
        older = await client.receive_head()
        assert (await older.read(), older.headers["connection"]) == (b"[]", "close")
        assert await client.closed()


async def test_poll_that_comes_late_is_answered_and_closed(server):
    async with Polling(server, {"/foo": 0, "__seq": 5}) as newer:
        assert await newer.chunk() == []
        response = await ask(server, {"/foo": 0, "__seq": 4}, dlp=False)
        assert (response.body, response.headers["connection"]) == (b"[]", "close")
        await store(server, "/foo", b"x")
        assert told(await newer.chunk()) == [("/foo", "x")]


async def test_polls_of_two_clients_are_not_in_each_others_way(server):
    async with (
        Polling(server, {"/foo": 0, "__seq": 9}, client="a") as one,
        Polling(server, {"/foo": 0, "__seq": 1}, client="b") as other,
    ):
        assert (await one.chunk(), await other.chunk()) == ([], [])
        await store(server, "/foo", b"x")
        for each in (one, other):
            assert told(await each.chunk()) == [("/foo", "x")]


async def test_client_id_belongs_to_the_token_that_brought_it(server):
    await server.hub.registry.execute([Register("other", TAGS)])
    assert await poll(server, {"/foo": 0}) == []
    response = await ask(server, {"/foo": 0}, {"X-Auth-Token": "other"})
    assert (response.status, response.json()["code"]) == (409, "client_taken")
    assert await poll(server, {"/foo": 0}, {"X-Auth-Token": "other"}, client="c2") == []


async def test_client_id_that_can_not_be_one(server):
    assert (await ask(server, {"/foo": 0}, client="%00")).status == 400
    assert (await ask(server, {"/foo": 0}, client="x" * 256)).status == 400


# rights


@pytest.mark.parametrize("channel", ["/other", "/fo", "/foox", "/"])
async def test_channel_that_is_not_granted_is_refused(server, channel):
    for headers in (PLAIN, {}):
        response = await ask(server, {"/foo": 0, channel: 0}, {**WITH_TOKEN, **headers})
        assert (response.status, response.json()["code"]) == (403, "not_granted")


@pytest.mark.parametrize(
    "channel", ["foo", "", "..", "../foo", "=/foo", "/a b", "/a,/b", "/foo/*", "/\x00", "*", ">/a"]
)
async def test_what_can_not_be_a_channel_is_refused(server, channel):
    response = await ask(server, {channel: 0}, SECRET)
    assert (response.status, response.json()["code"]) == (400, "invalid_channel")


async def test_secret_may_read_everything(server):
    await store(server, "/secret/x", b"1")
    assert told(await poll(server, {"/secret/x": 0}, SECRET)) == [("/secret/x", "1")]


async def test_without_a_credential_or_with_a_wrong_one_nothing_is_said(server):
    assert (await ask(server, {"/foo": 0}, {})).status == 401
    assert (await ask(server, {"/foo": 0}, {"X-Auth-Token": "wrong"})).status == 401


async def test_form_needs_the_token_in_its_header(server):
    for headers in ({}, SECRET):
        assert (await ask(server, {"/foo": 0}, headers, form=True)).status == 415


async def test_token_that_is_revoked_ends_its_polls(server):
    async with connect(server) as client:
        path = "/message-bus/c1/poll"
        await client.send_request("POST", path, {**WITH_TOKEN, **PLAIN}, json={"/foo": 0})
        await waiting(server)
        await server.hub.registry.execute([Unregister(TOKEN)])
        assert (await client.receive_head()).status == 401


async def test_chunked_poll_of_a_revoked_token_ends(server):
    async with Polling(server, {"/foo": 0}) as chunked:
        assert await chunked.chunk() == []
        await server.hub.registry.execute([Unregister(TOKEN)])
        assert await chunked.ended()


async def test_polls_of_a_token_that_expires_end(server, monkeypatch):
    monkeypatch.setattr("mist.schedule._LOOK", 0.01)
    hub = server.hub
    await hub.registry.execute([SetTerms(TOKEN, Terms(hub.now() + 3_600))])
    async with connect(server) as client, Polling(server, {"/foo": 0}) as chunked:
        assert await chunked.chunk() == []
        path = "/message-bus/c2/poll"
        await client.send_request("POST", path, {**WITH_TOKEN, **PLAIN}, json={"/foo": 0})
        await until(lambda: len(hub.expiry) == 2)
        hub.registry.now = hub.expiry._schedule._now = lambda: 4e9
        assert (await client.receive_head()).status == 401
        assert await chunked.ended()
    assert (await ask(server, {"/foo": 0})).status == 401


async def test_channel_that_is_taken_from_a_token_is_told_no_more(server):
    async with Polling(server, {"/foo": 0, "/bar": 0}) as chunked:
        assert await chunked.chunk() == []
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset({"/foo"}))])
        await store(server, "/foo", b"no")
        await store(server, "/foo,/bar", b"yes")
        assert told(await chunked.chunk()) == [("/bar", "yes")]
        await server.hub.registry.execute([AddTags(TOKEN, frozenset({"/foo"}))])
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset({"/bar"}))])
        assert await chunked.ended()


# targeted delivery


async def test_messages_are_for_their_audience(server):
    await server.hub.registry.execute([SetAttributes(TOKEN, Attributes(user="1", groups={"g"}))])
    for_others = Audience.of(users=[2])
    await store(server, "/foo", b"all")
    await store(server, "/foo", b"2", audience=for_others)
    await store(server, "/foo", b"1", audience=Audience.of(users=[1]))
    await store(server, "/foo", b"g", audience=Audience.of(groups=["g"]))
    await store(server, "/foo", b"c", audience=Audience.of(clients=["c1"]))
    await store(server, "/foo", b"not c", audience=Audience.of(excepted=["c1"]))
    answer = await poll(server, {"/foo": 0})
    assert [each["data"] for each in answer] == ["all", "1", "g", "c", {"/foo": 6}]
    assert numbers(answer) == [1, 3, 4, 5]


async def test_withheld_messages_are_passed_over_with_a_status(server, monkeypatch):
    monkeypatch.setattr("mist.http.bus._MAX_SECONDS", 2.0)
    others = {"audience": Audience.of(users=["x"])}
    await store(server, "/foo", b"1", **others)
    assert told(await poll(server, {"/foo": 0}, dlp=False)) == [status(foo=1)]
    # One that comes while it waits doesn't end the wait, but the client shall not lag behind.
    async with Polling(server, {"/foo": 1}) as chunked:
        assert await chunked.chunk() == []
        await store(server, "/foo", b"2", **others)
        assert told(await chunked.chunk()) == [status(foo=2)]
        assert await chunked.ended()


async def test_filter_withholds_from_clients(server, bus):
    bus.register_client_message_filter("/rooms/", lambda message: message.data != "secret")
    bus.register_client_message_filter("/bar", lambda message: 1 / 0)
    for tags in ("/rooms/1", "/foo", "/bar"):
        await store(server, tags, b"secret")
        await store(server, tags, b"known")
    answer = await poll(server, {"/rooms/1": 0, "/foo": 0, "/bar": 0})
    assert told(answer) == [
        ("/rooms/1", "known"),
        ("/foo", "secret"),
        ("/foo", "known"),
        status(bar=2),
    ]


async def test_site_is_forced_on_a_client_of_one(server):
    await server.hub.registry.execute(
        [
            SetAttributes(TOKEN, Attributes(others={"site": "a"})),
            AddTags(TOKEN, frozenset({"/global/x"})),
        ]
    )
    await store(server, "/foo", b"a", audience=Audience.of(others={"site": "a"}))
    await store(server, "/foo", b"b", audience=Audience.of(others={"site": "b"}))
    await store(server, "/foo", b"none")
    await store(server, "/global/x", b"b", audience=Audience.of(others={"site": "b"}))
    answer = await poll(server, {"/foo": 0, "/global/x": 0})
    assert told(answer) == [("/foo", "a"), ("/global/x", "b")]


# pages


async def test_preflight_allows_what_the_client_sends(server):
    origin = f"http://localhost:{server.urls[1].rpartition(':')[2]}"
    response = await request(
        server,
        "OPTIONS",
        "/message-bus/c1/poll",
        {"Origin": origin, "Access-Control-Request-Method": "POST"},
    )
    assert response.status == 200
    assert response.headers["access-control-allow-origin"] == origin
    allowed = response.headers["access-control-allow-headers"].lower().split(", ")
    assert {"x-auth-token", "dont-chunk", "x-silence-logger", "content-type"} <= set(allowed)
    answered = await ask(server, {"/foo": 0}, {**WITH_TOKEN, "Origin": origin})
    assert "Retry-After" in answered.headers["access-control-expose-headers"]


async def test_options_without_a_page_is_answered(server):
    response = await request(server, "OPTIONS", "/message-bus/c1/poll")
    assert (response.status, response.body) == (200, b"OK")


async def test_page_of_another_origin_is_refused(server):
    headers = {**WITH_TOKEN, "Origin": "https://evil.example"}
    assert (await ask(server, {"/foo": 0}, headers, form=True)).status == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
async def test_other_methods_are_refused(server, method):
    headers = {**WITH_TOKEN, "Content-Type": "application/json"}
    response = await request(server, method, "/message-bus/c1/poll", headers, b"{}")
    assert response.status == 405


# limits


async def test_backlog_of_a_channel_is_bounded(tmp_path):
    async with running(tmp_path, **SETTINGS, bus_backlog_size=5, bus_backlog_total=8) as server:
        for number in range(1, 13):
            await store(server, "/a" if number % 3 else "/b", b"%d" % number)
        await store(server, "x")
        # /a: 1 2 4 5 7 8 10 11, of which the last five; /b: 3 6 9 12; the last eight of all.
        answer = await poll(server, {"/a": 0, "/b": 0}, SECRET)
        assert [int(each["data"]) for each in answer] == [5, 6, 7, 8, 9, 10, 11, 12]
        assert [int(each["data"]) for each in await poll(server, {"/a": 0}, SECRET)] == [
            5,
            7,
            8,
            10,
            11,
        ]
        await store(server, "/b", b"13")
        await store(server, "/b", b"14")
        answer = await poll(server, {"/a": 0, "/b": 0}, SECRET)
        assert [int(each["data"]) for each in answer] == [7, 8, 9, 10, 11, 12, 13, 14]


async def test_idle_channel_is_not_shown(tmp_path):
    async with running(tmp_path, **SETTINGS, bus_backlog_age=1.5) as server:
        await store(server, "/a", b"old")
        assert told(await poll(server, {"/a": 0}, SECRET)) == [("/a", "old")]
        await trio.sleep(1.6)
        assert told(await poll(server, {"/a": 0}, SECRET)) == [status(a=1)]
        await store(server, "/a", b"new")
        assert numbers(await poll(server, {"/a": 0}, SECRET)) == [1, 2]


async def test_publication_says_how_much_is_shown(server, bus):
    for number in range(5):
        await bus.publish("/foo", number)
    await bus.publish("/foo", 5, max_backlog_size=2)
    assert numbers(await poll(server, {"/foo": 0})) == [5, 6]
    await bus.publish("/foo", 6)
    assert numbers(await poll(server, {"/foo": 0})) == [5, 6, 7]


async def test_without_a_history_the_endpoint_is_unavailable(tmp_path):
    async with running(tmp_path, **{**SETTINGS, "history": "none"}) as server:
        response = await ask(server, {"/foo": 0}, SECRET)
        assert (response.status, response.json()["code"]) == (503, "history_off")


async def test_history_that_can_not_be_read_is_told(server, monkeypatch):
    async def fail(*about, **options):
        raise HistoryUnavailable

    monkeypatch.setattr(server.hub.sequencer.history, "channels", fail)
    response = await ask(server, {"/foo": 0})
    assert (response.status, response.json()["code"]) == (503, "history_unavailable")
    async with connect(server) as client:
        response = await client.request(
            "POST", "/message-bus/c1/poll", WITH_TOKEN, json={"/foo": 0}
        )
        assert response.status == 503


async def test_server_that_goes_away_answers_those_who_wait(server, nursery):
    async with connect(server) as client:
        path = "/message-bus/c1/poll"
        await client.send_request("POST", path, {**WITH_TOKEN, **PLAIN}, json={"/foo": 0})
        await waiting(server)
        server.drain()
        response = await client.receive_head()
        assert (response.status, await response.read()) == (200, b"[]")


async def test_polls_of_a_token_are_bounded(tmp_path):
    async with running(tmp_path, **SETTINGS, max_connections_per_address=1) as server:
        await server.hub.registry.execute([Register(TOKEN, TAGS)])
        async with Polling(server, {"/foo": 0}) as chunked:
            assert await chunked.chunk() == []
            response = await ask(server, {"/foo": 0}, client="other")
            assert (response.status, response.headers["retry-after"]) == (429, "5")


async def test_a_poll_has_so_many_channels_and_no_more(server):
    await server.hub.registry.execute([AddTags(TOKEN, frozenset({"/*"}))])
    for form in (True, False):
        names = {f"/rooms/{n}": -1 for n in range(1000)}
        (answer,) = await poll(server, {**names, "__seq": 3}, form=form)
        assert answer["data"] == dict.fromkeys(names, 0)
        response = await ask(server, {**names, "/foo": -1}, form=form)
        assert (response.status, response.json()["code"]) == (400, "too_many_channels")


async def test_a_body_has_so_many_bytes_and_no_more(server):
    path = "/message-bus/c1/poll?dlp=t"
    body = b'{"/foo":0' + b" " * 512 * 1024 + b"}"
    headers = {**WITH_TOKEN, "Content-Type": "application/json"}
    assert (await request(server, "POST", path, headers, body)).status == 413


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"/foo":0', b'{"/foo":0}x', b"\xff", b"[" * 10_000, b'{"a":{}}']
)
async def test_what_is_no_poll_is_refused(server, body):
    headers = {**WITH_TOKEN, "Content-Type": "application/json"}
    response = await request(server, "POST", "/message-bus/c1/poll?dlp=t", headers, body)
    assert (response.status, response.json()["code"]) == (400, "invalid_body")


@pytest.mark.parametrize(
    "body", [b"%ff=1", b"/foo", b"/foo=1&&", b"/foo=\xff", b"&".join([b"/a=1"] * 2001)]
)
async def test_what_is_no_form_is_refused(server, body):
    headers = {**WITH_TOKEN, **FORM}
    response = await request(server, "POST", "/message-bus/c1/poll?dlp=t", headers, body)
    assert (response.status, response.json()["code"]) == (400, "invalid_body")


async def test_empty_form_asks_for_nothing(server):
    headers = {**WITH_TOKEN, **FORM}
    response = await request(server, "POST", "/message-bus/c1/poll?dlp=t", headers, b"")
    assert (response.status, response.body) == (200, b"[]")
