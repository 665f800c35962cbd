"""mist.js in Node, with a WebSocket whose other end is the test's: what comes at which moment."""

import pytest

from tests.node import run_script, script_running
from tests.static.pages import STATIC

MODULE = (STATIC / "mist.js").as_uri()
START = """
const {connect} = await import(module);
const sockets = [];
// Answers each frame with success, unless `answer` returns something else: null for nothing.
let answer = () => undefined;
class WebSocket {
  OPEN = 1;
  readyState = 1;
  constructor(url, protocols) {
    sockets.push(this);
    this.token = protocols[1];
    this.frames = [];
    queueMicrotask(() => this.onopen?.());
  }
  send(text) {
    const frame = JSON.parse(text);
    this.frames.push(frame);
    const {command, ref} = frame;
    const reply = answer(frame);
    if (reply !== null) this.say({success: true, command, ref, ...reply});
  }
  say(frame) {
    setTimeout(() => this.onmessage?.({data: JSON.stringify(frame)}));
  }
  close() {}
}
const open = (options) => connect("ws://127.0.0.1:9", {token: "T", WebSocket, ...options});
const turn = () => new Promise((resolve) => setTimeout(resolve));
const outcome = (promise) => promise.then(() => "done", (error) => error.code ?? error.name);
"""


def run(script: str) -> list[object]:
    return run_script(START + script, module=MODULE)


@pytest.mark.parametrize("seconds", ["Infinity", "1e7"])
def test_a_time_longer_than_any_timer_is_a_long_one(seconds: str) -> None:
    script = f"""
    const client = open();
    await client.subscribe(["a"], () => {{}}).ready;
    let late;
    answer = ({{ref}}) => (late = {{success: true, command: "publish", ref, id: 7}}, null);
    const published = client.publish(["a"], "x", {{timeoutSeconds: {seconds}}});
    setTimeout(() => sockets[0].say(late), 50);
    say(await outcome(published));
    client.close();
    """
    assert run(script) == ["done"]


def test_what_no_utf8_can_be_made_of_is_refused_at_once() -> None:
    # A server takes the frame for no JSON, and its answer names no request.
    script = r"""
    const client = open();
    const thrown = (act) => {
      try {
        act();
      } catch (error) {
        return error.name;
      }
    };
    const listen = (tag, since) => thrown(() => client.subscribe([tag], () => {}, {since}));
    say([listen("\ud83d"), listen("a", {latest: "\ud83d"}), listen("a", {epoch: "\ud83d", id: 1})]);
    say(thrown(() => client.presence(["\ud83d"], () => {})));
    say(await outcome(client.publish(["a"], "cut \ud83d")));
    say(await outcome(client.publish(["a"], "x", {to: {users: ["\ud83d"]}})));
    const whole = "\u{1f600} \\ud83d";
    say(await outcome(client.publish(["\u{1f600}"], whole, {to: {users: [whole]}})));
    say(listen("\u{1f600}") ?? null);
    client.close();
    """
    error = "TypeError"
    assert run(script) == [[error] * 3, error, error, error, "done", None]


def test_no_handler_is_called_once_the_program_has_closed_the_client() -> None:
    script = """
    const told = {count: 0, present: [], tags: ["a"]};
    answer = ({command}) => (command === "presence" ? told : undefined);
    const client = open();
    const calls = [];
    for (const event of ["state", "subscribed", "unsubscribed", "revoked", "gap", "error"]) {
      client.on(event, (detail) => calls.push(detail.state ?? event));
    }
    const subscription = client.subscribe(["a"], () => calls.push("message"));
    await subscription.ready;
    await client.presence(["a"], () => {}).ready;
    await turn();
    calls.length = 0;
    sockets[0].onmessage({data: '{"keys":["a"],"data":"x"}'});
    sockets[0].onmessage({data: '{"command":"revoked","tags":["a"]}'});
    client.presence(["a"], () => calls.push("presence"));
    subscription.unsubscribe();
    client.close();
    await turn();
    say(calls);
    """
    assert run(script) == [["closed"]]


def test_no_queued_message_is_handled_once_a_client_that_had_ended_is_closed() -> None:
    script = """
    const client = open();
    const calls = [];
    const slow = ({data}) => {
      calls.push(data);
      const begun = performance.now();
      while (performance.now() - begun < 10);
    };
    await client.subscribe(["a"], slow).ready;
    for (const data of ["1", "2", "3", "4", "5"]) {
      sockets[0].onmessage({data: JSON.stringify({keys: ["a"], data})});
    }
    sockets[0].onclose({code: 4401, reason: "revoked"});
    client.on("state", ({state, error}) => {
      calls.push(`${state}: ${error.code}`);
      client.close();
    });
    for (let turns = 0; turns < 20; turns += 1) await turn();
    say(calls);
    """
    assert run(script) == [["1", "closed: unauthorized"]]


