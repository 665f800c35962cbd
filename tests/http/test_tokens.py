"""The token registry over HTTP."""

import re

import msgspec
import pytest
import trio

from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.commands import Register
from tests.auth.stores import Failing
from tests.http.client import connect, request
from tests.servers import listeners, running

LISTEN = listeners("tcp", "http", "ws")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server_settings():
    return {"listen": LISTEN}


async def make(server, *tags, **more):
    response = await request(server, "PUT", "/v1/tokens", json={"tags": tags, **more})
    assert response.status == 201
    return response.json()


# making


async def test_a_token_that_is_made_can_be_used_at_once(server):
    made = await make(server, "room:*", "news")
    assert made["tags"] == ["news", "room:*"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", made["token"])  # 32 bytes
    assert server.hub.registry.lookup(made["token"]).id == made["id"]


async def test_generated_tokens_differ(server):
    texts = {(await make(server, "a"))["token"] for _ in range(20)}
    assert len(texts) == 20


async def test_a_given_text_is_taken(server):
    made = await make(server, "a", token="my-t0ken")
    assert made["token"] == "my-t0ken"
    assert server.hub.registry.tags("my-t0ken") == {"a"}


async def test_a_weak_text_is_warned_of_and_taken(server, caplog):
    weak = await make(server, "a", token="my-t0ken")
    assert weak["warning"].startswith("the token is short")
    assert "my-t0ken" not in weak["warning"] + caplog.text
    assert "weak token" in caplog.text
    assert "warning" not in await make(server, "a")
    assert "warning" not in await make(server, "a", token="Vy7Wq2-random-aP0zL9x")


async def test_where_it_can_be_changed_is_told(server):
    response = await request(server, "PUT", "/v1/tokens", json={"tags": ["a"]})
    assert response.headers["location"] == f"/v1/tokens/{response.json()['id']}"
    assert response.headers["cache-control"] == "no-store"


async def test_text_that_is_taken_is_refused_without_being_repeated(server):
    await make(server, "a", token="t0ken")
    response = await request(server, "PUT", "/v1/tokens", json={"tags": ["b"], "token": "t0ken"})
    assert (response.status, response.json()["code"]) == (409, "token_exists")
    assert b"t0ken" not in response.body
    assert server.hub.registry.tags("t0ken") == {"a"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_body"),
        ({"tags": "a"}, "invalid_body"),
        ({"tags": None}, "invalid_body"),
        ({"tags": [1]}, "invalid_body"),
        ({"tags": []}, "empty_tag"),
        ({"tags": [""]}, "empty_tag"),
        ({"tags": ["a b"]}, "invalid_tag"),
        ({"tags": ["a,b"]}, "invalid_tag"),
        ({"tags": ["..derived"]}, "invalid_tag"),
        ({"tags": ["x" * 256]}, "invalid_tag"),
        ({"tags": ["\ud800"]}, "invalid_body"),
        ({"tags": [f"t{n}" for n in range(65)]}, "too_many_tags"),
        ({"tags": ["a"], "token": ""}, "invalid_token"),
        ({"tags": ["a"], "token": None}, "invalid_body"),
        ({"tags": ["a"], "token": "a b"}, "invalid_token"),
        ({"tags": ["a"], "token": "a\nb"}, "invalid_token"),
        ({"tags": ["a"], "token": "x" * 256}, "invalid_token"),
        ({"tags": ["a"], "id": "0" * 16}, "invalid_body"),
        ([{"tags": ["a"]}], "invalid_body"),
        ({"tags": ["a"], "attributes": None}, "invalid_body"),
        ({"tags": ["a"], "attributes": []}, "invalid_body"),
        ({"tags": ["a"], "attributes": "user=1"}, "invalid_body"),
        ({"tags": ["a"], "attributes": {"user": "\ud800"}}, "invalid_body"),
        ({"tags": ["a"], "attributes": {"user": None}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": ""}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": True}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": 1.5}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": 2**64}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": ["1"]}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": "a\x00"}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"user": "x" * 256}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"users": ["1"]}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"groups": []}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"groups": "staff"}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"groups": [["staff"]]}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"groups": list(range(1001))}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"Plan": "pro"}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"a=b&user": "1"}}, "invalid_audience"),
        ({"tags": ["a"], "attributes": {"": "1"}}, "invalid_audience"),
        (
            {"tags": ["a"], "attributes": {"groups": [f"{n:0200}" for n in range(100)]}},
            "invalid_audience",
        ),
        ({"tags": ["a"], "expires": "2040-01-01T00:00Z"}, "invalid_body"),
        ({"tags": ["a"], "expires": True}, "invalid_body"),
        ({"tags": ["a"], "expires": 0}, "invalid_expiry"),
        ({"tags": ["a"], "expires": -1e300}, "invalid_expiry"),
        ({"tags": ["a"], "expires": 1e300}, "invalid_expiry"),
        ({"tags": ["a"], "expires": 1_700_000_000}, "invalid_expiry"),
        ({"tags": ["a"], "name": None}, "invalid_body"),
        ({"tags": ["a"], "name": " a"}, "invalid_name"),
        ({"tags": ["a"], "name": "a\n"}, "invalid_name"),
        ({"tags": ["a"], "name": "a\u202eb"}, "invalid_name"),
        ({"tags": ["a"], "name": "x" * 129}, "invalid_name"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_cannot_be_a_token_is_refused(server, body, code):
    response = await request(server, "PUT", "/v1/tokens", json=body)
    assert (response.status, response.json()["code"]) == (400, code)
    assert server.hub.registry.statistics().tokens == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/tokens", {"tags": ["a"] * 180_000}),
        ("PATCH", "/v1/tokens/0123456789abcdef", {"add": ["a"] * 180_000}),
        ("POST", "/v1/log/erase", {"tags": ["a"] * 180_000}),
    ],
)
async def test_far_too_many_tags_are_refused_by_their_number(
    server, method, path, body, monkeypatch
):
    monkeypatch.setattr(msgspec.json, "decode", None)
    response = await request(server, method, path, json=body)
    assert (response.status, response.json()["code"]) == (400, "too_many_tags")


