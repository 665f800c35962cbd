"""Staging: rows come in parts, and are committed once or not at all."""

import http.client
import json
import os
import signal
import threading
import time
from contextlib import closing, suppress

import pyarrow as pa
import pytest
import trio

from mist.attributes import Attributes
from mist.client import connect
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.config import Listen
from mist.errors import HistoryUnavailable
from mist.http.staging_store import Batch, Stage
from tests.http.arrow import ARROW, TAGS, commit, path, put, rows, some, stream
from tests.http.client import request, told_before_the_body
from tests.processes import serving
from tests.servers import listeners, running

LISTEN = listeners("http", "tcp")
TOKEN = {"X-Auth-Token": "t"}
OTHER = {"X-Auth-Token": "u"}
META = pa.map_(pa.string(), pa.binary())


@pytest.fixture(params=["memory", "sqlite"])
def server_settings(request, tmp_path):
    history = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/h.db"
    grants = {"t": {">a", ">b"}, "u": {">*"}}
    return {"listen": LISTEN, "history": history, "grants": grants}


async def stored(server):
    page = await server.hub.sequencer.history.read()
    return [(",".join(sorted(m.tags)), m.data.decode(), m.publisher) for m in page.messages()]


def code(response):
    return response.status, response.json()["code"]


# what works


async def test_what_is_staged_is_there_when_it_is_committed_and_not_before(server):
    assert (await put(server, path(), some("a", 3))).json() == {"rows": 3}
    assert (await put(server, path(part=1), some("b", 2, 3))).status == 201
    assert (await put(server, path(partition=1, attempt=7), some("a,b", 1, 5))).status == 201
    assert await stored(server) == []
    done = await commit(server, (0, 0, 2), (1, 7, 1))
    assert (done.status, done.json()) == (
        200,
        {"first": 1, "last": 6, "rows": 6, "repeated": False},
    )
    assert await stored(server) == [
        *[("a", str(n), "") for n in range(3)],
        *[("b", str(n), "") for n in (3, 4)],
        ("a,b", "5", ""),
    ]


async def test_a_repeat_is_answered_and_stores_nothing(server):
    await put(server, path(batch=4), some("a", 3))
    first = (await commit(server, (0, 0, 1), batch=4)).json()
    await put(server, path(batch=4), some("a", 3))
    for attempts in ([(0, 0, 1)], [], [(9, 9, 9)]):
        again = await commit(server, *attempts, batch=4)
        assert (again.status, again.json()) == (200, {**first, "repeated": True})
    before = await commit(server, (0, 0, 1), batch=3)
    assert before.json() == {"first": None, "last": None, "rows": None, "repeated": True}
    assert len(await stored(server)) == 3


async def test_only_the_attempts_that_are_named_count(server):
    await put(server, path(attempt=1), some("a", 5))
    await put(server, path(attempt=2), some("b", 1))
    await put(server, path(attempt=2, part=1), some("x", 1))
    assert (await commit(server, (0, 2, 1))).json()["rows"] == 1
    assert await stored(server) == [("b", "0", "")]


async def test_a_part_put_again_replaces_the_first(server):
    await put(server, path(), some("a", 5))
    await put(server, path(), some("b", 1))
    assert (await commit(server, (0, 0, 1))).json()["rows"] == 1


async def test_an_empty_batch_is_committed_too(server):
    empty = {"first": None, "last": None, "rows": 0, "repeated": False}
    assert (await commit(server)).json() == empty
    assert (await commit(server)).json() == {**empty, "repeated": True}
    assert (await put(server, path(batch=1), rows())).json() == {"rows": 0}
    assert (await commit(server, (0, 0, 1), (1, 0, 0), batch=1)).json() == empty


async def test_services_set_audience_and_meta(server):
    batch = rows(
        ("a", "1"),
        ("a", "2"),
        audience=pa.array(["users=2;1", None]),
        meta=pa.array([[("k", b"v")], None], META),
    )
    await put(server, path(), batch)
    await commit(server, (0, 0, 1))
    page = await server.hub.sequencer.history.read()
    assert [(m.audience, m.meta) for m in page.messages()] == [
        ("users=1;2", {"k": b"v"}),
        (None, None),
    ]


