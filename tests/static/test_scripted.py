"""mist.js in Node, with a WebSocket whose other end is the test's: what comes at which moment."""

import pytest

from tests.node import run_script
from tests.static.pages import STATIC

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
    return run_script(START + script, module=(STATIC / "mist.js").as_uri())


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