@pytest.mark.parametrize("body", [[{}] * 100_000, {"tags": [1] * 100_000}])
async def test_far_too_many_values_are_refused_by_their_number(server, body, monkeypatch):
    monkeypatch.setattr(msgspec.json, "decode", None)
    response = await request(server, "PUT", "/v1/tokens", json=body)
    assert (response.status, response.json()["code"]) == (400, "invalid_body")


async def test_as_many_repeats_of_a_tag_as_a_token_may_name_are_one_tag(server):
    made = await make(server, *["a"] * 1_024, attributes={"groups": list(range(200))})
    assert made["tags"] == ["a"]


async def test_attributes_that_are_refused_are_not_repeated(server):
    for value in ["s3cret\n", ["s3cret"], {"s3cret": 1}]:
        body = {"tags": ["a"], "token": "t0ken", "attributes": {"user": value}}
        response = await request(server, "PUT", "/v1/tokens", json=body)
        assert response.status == 400
        assert b"s3cret" not in response.body
        assert b"t0ken" not in response.body


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"tags":["\xff"]}', b"null"])
async def test_what_is_no_json_is_refused(server, body):
    response = await request(server, "PUT", "/v1/tokens", JSON, body)
    assert (response.status, response.json()["code"]) == (400, "invalid_body")


# attributes


async def test_a_token_has_the_attributes_it_is_made_with(server):
    given = {"client": "q", "user": 7, "groups": ["b", 3, "a", "b"], "site": "ü;&=%", "level": -1}
    known = {"client": "q", "user": "7", "groups": ["3", "a", "b"], "site": "ü;&=%", "level": "-1"}
    made = await make(server, "a", attributes=given)
    assert made["attributes"] == known
    assert server.hub.registry.lookup(made["token"]).attributes.as_json() == known
    assert (await request(server, "GET", f"/v1/tokens/{made['id']}")).json()["attributes"] == known
    [listed] = (await request(server, "GET", "/v1/tokens")).json()["tokens"]
    assert listed["attributes"] == known


async def test_a_token_without_attributes_says_so(server):
    made = await make(server, "a")
    assert made["attributes"] == {}
    assert (await make(server, "a", attributes={}))["attributes"] == {}


async def test_of_a_token_that_is_taken_nothing_changes(server):
    await make(server, "a", token="t0ken", attributes={"user": 1})
    body = {"tags": ["a"], "token": "t0ken", "attributes": {"user": 2}}
    assert (await request(server, "PUT", "/v1/tokens", json=body)).status == 409
    assert server.hub.registry.lookup("t0ken").attributes.user == "1"


