"""Presence in mist.js, over each transport, in Node."""

import pytest

from tests.node import run_script
from tests.processes import Process, mist
from tests.static.pages import STATIC

LISTEN = [each for kind in ("tcp", "http", "ws") for each in ("--listen", f"{kind}://127.0.0.1:0")]
SCRIPT = """
import assert from "node:assert/strict";
const {connect} = await import(module);
const {WebSocket} = await import("ws");
const [, http] = urls;
const backoff = {baseSeconds: 0.01, capSeconds: 0.01};
const open = (token, options) => connect(http, {token, backoff, WebSocket, ...options});
const users = (list) => list.map((each) => each.user);

const a = open("A", {transports: ["websocket"]});
await a.subscribe(["room:7"], () => {}).ready;

const asks = open("ASKS", {transports});
const changes = [];
let changed = () => {};
const room = asks.presence(["room:7"], (change) => {
  changes.push(change);
  changed();
});
const next = async () => {
  while (changes.length === 0) await new Promise((resolve) => (changed = resolve));
  const {count, attendees, joined, left} = changes.shift();
  return [count, users(attendees), users(joined), users(left)];
};
say(await next());
await room.ready;
say([asks.transport, room.count, users(room.attendees)]);
const b = open("B", {transports: ["websocket"]});
await b.subscribe(["room:7"], () => {}).ready;
say(await next());
b.close();
say(await next());
room.close();
const errors = [];
asks.on("error", ({error}) => errors.push(error.code));
say(await asks.presence(["lobby"], () => {}).ready.catch((error) => error.code));
say(errors);
a.close();
asks.close();
"""


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return (*LISTEN, "--tokens", "memory://", "--history", "memory://", "--presence", "room:*")


@pytest.fixture(scope="module")
def urls(process: Process) -> list[str]:
    tcp = process.urls[0]
    for token in "AB":
        assert mist("token", "register", "room:*", token, "--host", tcp).returncode == 0
        assert mist("token", "set-attr", token, f"user={token}", "--host", tcp).returncode == 0
    assert mist("token", "register", "x,@room:*", "ASKS", "--host", tcp).returncode == 0
    return process.urls


@pytest.mark.parametrize("transport", ["websocket", "sse", "polling"])
def test_a_list_then_who_joins_and_leaves(urls: list[str], transport: str) -> None:
    module = (STATIC / "mist.js").as_uri()
    said = run_script(SCRIPT, package="ws", module=module, urls=urls, transports=[transport])
    assert said == [
        [1, ["A"], ["A"], []],
        [transport, 1, ["A"]],
        [2, ["A", "B"], ["B"], []],
        [1, ["A"], [], ["B"]],
        "not_granted",
        ["not_granted"],
    ]


REFUSED = """
const {connect} = await import(module);
const {WebSocket: Plain} = await import("ws");
const [, http] = urls;
const sockets = [];
let refused = 0;
class WebSocket extends Plain {
  constructor(...more) {
    super(...more);
    sockets.push(this);
    this.on("message", (text) => String(text).includes("Too many requests") && refused++);
  }
}
const plain = globalThis.setTimeout;
globalThis.setTimeout = (act, ms) => plain(act, ms === 5000 ? 500 : ms);
const backoff = {baseSeconds: 0.01, capSeconds: 0.01};
const open = (token, more) => connect(http, {token, backoff, transports: ["websocket"], ...more});
const headers = {"Content-Type": "application/json"};
const body = JSON.stringify({tags: ["@room:*"], attributes: {rate: 1}});
const made = await fetch(http + "/v1/tokens", {method: "PUT", headers, body});
const client = open((await made.json()).token, {WebSocket});
client.on("error", ({error}) => say(error.code));
let joined;
const seen = new Promise((resolve) => (joined = resolve));
const rooms = ["room:8", "room:9"];
await Promise.all(rooms.map((room) => client.presence([room], ({tags, count}) => {
  if (count) joined(tags);
}).ready));
sockets[0].terminate();
while (refused < 2) await new Promise((resolve) => plain(resolve, 10));
const other = open("B", {WebSocket: Plain});
other.subscribe(["room:8", "room:9"], () => {});
say(await seen);
client.close();
other.close();
"""


def test_what_is_refused_for_a_while_after_a_reconnect_is_asked_for_again(urls: list[str]) -> None:
    module = (STATIC / "mist.js").as_uri()
    said = run_script(REFUSED, package="ws", seconds=20, module=module, urls=urls)
    assert said in ([["room:8"]], [["room:9"]])


NAMELESS = """
const {connect} = await import(module);
const {WebSocket} = await import("ws");
const [, http] = urls;
const client = connect(http, {token: "ASKS", transports: ["websocket"], WebSocket});
const counts = [];
let told = () => {};
const room = client.presence(["room:10"], ({count, attendees}) => {
  counts.push([count, attendees.length]);
  told();
});
await room.ready;
const page = new WebSocket(http.replace("http", "ws") + "/subscribe/websocket",
                           {headers: {"X-Auth-Token": "ONE"}});
await new Promise((resolve) => (page.onopen = resolve));
page.send(JSON.stringify({command: "subscribe", tags: ["room:10"]}));
while (counts.at(-1)?.[0] !== 1) await new Promise((resolve) => (told = resolve));
page.send(JSON.stringify({command: "auth", token: "TWO"}));
while (counts.length < 4) await new Promise((resolve) => (told = resolve));
say(counts);
page.close();
client.close();
"""


def test_nameless_ones_of_the_same_time_are_several(urls: list[str]) -> None:
    for token in ("ONE", "TWO"):
        assert mist("token", "register", "room:*", token, "--host", urls[0]).returncode == 0
    module = (STATIC / "mist.js").as_uri()
    said = run_script(NAMELESS, package="ws", seconds=30, module=module, urls=urls)
    # Who is given another token is told of as one that joins, and another that leaves.
    assert said == [[[0, 0], [1, 1], [2, 2], [1, 1]]]
