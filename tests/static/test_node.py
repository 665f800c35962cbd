"""mist.js in Node, with a WebSocket of its own, with one that it is given, and without any."""

import pytest

from tests.node import run_script
from tests.processes import Process, mist
from tests.static.pages import STATIC

LISTEN = [each for kind in ("tcp", "http", "ws") for each in ("--listen", f"{kind}://127.0.0.1:0")]
START = """
import assert from "node:assert/strict";
const {connect, MistError} = await import(module);
const [, http, ws] = urls;
const backoff = {baseSeconds: 0.01, capSeconds: 0.01};
const open = (url, options) => connect(url, {token: "T", backoff, ...options});
// The transport that a client uses, and the message that it gets.
const use = async (client) => {
  const message = await new Promise((resolve) => client.subscribe(["a"], resolve, {since: -1}));
  const {transport} = client;
  client.close();
  return [transport, message.data];
};
const thrown = (act) => {
  try {
    act().close();
  } catch (error) {
    assert(error instanceof MistError);
    return [error.code, error.message];
  }
};
"""
WITHOUT = "delete globalThis.WebSocket;\n"


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return (*LISTEN, "--tokens", "memory://", "--history", "memory://")


@pytest.fixture(scope="module")
def urls(process: Process) -> list[str]:
    tcp = process.urls[0]
    assert mist("token", "register", "a,p,>p", "T", "--host", tcp).returncode == 0
    assert mist("publish", "a", "hello", "--host", tcp).returncode == 0
    return process.urls


def run(
    script: str, urls: list[str], package: str | None = None, file: str = "mist.js"
) -> list[object]:
    module = (STATIC / file).as_uri()
    return run_script(START + script, package=package, module=module, urls=urls)


def test_without_a_websocket_it_falls_back(urls: list[str]) -> None:
    script = """
    say(await use(open(http)));
    say(await use(open(http, {transports: ["websocket", "polling"]})));
    """
    assert run(WITHOUT + script, urls) == [["sse", "hello"], ["polling", "hello"]]


PUBLISH = """
const client = open(http, OPTIONS);
const got = [];
await client.subscribe(["p"], ({data, id}) => got.push([data, id])).ready;
const one = await client.publish(["p"], "ä");
const two = await client.publish(["p"], new TextEncoder().encode("two"));
while (got.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
assert.deepEqual(got, [["ä", one.id], ["two", two.id]]);
assert.equal(two.id, one.id + 1);
say([client.transport, await client.publish(["a"], "x").catch(({code}) => code)]);
client.close();
"""


LIMITED = """
const headers = {"Content-Type": "application/json"};
const body = JSON.stringify({tags: [">p"], attributes: {rate: 1}});
const made = await fetch(http + "/v1/tokens", {method: "PUT", headers, body});
const client = open(http, {token: (await made.json()).token, transports: ["sse"]});
const answers = Array.from({length: 9}, () => client.publish(["p"], "x").catch(({code}) => code));
await answers[0];
await answers[1];
// The third is refused for a second.
const plain = globalThis.fetch;
const refused = new Promise((resolve) => (globalThis.fetch = async (...more) => {
  const answer = await plain(...more);
  if (answer.status === 429) resolve();
  return answer;
}));
await refused;
await new Promise((resolve) => setTimeout(resolve, 100));
client.close();
say(await answers[8]);
await new Promise((resolve) => setTimeout(resolve, 0));
say(process.getActiveResourcesInfo().filter((each) => each === "Timeout").length);
"""


def test_a_client_that_is_closed_waits_for_nothing(urls: list[str]) -> None:
    assert run(LIMITED, urls) == ["closed", 0]


def test_it_publishes_with_a_websocket_and_without(urls: list[str]) -> None:
    script = WITHOUT + PUBLISH
    for file in ("mist.js", "mist.min.js"):
        told = run(script.replace("OPTIONS", "{}"), urls, file=file)
        assert told == [["sse", "not_granted"]]
    imported = 'const {WebSocket} = await import("ws");\n'
    script = imported + script.replace("OPTIONS", "{WebSocket}")
    assert run(script, urls, "ws") == [["websocket", "not_granted"]]


def test_without_a_websocket_and_anything_to_fall_back_to_it_says_so(urls: list[str]) -> None:
    script = """
    say(thrown(() => open(http, {transports: ["websocket"]})));
    say(thrown(() => open(ws)));
    """
    missing = "this runtime has no WebSocket: pass one (connect(url, {WebSocket})), or "
    assert run(WITHOUT + script, urls) == [
        ["no_websocket", f"{missing}allow another transport (sse, polling)"],
        ["no_websocket", f"{missing}connect to an http:// URL, where other transports are used"],
    ]


