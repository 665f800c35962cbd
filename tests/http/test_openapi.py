"""`/openapi.json`, and that the server is what it says."""

import re
import time

import pytest
import schemathesis
import trio
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema
from starlette.routing import Route

from mist.commands import Register
from mist.http.description import GROUPS
from tests.http.client import http_address, request
from tests.servers import listeners, running

LISTEN = listeners("tcp", "http", "ws")

NDJSON = "application/x-ndjson"

ENDLESS = ("/v1/stream", "/v1/poll", "/v1/presence/stream")

# Not asked at random, and why.
NOT_FUZZED = {
    "/v1/stream": "it has no end",
    "/v1/presence/stream": "nor has it",
    "/v1/poll": "it waits, which is what it is for",
    "/message-bus/{client_id}/poll": "it waits, too",
    "/api/message/{topic}": "its body is anything",
    "/api/subscribers/{topic}": "a topic is bounded in bytes and levels",
    "/v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{part}": "its body is no JSON",
}


@pytest.fixture
def server_settings():
    return {
        "listen": LISTEN,
        "history": "memory://",
        "secret": "s3cret",
        "failed_auth_delay": 0.0,
        "presence": ("*",),
    }


async def page(server):
    response = await request(server, "GET", "/openapi.json")
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    return response.json()


def walk(node, path=()):
    """Every value below, with where it stands."""
    yield path, node
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from walk(value, (*path, key))
    for number, value in enumerate(node) if isinstance(node, list) else ():
        yield from walk(value, (*path, number))