async def test_what_is_staged_for_some_reaches_only_them_live_and_later(tmp_path):
    listen = (*LISTEN, Listen("ws", "127.0.0.1", 0))
    settings = {"history": f"sqlite:///{tmp_path}/h.db", "archive": tmp_path / "archive"}
    audiences = [None, "users=1", "users=2", "users=2&groups=g", "except=c", None]
    mine = ["0", "1", "3", "4", "5"]
    async with running(tmp_path, listen=listen, **settings) as server:
        ws = next(url for url in server.urls if url.startswith("ws"))
        who = Attributes.parse("user=1&groups=g")
        await server.hub.registry.execute([Register("t", frozenset("a")), SetAttributes("t", who)])
        batch = rows(*[("a", str(n)) for n in range(6)], audience=pa.array(audiences))

        async def take(subscription):
            with trio.fail_after(10):
                return [(await anext(subscription)).text for _ in mine]

        async with (
            connect(ws, token="t") as client,
            client.subscribe(["a"]) as live,
        ):
            await put(server, path(), batch)
            assert (await commit(server, (0, 0, 1))).json()["rows"] == 6
            assert await take(live) == mine
        async with connect(ws, token="t") as client, client.subscribe(["a"], since=0) as later:
            assert await take(later) == mine
        answer = await request(server, "GET", "/v1/log?subscribe=a", TOKEN)
        with pa.ipc.open_stream(answer.body) as read:
            assert [data.decode() for data in read.read_all()["data"].to_pylist()] == mine


async def test_what_a_token_stages_is_for_the_site_it_is_bound_to(server):
    await server.hub.registry.execute([SetAttributes("u", Attributes.parse("site=here"))])
    await put(server, path(), some("a", 2), OTHER)
    await commit(server, (0, 0, 1), headers=OTHER)
    page = await server.hub.sequencer.history.read()
    assert [m.audience for m in page.messages()] == ["site=here"] * 2


@pytest.mark.parametrize(("before", "after"), [("", "here"), ("there", "here"), ("there", "")])
async def test_what_was_staged_for_another_site_has_to_be_staged_again(server, before, after):
    async def bind(site):
        change = SetAttributes("u", Attributes(), frozenset({"site"}))
        if site:
            change = SetAttributes("u", Attributes.parse(f"site={site}"))
        await server.hub.registry.execute([change])

    await bind(before)
    await put(server, path(), some("a", 2), OTHER)
    await put(server, path(partition=1), some("a", 2), OTHER)
    await bind(after)
    await put(server, path(partition=1), some("a", 2), OTHER)
    refused = await commit(server, (0, 0, 1), (1, 0, 1), headers=OTHER)
    assert code(refused) == (409, "part_missing")
    assert await stored(server) == []
    await put(server, path(), some("a", 2), OTHER)
    assert (await commit(server, (0, 0, 1), (1, 0, 1), headers=OTHER)).status == 200
    page = await server.hub.sequencer.history.read()
    assert [m.audience for m in page.messages()] == [f"site={after}" if after else None] * 4


@pytest.mark.parametrize(
    ("tags", "data"),
    [
        (pa.large_list(pa.string()), pa.large_binary()),
        (pa.list_(pa.field("element", pa.large_string(), nullable=False)), pa.string()),
        (TAGS, pa.large_string()),
    ],
)
async def test_other_types_of_the_same_are_taken(server, tags, data):
    batch = pa.record_batch([pa.array([["a"]], tags), pa.array(["x"], data)], ["tags", "data"])
    assert (await put(server, path(), batch)).json() == {"rows": 1}


async def test_several_batches_and_slices_of_them_are_one_part(server):
    whole = some("a", 3_000)
    await put(server, path(), stream(whole.slice(7, 1_000), whole.slice(0, 0), whole.slice(2_000)))
    assert (await commit(server, (0, 0, 1))).json()["rows"] == 2_000
    texts = [data for _, data, _ in await stored(server)]
    assert texts == [str(n) for n in [*range(7, 1_007), *range(2_000, 3_000)]]


async def test_data_of_any_content_comes_through(server):
    data = [b"", b"\n", b"a\nb", b"\x00\xff", b"publish a b\n"]
    await put(server, path(), rows(*[("a", each) for each in data]))
    await commit(server, (0, 0, 1))
    page = await server.hub.sequencer.history.read()
    assert [m.data for m in page.messages()] == data


async def test_tokens_publish_under_their_id(server):
    await put(server, path(), some("a", 1), TOKEN)
    assert (await commit(server, (0, 0, 1), headers=TOKEN)).status == 200
    ((_, _, publisher),) = await stored(server)
    assert publisher == server.hub.registry.lookup("t").id


