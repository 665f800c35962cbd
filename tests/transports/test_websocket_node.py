"""WebSockets with npm's ws in Node, against `mist serve` in its own process.

It offers compression, which is declined, and answers pings by itself.
"""

import base64

import pytest

from tests.node import run_script
from tests.processes import Process, dial

TOKEN = "t0ken"
START = """
import assert from "node:assert/strict";
import WebSocket from "ws";
const open = (path, subprotocols, headers) => new Promise((resolve, reject) => {
  const socket = new WebSocket(`${url}${path}`, subprotocols, { headers });
  socket.queue = [];
  socket.waiting = [];
  socket.on("message", (data, isBinary) => {
    const message = isBinary ? data : String(data);
    const waits = socket.waiting.shift();
    if (waits) waits(message); else socket.queue.push(message);
  });
  socket.on("close", (code) => {
    socket.closed = code;
    for (const waits of socket.waiting) waits(code);
  });
  socket.on("open", () => resolve(socket));
  socket.on("error", reject);
});
// The next message, or the code of the close frame.
const next = (socket) => new Promise((resolve) => {
  if (socket.queue.length) resolve(socket.queue.shift());
  else if (socket.closed) resolve(socket.closed);
  else socket.waiting.push(resolve);
});
const ask = (socket, request) => { socket.send(JSON.stringify(request)); return next(socket); };
const PATH = "/subscribe/websocket", TOKEN = { "X-Auth-Token": "t0ken" };
const publish = async (tags, data) => {
  const response = await fetch(`${http}/v1/messages`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ tags, data }),
  });
  return (await response.json()).id;
};
"""


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    listen = ("tcp://127.0.0.1:0", "ws://127.0.0.1:0", "http://127.0.0.1:0")
    options = [word for each in listen for word in ("--listen", each)]
    return (*options, "--tokens", "memory://", "--history", "memory://")


@pytest.fixture(params=["ws", "http"])
def url(process: Process, request: pytest.FixtureRequest) -> str:
    """Where WebSockets are, on either listener."""
    with dial(process.urls[0]) as peer:
        peer.sendall(b"register room:*,/rooms,>/rooms t0ken\nping\n")
        assert peer.recv(100) in (b"pong\n", b"error already exists\npong\n")
    chosen = process.urls[1] if request.param == "ws" else process.urls[2]
    return "ws://" + chosen.partition("://")[2].partition("/")[0]


def run(process: Process, url: str, script: str, **names: object) -> list[object]:
    names |= {"url": url, "http": process.urls[2]}
    return run_script(START + script, package="ws", **names)


def test_frames_of_mist(process: Process, url: str) -> None:
    run(process, url, """
      const socket = await open(PATH, ["mist.v1"], TOKEN);
      assert.equal(socket.protocol, "mist.v1");
      assert.equal(socket.extensions, "");
      assert.equal(await ask(socket, { command: "ping" }), '{"success":true,"command":"ping"}');
      await ask(socket, { command: "subscribe", tags: ["room:1"] });
      const id = await publish(["room:1", "x"], "ä".repeat(100_000));
      assert.deepEqual(JSON.parse(await next(socket)),
                       { keys: ["room:1", "x"], data: "ä".repeat(100_000), id });
      const refused = JSON.parse(await ask(socket, { command: "subscribe", tags: ["other"] }));
      assert.equal(refused.success, false);
      // A request in fragments, with a ping in between.
      socket.send('{"command":', { fin: false });
      const pong = new Promise((resolve) => socket.once("pong", resolve));
      socket.ping("are you there");
      socket.send('"ping"}', { fin: true });
      assert.equal(String(await pong), "are you there");
      assert.equal(await next(socket), '{"success":true,"command":"ping"}');
      socket.send(Buffer.from([1, 2, 3]));
      assert.match(await next(socket), /binary frames/);
      socket.close(1000, "enough");
      assert.equal(await next(socket), 1000);
    """)  # fmt: skip


def test_a_token_may_come_as_a_subprotocol_or_in_the_first_frame(
    process: Process, url: str
) -> None:
    encoded = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    run(process, url, """
      const one = await open(PATH, ["mist.v1", `mist.token.${encoded}`]);
      assert.equal(await ask(one, { command: "ping" }), '{"success":true,"command":"ping"}');
      one.close();
      const other = await open(PATH, ["mist.v1"]);
      assert.match(await ask(other, { command: "auth", token: "t0ken" }), /"success":true/);
      other.close();
      const wrong = await open(PATH, ["mist.v1"], { "X-Auth-Token": "wrong" });
      assert.equal(await next(wrong), 4401);
      await assert.rejects(open(PATH, [], { "X-Auth-Token": "wrong" }), /401/);
      await assert.rejects(open("/elsewhere", [], TOKEN), /404/);
      await assert.rejects(
        open(PATH, [], { ...TOKEN, Origin: "https://attacker.example" }), /403/);
    """, encoded=encoded)  # fmt: skip


def test_what_is_too_large_ends_the_connection_with_its_code(process: Process, url: str) -> None:
    run(process, url, """
      const socket = await open(PATH, ["mist.v1"], TOKEN);
      socket.send("x".repeat(200_000));
      assert.equal(await next(socket), 1009);
    """)  # fmt: skip


def test_objects_of_nanopack(process: Process, url: str) -> None:
    run(process, url, """
      const one = await open(PATH, ["mist.json"], TOKEN);
      assert.equal(one.protocol, "mist.json");
      one.send('{"command":"subscribe","tags":["room:2"]}');
      const pong = { command: "ping", data: "pong" };
      assert.deepEqual(JSON.parse(await ask(one, { command: "ping" })), pong);
      await publish(["room:2"], "hi");
      assert.equal((await next(one)).trim(), '{"command":"publish","tags":["room:2"],"data":"hi"}');
      one.close();
    """)  # fmt: skip


def test_topics_of_guble_with_a_token_and_as_a_service(process: Process, url: str) -> None:
    run(process, url, """
      for (const headers of [TOKEN, {}]) {
        const socket = await open("/stream/user/marvin", [], headers);
        assert.match(await next(socket), /^#connected /);
        socket.send("+ /rooms");
        assert.equal(await next(socket), "#subscribed-to /rooms");
        socket.send("> /rooms/1 id1\\n\\nhello");
        const found = [await next(socket), await next(socket)].sort();
        assert.match(found[0], /^#send id1\\n/);
        assert(Math.abs(JSON.parse(found[0].split("\\n")[1]).messagePublishingTime
                        - Date.now() / 1000) < 60);
        assert.match(found[1], /^\\/rooms\\/1,\\d+,marvin,[0-9a-f]+,id1,\\d+\\n\\nhello$/);
        socket.close();
        assert.equal(await next(socket), 1005);
      }
      await assert.rejects(
        open("/stream/user/marvin", [], { Origin: "https://attacker.example" }), /403/);
    """)  # fmt: skip