async def test_every_route_is_described_with_all_its_methods(server):
    described = {path: set(methods) for group in GROUPS for path, methods in group.items()}
    assert sum(map(len, GROUPS)) == len(described), "a path is described twice"
    guard = server._endpoints._http[0].shared.app
    there = {}
    for route in guard._app.routes:
        assert isinstance(route, Route)
        methods = {method.lower() for method in route.methods} - {"head"}
        there.setdefault(route.path.replace(":path}", "}"), set()).update(methods)
    assert there.pop("/static/{path}") == {"get"}  # files of the dashboard
    assert there == described


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
EXAMPLES = {"{id}": "9f86d081884c7d65", "{client_id}": "x", "{topic}": "x", "{part}": "0"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json"},
        {"Content-Type": "text/plain", "Origin": "http://localhost:3000"},
    ],
    ids=["none", "text", "json", "page"],
)
async def test_a_method_that_is_not_described_is_refused_as_such(server, headers):
    for path, methods in (await page(server))["paths"].items():
        allowed = {method.upper() for method in methods}
        if "GET" in allowed and path not in ENDLESS:
            allowed.add("HEAD")
        if path == "/api/message/{topic}":
            allowed.add("HEAD")
        asked = re.sub(r"\{\w+\}", lambda found: EXAMPLES.get(found[0], "1"), path)
        for method in set(METHODS) - allowed:
            response = await request(server, method, asked, headers, b"x")
            assert response.status == 405, (method, path)
            assert set(response.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("method", METHODS)
async def test_a_path_that_is_not_described_is_not_found(server, method):
    for path in ("/nothing", "/v1", "/v1/messages/", "/v1/messages/1", "/v1/tokens/1/2", "//"):
        response = await request(server, method, path, {"Content-Type": "text/plain"}, b"x")
        assert response.status == 404, path


async def test_everything_that_is_referred_to_is_there(server):
    found = await page(server)
    assert found["openapi"].startswith("3.1")
    references = [node for path, node in walk(found) if path and path[-1] == "$ref"]
    assert references
    for reference in references:
        node = found
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    named = [each for path, each in walk(found) if path and path[-1] == "security"]
    for each in named:
        assert {name for one in each for name in one} <= set(found["components"]["securitySchemes"])
    ids = [node for path, node in walk(found["paths"]) if path and path[-1] == "operationId"]
    assert len(ids) == len(set(ids))


async def test_every_operation_says_what_can_go_wrong_and_gives_examples(server):
    found = await page(server)
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            statuses = set(operation["responses"])
            assert {"400", "421", "429", "500"} <= statuses
            assert any(each < "300" for each in statuses)
            if operation.get("security"):
                assert {"401", "403"} <= statuses
            if "requestBody" in operation:
                assert {"413", "415"} <= statuses
                for kind, content in operation["requestBody"]["content"].items():
                    assert "example" in content or kind != "application/json", (path, method)


async def test_it_is_the_same_for_anyone(server):
    secret = {"Authorization": "Bearer s3cret"}
    bare = await request(server, "GET", "/openapi.json")
    assert bare.body == (await request(server, "GET", "/openapi.json", secret)).body
    assert b"s3cret" not in bare.body


def fuzz(description, base_url):
    """Ask everything, at random but the same each time; what is wrong."""
    for path in NOT_FUZZED:
        del description["paths"][path]
    # Lines are no format that can be made from a schema.
    del description["paths"]["/v1/messages"]["post"]["requestBody"]["content"][NDJSON]
    config = SchemathesisConfig.from_dict(
        {
            "seed": 20,
            "base-url": base_url,
            "headers": {"Authorization": "Bearer s3cret"},
            "continue-on-failure": True,
            "request-timeout": 10,
            "warnings": False,
            "generation": {
                "max-examples": 6,
                "deterministic": True,
                "database": "none",
                "with-security-parameters": False,  # two credentials at once are an error
            },
        }
    )
    schema = schemathesis.openapi.from_dict(description, config=config)
    failures, asked = {}, set()
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures[str(event)] = str(getattr(event, "info", event))
        if not isinstance(event, events.ScenarioFinished):
            continue
        asked.add(event.label)
        for case, checks in event.recorder.checks.items():
            sent = event.recorder.cases[case].value
            for check in checks:
                status = event.recorder.interactions[case].response.status_code
                if check.status == Status.FAILURE and not is_meant(check, sent, status):
                    failure = f"{check.failure_info.failure}\n{sent.as_curl_command()}"
                    failures.setdefault((check.name, sent.operation.label), failure)
    return failures, asked


def is_meant(check, sent, status):
    """What is asked for on purpose, and can't be said in a schema."""
    if check.name == "negative_data_rejection" and status == 413:
        return True  # more messages than one request has, of which none is looked at
    if check.name == "positive_data_acceptance" and status == 410:
        return True  # it asked for the log of another epoch
    if check.name == "positive_data_acceptance" and status == 422:
        # One key with two bodies, which no schema of one request can tell.
        return "Idempotency-Key" in sent.headers
    if check.name == "positive_data_acceptance" and any(
        isinstance(each, float) and each.is_integer() for _, each in walk(sent.body)
    ):
        return True  # a schema's integers include 1.0, which the server takes for no integer
    if check.name == "positive_data_acceptance" and isinstance(sent.body, dict):
        # An expiry is in the future, and a name can be printed.
        expires, name = sent.body.get("expires"), sent.body.get("name") or ""
        if (expires is not None and expires <= time.time()) or not (
            name.isprintable() and name == name.strip()
        ):
            return True
    if check.name == "positive_data_acceptance":
        # Tags and tokens are bounded in bytes.
        return any(
            isinstance(each, str) and len(each) <= 255 < len(each.encode())
            for _, each in walk(sent.body)
        )
    return False


@pytest.mark.filterwarnings("default")  # of the libraries that ask
async def test_the_server_keeps_to_what_it_says(tmp_path, server_settings):
    # Not by the fixture, whose two minutes are too few beside all other tests.
    async with running(tmp_path, **server_settings) as server:
        for n in range(3):
            await server.hub.registry.execute([Register(f"t{n}", frozenset("a"))])
            await server.hub.store(frozenset({"news", f"t{n}"}), b"x")
        host, port = http_address(server)
        description = await page(server)
        operations = sum(len(methods) for methods in description["paths"].values())
        began = time.monotonic()
        failures, asked = await trio.to_thread.run_sync(fuzz, description, f"http://{host}:{port}")
    print(f"{len(asked)} operations in {time.monotonic() - began:.0f} s")
    for about, failure in failures.items():
        print(about, failure, sep="\n", end="\n\n")
    assert not failures
    assert len(asked - {None, "Stateful tests"}) >= operations - len(NOT_FUZZED) - 1