# what isn't Arrow, or not what it should be


def with_dictionary():
    batch = some("a", 3)
    return stream(
        pa.record_batch([batch["tags"], batch["data"].dictionary_encode()], ["tags", "data"])
    )


def without(column):
    return stream(some("a", 2).drop_columns([column]))


def twice():
    batch = some("a", 1)
    names = ["tags", "data", "data"]
    return stream(pa.record_batch([batch["tags"], batch["data"], batch["data"]], names))


def typed(tags, data):
    return stream(
        pa.record_batch([pa.array([None], tags), pa.array([None], data)], ["tags", "data"])
    )


def compressed(kind):
    big = rows(("a", b"\x00" * 1_000_000))
    return stream(big, options=pa.ipc.IpcWriteOptions(compression=kind))


def flipped(at, value=0xFF):
    body = bytearray(stream(some("a", 3)))
    body[at] ^= value
    return bytes(body)


def bent_offsets():
    """The offsets of the data point behind it."""
    body = bytearray(stream(rows(("a", "12345"))))
    place = body.rindex((5).to_bytes(4, "little"), 0, body.rindex(b"12345"))
    body[place : place + 4] = (2**31 - 1).to_bytes(4, "little")
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "invalid_body"),
        (b"no Arrow at all, but long enough for a head", "invalid_body"),
        (stream(some("a", 3))[:-40], "invalid_body"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 100, "invalid_body"),
        (bent_offsets(), "invalid_body"),
        (without("tags"), "invalid_schema"),
        (without("data"), "invalid_schema"),
        (twice(), "invalid_schema"),
        (stream(rows(("a", "1"), id=pa.array([1]))), "invalid_schema"),
        (with_dictionary(), "invalid_schema"),
        (typed(pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.binary()), "invalid_schema"),
        (typed(pa.list_(pa.binary()), pa.binary()), "invalid_schema"),
        (typed(pa.list_view(pa.string()), pa.binary()), "invalid_schema"),
        (typed(TAGS, pa.binary_view()), "invalid_schema"),
        (typed(TAGS, pa.string_view()), "invalid_schema"),
        (typed(TAGS, pa.null()), "invalid_schema"),
        (typed(TAGS, pa.int64()), "invalid_schema"),
        (typed(pa.string(), pa.binary()), "invalid_schema"),
        (typed(pa.null(), pa.binary()), "invalid_schema"),
        (typed(pa.map_(pa.string(), pa.string()), pa.binary()), "invalid_schema"),
        (typed(TAGS, pa.run_end_encoded(pa.int32(), pa.binary())), "invalid_schema"),
        (compressed("zstd"), "compressed"),
        (compressed("lz4"), "compressed"),
    ],
)
async def test_what_is_no_such_stream_is_refused(server, body, expected):
    assert code(await put(server, path(), body)) == (400, expected)
    assert code(await commit(server, (0, 0, 1))) == (409, "part_missing")


async def test_a_stream_with_any_byte_changed_is_refused_or_taken_and_nothing_breaks(server):
    length = len(stream(some("a", 3)))
    statuses = set()
    for at in range(0, length, 3):
        statuses.add((await put(server, path(part=at), flipped(at))).status)
    assert statuses <= {201, 400, 413, 422}
    assert {201, 400} <= statuses
    assert (await request(server, "GET", "/healthz")).status == 200


def raw(tags, data):
    return pa.record_batch([pa.array(tags, TAGS), pa.array(data, pa.binary())], ["tags", "data"])


@pytest.mark.parametrize(
    ("batch", "row"),
    [
        (rows(("a", "1"), ("b b", "2")), 1),
        (rows(("", "1")), 0),
        (rows(("a", "1"), ("..x", "2")), 1),
        (rows(("a", "1"), ("b*", "2")), 1),
        (rows((",".join(f"t{n}" for n in range(65)), "1")), 0),
        (rows(("x" * 256, "1")), 0),
        (rows(("a", "1"), ("a", b"x" * 1_048_577)), 1),
        (raw([["a"], None], [b"", b""]), 1),
        (raw([["a"], []], [b"", b""]), 1),
        (raw([["a"], ["a", None]], [b"", b""]), 1),
        (raw([["a"], ["a"], ["a"]], [b"", b"", None]), 2),
        (rows(("a", ""), ("a", ""), meta=pa.array([None, [("k", None)]], META)), 1),
        (rows(("a", ""), ("a", ""), audience=pa.array(["users=1", "users=1,2"])), 1),
        (rows(("a", ""), audience=pa.array([""])), 0),
    ],
)
async def test_a_row_that_breaks_a_rule_is_named(server, batch, row):
    refused = await put(server, path(), stream(batch))
    assert code(refused) == (422, "invalid_row")
    assert refused.json()["detail"].startswith(f"row {row}: ")
    assert code(await commit(server, (0, 0, 1))) == (409, "part_missing")
    assert await stored(server) == []