def test_it_takes_the_class_of_the_package_ws(urls: list[str]) -> None:
    script = """
    const {WebSocket} = await import("ws");
    say(await use(open(http, {WebSocket})));
    say(await use(open(ws, {WebSocket, transports: ["websocket"]})));
    // An attempt that fails is one more to come, and not the end of the process.
    const {port} = new URL(ws);
    const client = open(ws.replace(port, "1"), {WebSocket});
    const failed = await new Promise((resolve) => client.on("state", ({state, error}) => {
      if (state === "waiting") resolve(error.code);
    }));
    client.close();
    say(failed);
    """
    assert run(WITHOUT + script, urls, "ws") == [
        ["websocket", "hello"],
        ["websocket", "hello"],
        "connection_lost",
    ]


REVOKED = """
const ask = async (method, path, body) => {
  const headers = {"Content-Type": "application/json"};
  const answer = await fetch(http + path, {method, headers, body: JSON.stringify(body)});
  return answer.json();
};
const {id, token} = await ask("PUT", "/v1/tokens", {tags: ["lost", "kept"]});
const refused = [];
const plain = globalThis.fetch;
let waits;
const waiting = new Promise((resolve) => (waits = resolve));
globalThis.fetch = async (...request) => {
  if (/stream|timeout=25/.test(request[0])) waits();
  const answer = await plain(...request);
  if (!answer.ok) refused.push(answer.status);
  return answer;
};
const client = open(http, {token, transports: [TRANSPORT]});
const told = new Promise((resolve) => client.on("revoked", ({tags}) => resolve(tags)));
const kept = new Promise((resolve) => client.subscribe(["kept"], resolve));
await client.subscribe(["lost"], () => {}).ready;
await waiting;
await ask("PATCH", `/v1/tokens/${id}`, {remove: ["lost"]});
const tags = await told;
await ask("POST", "/v1/messages", {tags: ["kept"], data: "x"});
say([tags, (await kept).data, refused]);
client.close();
"""


@pytest.mark.parametrize("transport", ["sse", "polling"])
def test_a_subscription_that_was_revoked_is_told_and_not_asked_for_again(
    urls: list[str], transport: str
) -> None:
    script = WITHOUT + REVOKED.replace("TRANSPORT", f'"{transport}"')
    for file in ("mist.js", "mist.min.js"):
        assert run(script, urls, file=file) == [[["lost"], "x", []]]