async def test_attributes_that_are_given_are_set_and_those_that_are_null_forgotten(server):
    made = await make(server, "a", attributes={"user": 1, "groups": ["g"], "plan": "pro"})
    path = f"/v1/tokens/{made['id']}"
    body = {"add": ["b"], "attributes": {"user": 2, "groups": None, "site": "x", "none": None}}
    response = await request(server, "PATCH", path, json=body)
    assert (response.status, response.json()) == (
        200,
        {
            "id": made["id"],
            "tags": ["a", "b"],
            "created": made["created"],
            "attributes": {"user": "2", "plan": "pro", "site": "x"},
            "expires": None,
            "name": "",
        },
    )
    assert (await request(server, "GET", path)).json() == response.json()


@pytest.mark.parametrize(
    "attributes",
    [{"user": ""}, {"users": None}, {"groups": []}, {"Plan": None}, {"plan": ["a"]}, {"a&b": None}],
    ids=str,
)
async def test_change_with_attributes_that_are_none_changes_nothing(server, attributes):
    made = await make(server, "a", attributes={"user": 1})
    path = f"/v1/tokens/{made['id']}"
    body = {"add": ["b"], "attributes": attributes}
    response = await request(server, "PATCH", path, json=body)
    assert (response.status, response.json()["code"]) == (400, "invalid_audience")
    record = server.hub.registry.lookup(made["token"])
    assert (record.tags, record.attributes.text) == ({"a"}, "user=1")


async def test_more_attributes_than_a_token_may_have_are_refused(server):
    made = await make(server, "a", attributes={"groups": list(range(1000))})
    path = f"/v1/tokens/{made['id']}"
    body = {"attributes": {"user": 1, "plan": "pro"}}
    response = await request(server, "PATCH", path, json=body)
    assert (response.status, response.json()["code"]) == (400, "invalid_audience")
    assert (await request(server, "GET", path)).json()["attributes"] == made["attributes"]


async def test_sessions_know_the_attributes_of_their_token_at_once(server):
    made = await make(server, "a", attributes={"user": 1})
    session = await subscriber(server, made["token"])
    assert session.attributes.text == "user=1"
    body = {"attributes": {"user": None, "groups": ["g"]}}
    await request(server, "PATCH", f"/v1/tokens/{made['id']}", json=body)
    assert session.attributes.text == "groups=g"
    assert server.hub.registry.lookup(made["token"]) is session.record
    assert session.ended is None
    await session.aclose()


# looking


async def test_no_answer_after_the_first_holds_the_text_or_the_digest(server):
    made = await make(server, "a", token="s3cret-text")
    digest = server.hub.registry.lookup("s3cret-text").digest
    path = f"/v1/tokens/{made['id']}"
    answers = [
        await request(server, "GET", path),
        await request(server, "GET", "/v1/tokens"),
        await request(server, "PATCH", path, json={"add": ["b"]}),
        await request(server, "DELETE", path),
    ]
    assert [each.status for each in answers] == [200, 200, 200, 204]
    assert set(answers[0].json()) == {*("id", "tags", "created", "attributes", "expires", "name")}
    for each in answers:
        assert b"s3cret" not in each.body
        assert digest.hex().encode() not in each.body


async def test_a_list_is_given_in_pages_each_token_once(server):
    ids = {(await make(server, f"t{n}"))["id"] for n in range(7)}
    seen, path = [], "/v1/tokens?limit=3"
    while path:
        page = (await request(server, "GET", path)).json()
        assert page["count"] == 7
        seen += [each["id"] for each in page["tokens"]]
        path = page["next"] and f"/v1/tokens?limit=3&after={page['next']}"
    assert seen == sorted(ids)


async def test_a_page_holds_a_hundred_unless_told(server):
    await server.hub.registry.execute(
        [Register(f"t{n}", frozenset("a")) for n in range(150)],
    )
    assert len((await request(server, "GET", "/v1/tokens")).json()["tokens"]) == 100
    assert len((await request(server, "GET", "/v1/tokens?limit=1000")).json()["tokens"]) == 150


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit=1&limit=2", "limit=%D9%A1",
     "after=x", "after=", "after=" + "0" * 15, "after=" + "0" * 16 + "%0A", "limit=1e2"],
)  # fmt: skip
async def test_page_that_means_nothing_is_refused(server, query):
    assert (await request(server, "GET", f"/v1/tokens?{query}")).status == 400