async def test_the_row_that_is_named_is_counted_through_all_batches(server):
    good = some("a", 600).select(["tags", "data"])
    refused = await put(server, path(), stream(good, good, rows(("a", ""), ("b b", ""))))
    assert refused.json()["detail"].startswith("row 1201: ")


async def test_too_many_empty_rows_are_refused(server, monkeypatch):
    monkeypatch.setattr("mist.http.staging_parts._MOST_ROWS", 999)
    assert (await put(server, path(), some("a", 999))).status == 201
    assert code(await put(server, path(), some("a", 1000))) == (413, "payload_too_large")


async def test_a_body_is_bounded_and_of_one_type(server):
    huge = rows(*[("a", b"x" * 1_000_000)] * 4)
    assert code(await put(server, path(), huge)) == (413, "payload_too_large")
    for kind in ("application/json", "text/plain", ""):
        refused = await put(server, path(), some("a", 1), {"Content-Type": kind})
        assert code(refused) == (415, "unsupported_media_type")
    arrow = {"Content-Type": ARROW}
    refused = await request(server, "POST", "/v1/log/commit", arrow, stream(some("a", 1)))
    assert code(refused) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "where",
    [
        path(txn="a%2Fb"),
        path(txn="a%00b"),
        path(txn="a b".replace(" ", "%20")),
        path(txn="x" * 129),
        path(txn="%C3%A4"),
        path(batch="-1"),
        path(batch="1.5"),
        path(batch=2**53),
        path(part="%D9%A1"),
        path(partition="x"),
        path(attempt="9" * 400),
    ],
)
async def test_names_that_are_none_are_refused(server, tmp_path, where):
    assert (await put(server, where, some("a", 1))).status in (400, 404)
    assert not (tmp_path / "stage").exists()


@pytest.mark.parametrize("txn", [".", "..", "...", ".hidden", "-rf", "CON"])
async def test_a_writer_may_have_any_name_and_leads_nowhere_else(server, tmp_path, txn):
    before = sorted(each.name for each in tmp_path.iterdir())
    assert (await put(server, path(txn=txn), some("a", 1))).status == 201
    (file,) = (each for each in (tmp_path / "stage").rglob("*") if each.is_file())
    assert file.relative_to(tmp_path / "stage").parts[:2] == ("service", f"t.{txn}")
    assert (await commit(server, (0, 0, 1), txn=txn)).json()["rows"] == 1
    assert not [each for each in (tmp_path / "stage").rglob("*") if each.is_file()]
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "stage") == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"txn": "q", "batch": 0},
        {"txn": "../q", "batch": 0, "attempts": []},
        {"txn": "q\n", "batch": 0, "attempts": []},
        {"txn": "q", "batch": -1, "attempts": []},
        {"txn": "q", "batch": 2**53, "attempts": []},
        {"txn": "q", "batch": "0", "attempts": []},
        {"txn": "q", "batch": 0, "attempts": [{"partition": 0, "attempt": 0}]},
        {"txn": "q", "batch": 0, "attempts": [], "more": 1},
        {"txn": "q", "batch": 0, "attempts": [{"partition": 0, "attempt": 0, "parts": 10**9}]},
    ],
)
async def test_a_commit_that_is_none_is_refused(server, body):
    assert code(await request(server, "POST", "/v1/log/commit", json=body)) == (400, "invalid_body")


async def test_a_commit_of_two_attempts_at_a_partition_is_refused(server):
    await put(server, path(), some("a", 1))
    await put(server, path(attempt=1), some("a", 1))
    assert code(await commit(server, (0, 0, 1), (0, 1, 1))) == (409, "two_attempts")
    assert await stored(server) == []