def test_a_stream_ends_although_the_garbage_collector_has_taken_its_request(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--expose-gc")
    script = """
    const client = open(http, {transports: ["sse"]});
    const first = await new Promise((resolve) => client.subscribe(["a"], resolve, {since: -1}));
    const collect = async () => {
      for (let turn = 0; turn < 5; turn++) {
        await new Promise((resolve) => setTimeout(resolve, 10));
        gc();
      }
    };
    await collect();
    const late = new Promise((_, reject) => setTimeout(reject, 5000, "late").unref());
    await Promise.race([client.subscribe(["a", "p"], () => {}).ready, late]);
    await collect();
    client.close(); // or the process would not end
    say(first.data);
    """
    module = (STATIC / "mist.js").as_uri()
    told = run_script(WITHOUT + START + script, seconds=15, module=module, urls=urls)
    assert told == ["hello"]


REFRESHED = """
const sockets = [];
let made;
const first = new Promise((resolve) => (made = resolve));
const {WebSocket: Plain} = await import("ws");
class WebSocket extends Plain {
  constructor(...more) {
    super(...more);
    sockets.push(this);
    made();
  }
}
const ask = async (tags) => {
  const headers = {"Content-Type": "application/json"};
  const body = JSON.stringify({tags});
  const answer = await fetch(http + "/v1/tokens", {method: "PUT", headers, body});
  return (await answer.json()).token;
};
const other = await ask(["b"]);
"""


def test_a_token_that_is_given_while_it_connects_is_the_one_in_use(urls: list[str]) -> None:
    script = """
    const client = open(ws, {WebSocket});
    await first;
    await client.refresh(other);
    await client.subscribe(["b"], () => {}).ready;
    say(sockets.length);
    client.close();
    """
    assert run(REFRESHED + script, urls, "ws") == [1]


def test_another_token_that_comes_after_the_connection_was_lost_is_for_the_next(
    urls: list[str],
) -> None:
    script = """
    let token = "T";
    let give = () => {};
    let asked = 0;
    const client = open(ws, {WebSocket, token: () => {
      if (asked++ !== 1) return token;
      return new Promise((resolve) => (give = () => resolve(token)));
    }});
    await client.subscribe(["a"], () => {}).ready;
    const refreshed = client.refresh();
    const lost = new Promise((resolve) => client.on("state", ({state}) => {
      if (state === "waiting" || state === "connecting") resolve();
    }));
    sockets[0].terminate();
    await lost;
    token = other;
    give();
    await refreshed;
    await client.subscribe(["b"], () => {}).ready;
    say([asked, sockets.length]);
    client.close();
    """
    assert run(REFRESHED + script, urls, "ws") == [[3, 2]]


@pytest.mark.parametrize("transport", ["sse", "polling"])
def test_a_token_that_allows_none_of_the_subscriptions_is_in_use_all_the_same(
    urls: list[str], transport: str
) -> None:
    script = f"""
    const client = open(http, {{transports: ["{transport}"]}});
    await client.subscribe(["a"], () => {{}}).ready;
    const revoked = new Promise((resolve) => client.on("revoked", ({{tags}}) => resolve(tags)));
    await client.refresh(other);
    await client.subscribe(["b"], () => {{}}).ready;
    say(await revoked);
    client.close();
    """
    assert run(REFRESHED + script, urls, "ws") == [["a"]]


@pytest.mark.parametrize("transport", ["sse", "polling"])
def test_old_messages_that_a_stream_still_brings_are_for_those_who_asked_for_them(
    urls: list[str], transport: str
) -> None:
    script = f"""
    const publish = (...texts) => fetch(http + "/v1/messages", {{
      method: "POST",
      headers: {{"Content-Type": "application/json"}},
      body: JSON.stringify(texts.map((data) => ({{tags: ["p"], data}}))),
    }});
    for (let count = 0; count < 3; count++) await publish(...Array(1000).fill("old"));
    const client = open(http, {{transports: ["{transport}"]}});
    let count = 0;
    let second;
    const first = await new Promise((resolve) => client.subscribe(["p"], () => {{
      if (++count !== 1500) return;
      second = client.subscribe(["p"], ({{data}}) => resolve(data));
      second.ready.then(() => publish("new"));
    }}, {{since: 0}}));
    say(first);
    client.close();
    """
    assert run(WITHOUT + script, urls) == ["new"]


@pytest.mark.parametrize("transport", ["sse", "polling"])
def test_a_connection_goes_on_where_its_only_subscription_is_refused(
    urls: list[str], transport: str
) -> None:
    script = f"""
    const client = open(http, {{transports: ["{transport}"]}});
    const states = [];
    client.on("state", ({{state}}) => states.push(state));
    for (let count = 0; count < 2; count++) {{
      await client.subscribe(["b"], () => {{}}).ready.catch(({{code}}) => states.push(code));
      // What it does next it has done once another answer is there.
      await fetch(http + "/v1/endpoints");
    }}
    await client.subscribe(["a"], () => {{}}).ready;
    say(states);
    client.close();
    """
    assert run(WITHOUT + script, urls) == [["open", "not_granted", "not_granted"]]


def test_it_uses_the_websocket_of_the_runtime(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--experimental-websocket")  # which Node 20 has behind it
    script = """
    say(await use(open(http)));
    say(await use(open(ws)));
    """
    assert run(script, urls) == [["websocket", "hello"], ["websocket", "hello"]]


def test_a_token_that_is_given_while_a_better_transport_opens_is_the_one_in_use(
    urls: list[str],
) -> None:
    script = """
    const commands = [];
    let opened;
    const opening = new Promise((resolve) => (opened = resolve));
    let tries = 0;
    class Late {
      OPEN = 1;
      readyState = 1;
      constructor() {
        if (!tries++) throw new Error("not yet");
        opened(this);
      }
      send(text) {
        const {command, ref, token} = JSON.parse(text);
        commands.push(token === other ? "auth with the other" : command);
        const data = JSON.stringify({success: true, command, ref});
        setTimeout(() => this.onmessage?.({data}));
      }
      close() {}
    }
    const options = {transports: ["websocket", "sse"], retryBetterSeconds: 0};
    const client = open(http, {...options, WebSocket: Late});
    client.subscribe(["b"], () => {});
    const moved = new Promise((resolve) => client.on("state", ({transport}) => {
      if (transport === "websocket") resolve();
    }));
    const socket = await opening;
    await client.refresh(other);
    socket.onopen();
    await moved;
    await client.subscribe(["b"], () => {}).ready;
    say(commands.slice(0, 3));
    client.close();
    """
    assert run(REFRESHED + script, urls, "ws") == [["ping", "auth with the other", "subscribe"]]


def test_a_get_token_that_fails_is_no_failure_of_a_transport(urls: list[str]) -> None:
    script = """
    let asked = 0;
    const client = open(http, {WebSocket, token: async () => {
      if (!asked++) throw new Error("offline");
      return "T";
    }});
    await client.subscribe(["a"], () => {}).ready;
    say(client.transport);
    client.close();
    """
    assert run(REFRESHED + script, urls, "ws") == ["websocket"]