@pytest.mark.parametrize("at", ["open", "waiting"])
def test_a_client_that_is_closed_as_its_state_changes_leaves_no_timer(at: str) -> None:
    script = f"""
    answer = ({{command}}) => (command === "ping" ? undefined : null);
    const client = open({{backoff: {{baseSeconds: 1e6, capSeconds: 1e6}}}});
    const closed = new Promise((resolve) => client.on("state", ({{state}}) => {{
      if (state === "open" && "{at}" === "waiting") sockets[0].onclose({{code: 1013, reason: ""}});
      if (state !== "{at}") return;
      client.close();
      resolve();
    }}));
    await closed;
    await turn();
    say(process.getActiveResourcesInfo().filter((each) => each === "Timeout").length);
    """
    with script_running(START + script, module=MODULE) as told:
        assert told.next() == 0


def test_a_token_that_is_given_as_it_begins_to_wait_is_tried_at_once() -> None:
    script = """
    const client = open({backoff: {baseSeconds: 1e6, capSeconds: 1e6}});
    await client.subscribe(["a"], () => {}).ready;
    const refreshed = new Promise((resolve) => client.on("state", ({state}) => {
      if (state === "waiting") resolve(outcome(client.refresh("U")));
    }));
    sockets[0].onclose({code: 1013, reason: ""});
    say([await refreshed, client.state, sockets.length]);
    client.close();
    """
    with script_running(START + script, module=MODULE) as told:
        assert told.next() == ["done", "open", 2]


def test_a_token_that_cannot_be_checked_now_is_told() -> None:
    script = """
    const client = open();
    await client.subscribe(["a"], () => {}).ready;
    const refused = {success: false, error: "Registry is unavailable"};
    answer = ({command}) => (command === "auth" ? refused : undefined);
    say(await outcome(client.refresh("U")));
    say([client.state, sockets.length]);
    answer = () => undefined;
    say(await outcome(client.refresh("U")));
    client.close();
    """
    assert run(script) == ["registry_unavailable", ["open", 1], "done"]


def test_only_messages_wait_for_slow_handlers() -> None:
    # A connection that brings all subscriptions back would be given up at its first message, again
    # and again.
    script = """
    const client = open({maxQueue: 20});
    const tags = Array.from({length: 50}, (_, index) => `t${index}`);
    let asked;
    const request = new Promise((resolve) => (asked = resolve));
    answer = (frame) => (frame.command === "subscribe" ? (asked(frame), null) : undefined);
    const subscriptions = tags.map((each) => client.subscribe([each], () => {}));
    const {ref} = await request;
    sockets[0].onmessage({data: JSON.stringify({success: true, command: "subscribe", ref})});
    for (const data of tags.slice(0, 20)) {
      sockets[0].onmessage?.({data: JSON.stringify({keys: ["t1"], data})});
    }
    await Promise.all(subscriptions.map((each) => each.ready));
    await turn();
    say([client.state, sockets.length]);
    client.close();
    """
    assert run(script) == [["open", 1]]


def test_who_can_get_tokens_gets_one_when_the_one_it_was_given_has_ended() -> None:
    script = """
    let asked = 0;
    const client = open({token: async () => `got ${++asked}`, backoff: {baseSeconds: 0.01}});
    await client.subscribe(["a"], () => {}).ready;
    const presented = () => sockets.at(-1).frames.findLast(({command}) => command === "auth").token;
    await client.refresh("given");
    say(presented());
    await client.refresh();
    say(presented());
    await client.refresh("given");
    const opened = new Promise((resolve) => client.on("state", ({state}) => {
      if (state === "open" || state === "closed") resolve(state);
    }));
    sockets[0].onclose({code: 4401, reason: "unauthorized"});
    say([await opened, asked]);
    client.close();
    """
    assert run(script) == ["given", "got 2", ["open", 3]]


def test_a_subscription_that_is_revoked_before_it_holds_is_told() -> None:
    script = """
    const client = open();
    await client.subscribe(["a"], () => {}).ready;
    answer = ({command}) => (command === "subscribe" ? null : undefined);
    const second = client.subscribe(["a"], () => {}, {since: 0});
    await turn();
    sockets[0].say({command: "revoked", tags: ["a"]});
    const late = new Promise((resolve) => setTimeout(resolve, 1000, "nothing"));
    say(await Promise.race([outcome(second.ready), late]));
    client.close();
    """
    assert run(script) == ["not_granted"]