async def test_a_commit_of_too_many_parts_or_bytes_is_refused(server, monkeypatch):
    many = [(n, 0, 60_000) for n in range(2)]
    assert code(await commit(server, *many)) == (413, "commit_too_large")
    monkeypatch.setattr("mist.http.staging_store.MAX_COMMIT", 3_000)
    for part in range(2):
        await put(server, path(part=part), rows(("a", "x" * 2_000)))
    assert code(await commit(server, (0, 0, 2))) == (413, "commit_too_large")
    assert (await commit(server, (0, 0, 1))).status == 200


# what is missing


async def test_a_missing_part_is_named_and_nothing_is_stored(server):
    await put(server, path(), some("a", 1))
    for attempts in ([(0, 0, 2)], [(0, 0, 1), (1, 0, 1)], [(0, 1, 1)]):
        refused = await commit(server, *attempts)
        assert code(refused) == (409, "part_missing")
        assert "isn't staged" in refused.json()["detail"]
    assert await stored(server) == []
    assert (await commit(server, (0, 0, 1))).json()["repeated"] is False


async def test_a_damaged_part_counts_as_missing(server, tmp_path):
    await put(server, path(), some("a", 100))
    (file,) = (each for each in (tmp_path / "stage").rglob("*") if each.is_file())
    content = bytearray(file.read_bytes())
    for damaged in (content[:-1], content[:3], b"", content[:-5] + b"x" + content[-4:]):
        file.write_bytes(damaged)
        assert code(await commit(server, (0, 0, 1))) == (409, "part_missing")
    assert await stored(server) == []
    await put(server, path(), some("a", 100))
    assert (await commit(server, (0, 0, 1))).json()["rows"] == 100


async def test_what_is_given_up_is_gone(server, tmp_path):
    await put(server, path(), some("a", 1))
    await put(server, path(batch=1), some("a", 1))
    for _ in range(2):
        gone = await request(server, "DELETE", "/v1/log/stage/q/0")
        assert gone.status == 204
    assert code(await commit(server, (0, 0, 1))) == (409, "part_missing")
    assert (await commit(server, (0, 0, 1), batch=1)).status == 200
    assert not [each for each in (tmp_path / "stage").rglob("*") if each.is_file()]


async def test_a_commit_takes_along_what_was_left_of_batches_before(server, tmp_path):
    for batch in (1, 2, 3):
        await put(server, path(batch=batch), some("a", 1))
    await commit(server, (0, 0, 1), batch=2)
    left = [each for each in (tmp_path / "stage").rglob("*") if each.is_file()]
    assert [each.parent.name for each in left] == ["3"]