@pytest.mark.parametrize("name", ["0" * 16, "x", "%00", "..%2f..", "0" * 5_000, "%ff"])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_unknown_id_is_not_found(server, method, name):
    body = {"add": ["a"]} if method == "PATCH" else None
    response = await request(server, method, f"/v1/tokens/{name}", json=body)
    assert response.status == 404


# changes, and the sessions they concern


async def subscriber(server, token):
    """A WebSocket's session, without the socket."""
    from mist.protocols.line.forms import PLAIN
    from mist.sessions.session import Session

    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws")
    session.adopt(server.hub.registry.lookup(token))
    return session


async def test_tags_are_added_and_removed_in_one_step(server):
    made = await make(server, "a", "b")
    path = f"/v1/tokens/{made['id']}"
    response = await request(server, "PATCH", path, json={"add": ["c", "d"], "remove": ["a", "d"]})
    assert response.status == 200
    assert response.json() == {
        "id": made["id"],
        "tags": ["b", "c"],
        "created": made["created"],
        "attributes": {},
        "expires": None,
        "name": "",
    }
    assert server.hub.registry.tags(made["token"]) == {"b", "c"}
    assert (await request(server, "GET", path)).json()["tags"] == ["b", "c"]


async def test_a_change_that_is_none_is_none(server):
    made = await make(server, "a")
    response = await request(server, "PATCH", f"/v1/tokens/{made['id']}", json={})
    assert response.status == 200
    assert response.json()["tags"] == ["a"]


async def test_tag_that_is_removed_ends_its_subscriptions_at_once(server):
    made = await make(server, "a", "b")
    session = await subscriber(server, made["token"])
    for tag in "ab":
        session.subscribe(frozenset(tag))
    await request(server, "PATCH", f"/v1/tokens/{made['id']}", json={"remove": ["a"]})
    assert [group.tag_list for group in session.subscriptions] == [b"b"]
    assert session.ended is None
    await session.aclose()


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_token_that_is_gone_or_empty_ends_its_sessions_at_once(server, method):
    made = await make(server, "a")
    session = await subscriber(server, made["token"])
    body = {"remove": ["a"]} if method == "PATCH" else None
    response = await request(server, method, f"/v1/tokens/{made['id']}", json=body)
    assert response.status in (200, 204)
    assert session.ended.code == 4401
    await session.aclose()
    answer = await request(server, "GET", "/v1/endpoints", {"X-Auth-Token": made["token"]})
    assert answer.status == 200  # which asks for no token
    refused = await request(server, "GET", "/v1/stats", {"X-Auth-Token": made["token"]})
    assert refused.status == 401


async def test_more_tags_than_a_token_may_have_are_refused(tmp_path):
    async with running(tmp_path, listen=LISTEN, max_tags_per_token=2) as server:
        made = await make(server, "a")
        path = f"/v1/tokens/{made['id']}"
        response = await request(server, "PATCH", path, json={"add": ["b", "c"]})
        assert (response.status, response.json()["code"]) == (400, "too_many_tags")
        assert server.hub.registry.tags(made["token"]) == {"a"}


async def test_registry_that_cannot_write_is_unavailable_and_heals(server):
    store = Failing(MemoryStore())
    registry = LocalRegistry(store)
    [record] = await registry.execute([Register("t0ken", frozenset("a"))])
    # All that asks the registry from here on gets this one.
    server.hub.registry._store, server.hub.registry._hmac = store, registry._hmac
    server.hub.registry._records[record.digest] = record
    server.hub.registry._digests[record.id] = record.digest
    path = f"/v1/tokens/{record.id}"
    store.full = True
    for method, where, body in [
        ("PUT", "/v1/tokens", {"tags": ["a"], "token": "other"}),
        ("PATCH", path, {"add": ["b"]}),
        ("DELETE", path, None),
    ]:
        response = await request(server, method, where, json=body)
        assert (response.status, response.json()["code"]) == (503, "registry_unavailable")
        assert response.headers["retry-after"]
    assert (await request(server, "GET", path)).json()["tags"] == ["a"]
    assert server.hub.registry.statistics().tokens == 1
    store.full = False
    assert (await request(server, "DELETE", path)).status == 204


