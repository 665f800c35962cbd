"""Event streams with npm's eventsource in Node, against `mist serve` in its own process."""

from pathlib import Path

import pytest

from tests.node import run_script, script_running
from tests.processes import Process, dial, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
TOKEN = "t0ken"
START = """
import assert from "node:assert/strict";
import { EventSource } from "eventsource";
const withToken = (token) => (input, init) =>
  fetch(input, { ...init, headers: { ...init.headers, "X-Auth-Token": token } });
const open = (query, token = "t0ken") =>
  new EventSource(`${url}/v1/stream?${query}`, { fetch: withToken(token) });
const next = (source, name = "message") =>
  new Promise((resolve) => source.addEventListener(name, resolve, { once: true }));
const publish = async (tags, data) => {
  const response = await fetch(`${url}/v1/messages`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ tags, data }),
  });
  return (await response.json()).id;
};
"""


def register(process: Process) -> None:
    with dial(process.urls[0]) as peer:
        peer.sendall(b"register room:* t0ken\nping\n")
        assert peer.recv(100) in (b"pong\n", b"error already exists\npong\n")


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return (*LISTEN, "--tokens", "memory://", "--history", "memory://")


def run(process: Process, script: str) -> list[object]:
    register(process)
    return run_script(START + script, package="eventsource", url=process.urls[1])


def test_messages_come_with_their_ids(process: Process) -> None:
    run(process, """
      const source = open("tags=room:1&tags=room:2,urgent");
      const ready = JSON.parse((await next(source, "ready")).data);
      assert.equal(ready.recovered, true);
      await publish(["room:2"], "not for it");
      for (const [tags, data] of [[["room:1"], "one"], [["room:2", "urgent"], "two\\nlines ä"]]) {
        const event = next(source);
        const id = await publish(tags, data);
        assert.deepEqual(JSON.parse((await event).data), { keys: tags, data, id });
        assert.equal((await event).lastEventId, `${ready.epoch}:${id}`);
      }
      assert.equal(source.readyState, EventSource.OPEN);
      source.close();
    """)  # fmt: skip


def test_a_refused_stream_is_not_tried_again(process: Process) -> None:
    found = run(process, """
      for (const [query, token] of [["tags=room:1", "wrong"], ["tags=other", "t0ken"]]) {
        const source = open(query, token);
        const error = await next(source, "error");
        say([error.code, source.readyState === EventSource.CLOSED]);
        source.close();
      }
    """)  # fmt: skip
    assert found == [[401, True], [403, True]]


def test_a_stream_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    script = (
        START
        + """
      const source = open("tags=room:1");
      const got = [];
      source.addEventListener("message", (event) => {
        got.push(JSON.parse(event.data).data);
        if (got.length === 4) { say(got); source.close(); }
      });
      await next(source, "ready");
      await publish(["room:1"], "1");
      await publish(["room:1"], "2");
      say("listening");
    """
    )
    with serving(tmp_path, listen=LISTEN) as first:
        register(first)
        url = first.urls[1]
        with script_running(script, package="eventsource", url=url) as running:
            assert running.next() == "listening"
            assert first.stop() == 0
            listen = ("--listen", "tcp://127.0.0.1:0", "--listen", url)
            with serving(tmp_path, listen=listen) as second, dial(second.urls[0]) as peer:
                peer.sendall(b"publish room:1 3\npublish room:1 4\nping\n")
                assert list(running) == [["1", "2", "3", "4"]]