async def test_without_a_history_there_is_nothing_to_commit_to(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        assert code(await put(server, path(), some("a", 1))) == (409, "history_off")
        assert code(await commit(server)) == (409, "history_off")


# who may


async def test_another_credentials_stage_can_not_be_seen_nor_touched(server):
    await put(server, path(), some("a", 1), TOKEN)
    for headers in (None, OTHER):
        assert code(await commit(server, (0, 0, 1), headers=headers)) == (409, "part_missing")
        assert (await request(server, "DELETE", "/v1/log/stage/q/0", headers)).status == 204
    assert (await commit(server, (0, 0, 1), headers=TOKEN)).json()["rows"] == 1
    # Nor are its numbers used up.
    await put(server, path(), some("a", 1), OTHER)
    assert (await commit(server, (0, 0, 1), headers=OTHER)).json()["repeated"] is False


@pytest.mark.parametrize("tags", ["c", "a,c"])
async def test_a_token_needs_the_right_to_publish_each_tag(server, tags):
    batch = rows(("a", "1"), ("a,b", "2"), (tags, "3"))
    assert code(await put(server, path(), batch, TOKEN)) == (403, "not_granted")
    assert code(await commit(server, (0, 0, 1), headers=TOKEN)) == (409, "part_missing")


async def test_a_token_that_publishes_nothing_is_refused_before_the_body_arrives(server):
    await server.hub.registry.execute([Register("none", frozenset("a"))])
    head = (
        f"PUT {path()} HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: none\r\n"
        f"Content-Type: {ARROW}\r\nContent-Length: 3000000\r\n\r\n"
    )
    assert b" 403 " in await told_before_the_body(server, head.encode())


async def test_a_right_lost_before_the_commit_counts(server):
    await put(server, path(), rows(("a", "1"), ("a,b", "2")), TOKEN)
    await server.hub.registry.execute([RemoveTags("t", frozenset({">b"}))])
    assert code(await commit(server, (0, 0, 1), headers=TOKEN)) == (403, "not_granted")
    assert await stored(server) == []
    await server.hub.registry.execute([AddTags("t", frozenset({">b"}))])
    assert (await commit(server, (0, 0, 1), headers=TOKEN)).status == 200


async def test_a_token_revoked_before_the_commit_commits_nothing(server):
    server.hub.hub_limits = type(server.hub.hub_limits)(failed_auth_delay=0.0)
    await put(server, path(), some("a", 1), TOKEN)
    await server.hub.registry.execute([Unregister("t")])
    assert code(await commit(server, (0, 0, 1), headers=TOKEN)) == (401, "unauthorized")


async def test_columns_of_services_are_not_for_tokens(server):
    batch = rows(("a", "1"), audience=pa.array(["x"]))
    assert code(await put(server, path(), batch, TOKEN)) == (400, "invalid_schema")


# at once, and when something fails


async def test_commits_of_one_batch_at_once_append_once_and_answer_alike(server):
    await put(server, path(), some("a", 5_000))
    answers = []

    async def ask():
        answers.append((await commit(server, (0, 0, 1))).json())

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert sorted(each.pop("repeated") for each in answers) == [False] + [True] * 7
    assert answers == [{"first": 1, "last": 5_000, "rows": 5_000}] * 8
    assert (await server.hub.sequencer.history.statistics()).messages == 5_000


async def test_while_a_batch_is_committed_it_can_not_be_changed(server):
    await put(server, path(), some("a", 5))
    history = server.hub.sequencer.history
    plain, held, go = history.commit, trio.Event(), trio.Event()

    async def slow(*about):
        held.set()
        await go.wait()
        return await plain(*about)

    history.commit = slow
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit, server, (0, 0, 1))
        await held.wait()
        assert code(await put(server, path(), some("b", 1))) == (409, "being_committed")
        refused = await request(server, "DELETE", "/v1/log/stage/q/0")
        assert code(refused) == (409, "being_committed")
        assert (await put(server, path(batch=1), some("b", 1))).status == 201
        go.set()
    assert len(await stored(server)) == 5


async def test_who_leaves_in_the_middle_finds_it_done(server):
    await put(server, path(), some("a", 5))
    history = server.hub.sequencer.history
    plain, held, go = history.commit, trio.Event(), trio.Event()

    async def slow(*about):
        held.set()
        await go.wait()
        return await plain(*about)

    history.commit = slow
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit, server, (0, 0, 1))
        await held.wait()
        nursery.cancel_scope.cancel()
    go.set()
    assert (await commit(server, (0, 0, 1))).json() == {
        "first": 1,
        "last": 5,
        "rows": 5,
        "repeated": True,
    }
    assert len(await stored(server)) == 5


async def test_a_history_that_fails_is_told_and_a_retry_stores_once(server):
    await put(server, path(), some("a", 5))
    history = server.hub.sequencer.history
    plain = history.commit

    async def fail(*about):
        history.commit = plain
        raise HistoryUnavailable("the disk is full")

    history.commit = fail
    refused = await commit(server, (0, 0, 1))
    assert code(refused) == (503, "history_unavailable")
    assert refused.headers["retry-after"]
    assert (await commit(server, (0, 0, 1))).json()["repeated"] is False
    assert len(await stored(server)) == 5


async def test_a_server_that_drains_commits_nothing_new(server):
    await put(server, path(), some("a", 1))
    await commit(server, (0, 0, 1))
    await put(server, path(batch=1), some("a", 1))
    server.hub.ending = True
    assert code(await commit(server, (0, 0, 1), batch=1)) == (503, "draining")
    assert (await commit(server, (0, 0, 1))).json()["repeated"] is True


# room