# A server that has begun another epoch since it gave "a" what there was up to 5, and "b" up to 2.
FORKED = """
const told = (data, id, ...keys) => ({data, id, keys});
const page = (epoch, id, message) => ({epoch, id, recovered: true, messages: [message]});
const pages = {
  null: page("E", 5, told("old", 5, "a")),
  "4": page("E", 5, told("old", 5, "a")),
  "0": page("E", 2, told("old", 2, "b")),
  "E:2": page("F", 8, told("new", 8, "a", "b")),
};
const json = (value) => new Response(JSON.stringify(value));
globalThis.fetch = async (target, {signal}) => {
  const {pathname, searchParams} = new URL(target);
  if (pathname === "/v1/endpoints") return json({stream: "/stream", poll: "/poll", history: true});
  const found = pages[searchParams.get("since")];
  if (!found) {
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    throw signal.reason;
  }
  if (pathname === "/poll") return json(found);
  const event = (type, data) => `event: ${type}\\ndata: ${JSON.stringify(data)}\\n\\n`;
  return new Response(event("ready", found) + event("message", found.messages[0]));
};
const client = connect("http://127.0.0.1:9", {token: "T", transports: [transport]});
const events = {a: [], b: []};
client.on("gap", ({subscriptions}) => {
  for (const {tags: [tag]} of subscriptions) events[tag].push("gap");
});
const listen = (tag, since) => new Promise((resolve) => {
  client.subscribe([tag], ({data}) => {
    events[tag].push(data);
    if (data === "new") resolve();
  }, {since});
});
await Promise.all([listen("a", 4), listen("b", 0)]);
say(events);
client.close();
"""


@pytest.mark.parametrize("transport", ["sse", "polling"])
def test_who_was_ahead_of_others_is_told_of_a_gap_where_the_log_is_another_one(
    transport: str,
) -> None:
    """All begin at the lowest position; that it is in the other log says nothing of theirs."""
    found = run_script(START + FORKED, module=MODULE, transport=transport)
    assert found == [{"a": ["old", "gap", "new"], "b": ["old", "new"]}]


@pytest.mark.parametrize(
    ("rejected", "text"),
    [("", "getToken failed"), ("null", "getToken failed"), ('"signed out"', "signed out")],
)
def test_a_get_token_that_rejects_with_no_error_is_asked_again(rejected: str, text: str) -> None:
    script = f"""
    let asked = 0;
    const getToken = () => (asked++ ? "T" : Promise.reject({rejected}));
    const client = open({{token: undefined, getToken, backoff: {{baseSeconds: 0.01}}}});
    const told = [];
    client.on("state", ({{state, error}}) => told.push([state, error?.code, error?.message]));
    await client.subscribe(["a"], () => {{}}).ready;
    say(told.filter(([state]) => state === "waiting"));
    say(asked);
    client.close();
    """
    assert run(script) == [[["waiting", "connection_lost", text]], 2]


def test_a_wait_that_is_over_leaves_nothing_behind() -> None:
    # Of 11 listeners of one signal, Node says on the terminal that they may be a leak.
    script = """
    const said = [];
    process.on("warning", ({name}) => said.push(name));
    answer = ({command}) => (command === "publish" && refusals-- > 0
      ? {success: false, error: "History is unavailable", retry_after: 0.001} : undefined);
    let refusals = 12;
    const client = open();
    say(await outcome(client.publish(["a"], "x")));
    await turn();
    say([refusals, said]);
    client.close();
    """
    assert run(script) == ["done", [-1, []]]


@pytest.mark.parametrize("how", ["subscribe", "presence"])
def test_a_refusal_that_nobody_would_hear_of_is_on_the_console(how: str) -> None:
    script = f"""
    const said = [];
    globalThis.reportError = (error) => said.push(error.code);
    const refused = {{success: false, error: "not granted by the token"}};
    answer = ({{command}}) => (command === "{how}" ? refused : undefined);
    const client = open();
    const ended = new Promise((resolve) => client.on("state", resolve));
    client.{how}(["a"], () => {{}});
    await ended;
    for (let turns = 0; turns < 5; turns += 1) await turn();
    say(said);
    await outcome(client.{how}(["b"], () => {{}}).ready);
    say(said);
    client.on("error", ({{error}}) => said.push(`heard ${{error.code}}`));
    client.{how}(["c"], () => {{}});
    for (let turns = 0; turns < 5; turns += 1) await turn();
    say(said);
    client.close();
    """
    told = ["not_granted"]
    assert run(script) == [told, told, [*told, "heard not_granted"]]