async def test_of_two_who_delete_at_once_one_finds_nothing(server):
    made = await make(server, "a")
    seen = []

    async def delete():
        seen.append((await request(server, "DELETE", f"/v1/tokens/{made['id']}")).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        nursery.start_soon(delete)
    assert sorted(seen) == [204, 404]


# who may


async def test_only_services_may(tmp_path):
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        await server.hub.registry.execute([Register("t0ken", frozenset({"a", ">a"}))])
        record = server.hub.registry.lookup("t0ken")
        path = f"/v1/tokens/{record.id}"
        asked = [
            ("PUT", "/v1/tokens", {"tags": ["a"]}),
            ("GET", "/v1/tokens", None),
            ("GET", path, None),
            ("PATCH", path, {"add": ["b"]}),
            ("DELETE", path, None),
        ]
        for method, where, body in asked:
            bare = await request(server, method, where, json=body)
            token = await request(server, method, where, {"X-Auth-Token": "t0ken"}, json=body)
            assert (bare.status, token.status) == (401, 403)
        assert server.hub.registry.page(9) == [record]
        secret = {"Authorization": "Bearer s3cret"}
        for method, where, body in asked:
            assert (await request(server, method, where, secret, json=body)).status < 300


async def test_foreign_pages_may_not(server):
    made = await make(server, "a")
    page = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    path = f"/v1/tokens/{made['id']}"
    for method, where, body in [
        ("PUT", "/v1/tokens", {"tags": ["*"]}),
        ("PATCH", path, {"add": ["*"]}),
        ("DELETE", path, None),
    ]:
        response = await request(server, method, where, page, json=body)
        assert (response.status, response.json()["code"]) == (403, "origin_not_allowed")
    form = {"Content-Type": "text/plain"}
    response = await request(server, "PUT", "/v1/tokens", form, b'{"tags":["*"]}')
    assert response.status == 415
    assert server.hub.registry.statistics().tokens == 1


async def test_other_methods_are_refused_and_told_which_there_are(server):
    async with connect(server) as client:
        response = await client.request("POST", "/v1/tokens", json={"tags": ["a"]})
        assert response.status == 405
        assert {"GET", "PUT"} <= set(re.split(", *", response.headers["allow"]))
        response = await client.request("PUT", "/v1/tokens/" + "0" * 16, json={})
        assert {"GET", "PATCH", "DELETE"} <= set(re.split(", *", response.headers["allow"]))


# found


async def test_tokens_are_found_by_name_id_and_user(server):
    ids = []
    for number in range(7):
        body = {"tags": ["a"], "name": f"Job {number}", "attributes": {"user": f"u-{number}"}}
        ids.append((await request(server, "PUT", "/v1/tokens", json=body)).json()["id"])

    async def found(search, limit=3):
        names, after = [], ""
        while after is not None:
            query = f"search={search}&limit={limit}" + (after and f"&after={after}")
            page = (await request(server, "GET", f"/v1/tokens?{query}")).json()
            names += [each["name"] for each in page["tokens"]]
            after = page["next"]
        assert page["count"] == len(names)
        return sorted(names)

    assert await found("job") == [f"Job {number}" for number in range(7)]
    assert await found("JOB%203") == ["Job 3"]
    assert await found("U-4") == ["Job 4"]
    assert await found(ids[5]) == ["Job 5"]
    assert await found("nothing") == []
    response = await request(server, "GET", "/v1/tokens?search=" + "x" * 201)
    assert response.status == 400


async def test_searching_many_tokens_lets_others_run(server):
    await server.hub.registry.execute(
        [Register(f"token-{number}", frozenset("a")) for number in range(20_000)]
    )
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        assert (await request(server, "GET", "/v1/tokens?search=x")).json()["count"] == 0
        nursery.cancel_scope.cancel()
    assert turns >= 30


async def test_a_token_is_found_by_its_text_or_id(server):
    made = (await request(server, "PUT", "/v1/tokens", json={"tags": ["a"]})).json()
    text = made.pop("token")
    for which in (text, made["id"]):
        response = await request(server, "POST", "/v1/token-lookup", json={"token": which})
        assert (response.status, response.json()) == (200, made)
        assert text.encode() not in response.body
    response = await request(server, "POST", "/v1/token-lookup", json={"token": "another"})
    assert (response.status, response.json()["code"]) == (404, "token_not_found")
    assert b"another" not in response.body


async def test_only_services_find_tokens(tmp_path):
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        await server.hub.registry.execute([Register("t0ken", frozenset("*"))])
        for headers, status in [({}, 401), ({"X-Auth-Token": "t0ken"}, 403)]:
            for method, path, body in [
                ("POST", "/v1/token-lookup", {"token": "t0ken"}),
                ("GET", "/v1/tokens?search=t", None),
            ]:
                assert (await request(server, method, path, headers, json=body)).status == status