async def test_only_so_much_may_be_staged(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://", max_stage=3 * 4096) as server:
        for part in range(3):
            assert (await put(server, path(part=part), some("a", 1))).status == 201
        refused = await put(server, path(part=3), some("a", 1))
        assert code(refused) == (429, "stage_full")
        assert refused.headers["retry-after"]
        assert (await put(server, path(part=2), some("a", 2))).status == 201  # in its place
        assert (await commit(server, (0, 0, 1))).status == 200
        assert (await put(server, path(batch=1), some("a", 1))).status == 201
    # Counted again by the next server.
    async with running(tmp_path, listen=LISTEN, history="memory://", max_stage=3 * 4096) as server:
        for part in range(1, 3):
            assert (await put(server, path(batch=1, part=part), some("a", 1))).status == 201
        assert (await put(server, path(batch=1, part=3), some("a", 1))).status == 429


async def test_what_nobody_adds_to_for_a_day_is_given_up(tmp_path):
    now = time.time()
    stage = Stage(tmp_path, 1 << 20, lambda: now, lambda: now)
    old, young = Batch(None, "old", 0), Batch("f00", "young", 0)
    await stage.put(old, 0, 0, 0, b"x")
    now += 20 * 3600.0
    await stage.put(young, 0, 0, 0, b"x")
    (file,) = (tmp_path / "token.f00").rglob("0.0.0")
    os.utime(file, (now, now))
    now += 5 * 3600.0
    await stage.put(Batch(None, "other", 0), 0, 0, 0, b"x")
    assert not (tmp_path / "service" / "t.old").exists()
    assert file.exists()
    assert stage._used == 2 * 4096


@pytest.mark.parametrize("days", [2, -2])
async def test_a_clock_that_is_set_gives_up_nothing_that_is_staged(tmp_path, days):
    now, steady = time.time(), 1_000.0
    stage = Stage(tmp_path, 1 << 20, lambda: now, lambda: steady)
    batch = Batch(None, "q", 0)
    await stage.put(batch, 0, 0, 0, b"x")
    (file,) = tmp_path.rglob("0.0.0")
    now += days * 24 * 3600.0
    for part in (1, 2):
        await stage.put(Batch(None, "other", 0), 0, 0, part, b"x")
        assert file.exists()
        now, steady = now + 20 * 3600.0, steady + 20 * 3600.0
    await stage.put(Batch(None, "other", 0), 0, 0, 3, b"x")  # 40 hours since the clock was set
    assert not file.exists()


async def test_a_commit_that_begins_while_old_batches_are_looked_for_is_no_error(tmp_path):
    stage = Stage(tmp_path, 10 * 4096)
    where = stage._path

    def path(batch):
        # As the event loop does it, while the thread is at its first.
        stage._busy.add(Batch(None, "another", len(stage._busy)))
        return where(batch)

    with stage.untouched(Batch(None, "one", 0)):
        await stage.put(Batch(None, "x", 0), 0, 0, 0, b"x")
        stage._swept, stage._path = 0.0, path
        await stage.put(Batch(None, "x", 0), 0, 0, 1, b"x")


# as a process


def test_a_server_killed_between_append_and_answer_appends_once(tmp_path):
    """Killed at the moment that the batch is stored, whatever was answered."""
    listen = ("--listen", "http://127.0.0.1:0")
    body = stream(some("a", 20_000))
    ask = json.dumps(
        {"txn": "q", "batch": 0, "attempts": [{"partition": 0, "attempt": 0, "parts": 8}]}
    )

    def talk(url, method, where, content, kind):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        with closing(connection):
            connection.request(method, where, content, {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, response.read()

    with serving(tmp_path, listen=listen) as server:
        (url,) = server.urls
        for part in range(8):
            assert talk(url, "PUT", path(part=part), body, ARROW)[0] == 201
        asking = threading.Thread(
            target=lambda: _ignore(talk, url, "POST", "/v1/log/commit", ask, "application/json")
        )
        asking.start()
        wal = tmp_path / "history.db-wal"
        until = time.monotonic() + 10
        size = wal.stat().st_size
        while wal.stat().st_size < size + 1_000_000 and time.monotonic() < until:
            time.sleep(0.001)
        server.stop(signal.SIGKILL)
        asking.join()
    with serving(tmp_path, listen=listen) as server:
        (url,) = server.urls
        answers = [
            json.loads(talk(url, "POST", "/v1/log/commit", ask, "application/json")[1])
            for _ in range(2)
        ]
        assert [(each["first"], each["last"], each["rows"]) for each in answers] == [
            (1, 160_000, 160_000)
        ] * 2
        assert answers[1]["repeated"]
        _, newest = talk(url, "GET", "/v1/messages?tags=a&since=-1", None, "")
        assert json.loads(newest)["newest"] == 160_000


def _ignore(call, *about):
    with suppress(OSError, http.client.HTTPException):
        call(*about)
