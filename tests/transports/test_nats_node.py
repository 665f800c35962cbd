"""The clients of NATS for Node, of both generations, against `mist serve` in its own process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import run_script, script_running
from tests.processes import Process, dial, serving

LISTEN = ("--listen", "nats://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0")
PACKAGES = ("nats", "@nats-io/transport-node")
START = """
import assert from "node:assert/strict";
import { connect, headers, Empty } from %s;
const open = (options) => connect({ servers: url, reconnect: false, ...options });
// What a subscription gets until it has had so many.
const take = async (subscription, count) => {
  const found = [];
  if (count) for await (const message of subscription) {
    found.push(message.string());
    if (found.length === count) break;
  }
  return found;
};
// Errors that the connection reports, as texts.
const watch = (connection) => {
  const found = [];
  (async () => {
    for await (const status of connection.status()) {
      if (status.type === "error") found.push(String(status.error?.message ?? status.data));
    }
  })();
  return found;
};
"""


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return (*LISTEN, "--tokens", "memory://", "--history", "memory://")


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(package: str, url: str, script: str, **names: object) -> list[object]:
    return run_script(START % json.dumps(package) + script, package=package, url=url, **names)


def test_published_is_received_by_subject_and_pattern(process: Process, package: str) -> None:
    run(package, process.urls[0], """
      const one = await open(), two = await open();
      const asked = ["foo.bar", "foo.*", "foo.>", ">"].map((each) => one.subscribe(each));
      await one.flush();
      for (const each of ["foo.bar", "foo.baz", "foo", "foo.bar.baz"]) two.publish(each, each);
      await two.flush();
      assert.deepEqual(await take(asked[0], 1), ["foo.bar"]);
      assert.deepEqual(await take(asked[1], 2), ["foo.bar", "foo.baz"]);
      assert.deepEqual(await take(asked[2], 3), ["foo.bar", "foo.baz", "foo.bar.baz"]);
      assert.deepEqual(await take(asked[3], 4), ["foo.bar", "foo.baz", "foo", "foo.bar.baz"]);
      await one.close();
      await two.close();
    """)  # fmt: skip


def test_a_wildcard_inside_a_token_is_a_letter(process: Process, package: str) -> None:
    run(package, process.urls[0], """
      const one = await open(), two = await open();
      const errors = watch(one);
      const literal = one.subscribe("a*b"), pattern = one.subscribe("a*b.*");
      await one.flush();
      for (const each of ["axb", "a*b", "axb.c", "a*b.c"]) two.publish(each, each);
      await two.flush();
      await one.flush();
      assert.deepEqual(await take(literal, 1), ["a*b"]);
      assert.deepEqual(await take(pattern, 1), ["a*b.c"]);
      assert.deepEqual(errors, []);
      await one.close();
      await two.close();
    """)  # fmt: skip


def test_any_data_with_headers_arrives_as_it_was(process: Process, package: str) -> None:
    run(package, process.urls[0], """
      const one = await open(), two = await open();
      const subscription = one.subscribe("data");
      await one.flush();
      const sent = [Empty, Buffer.from("\\r\\n"), Buffer.from([...Array(256).keys()]),
                    Buffer.alloc(two.info.max_payload - 100, 120)];
      const named = headers();
      named.set("a", "two words");
      for (const each of sent) two.publish("data", each, { headers: named });
      let number = 0;
      for await (const message of subscription) {
        assert.deepEqual(Buffer.from(message.data), Buffer.from(sent[number]));
        assert.equal(message.headers.get("a"), "two words");
        if (++number === sent.length) break;
      }
      await one.close();
      await two.close();
    """)  # fmt: skip


def test_a_queue_group_answers_requests(process: Process, package: str) -> None:
    run(package, process.urls[0], """
      const workers = await Promise.all([open(), open(), open()]);
      const counts = [0, 0, 0];
      workers.forEach((each, number) => each.subscribe("help", {
        queue: "workers",
        callback: (error, message) => {
          counts[number] += 1;
          message.respond(message.string().toUpperCase());
        },
      }));
      await Promise.all(workers.map((each) => each.flush()));
      const client = await open();
      const patient = { timeout: 20_000 };
      const asked = Array.from({ length: 100 }, (_, number) => `a${number}`);
      const answers = await Promise.all(
        asked.map((each) => client.request("help", each, patient)),
      );
      const expected = asked.map((each) => each.toUpperCase());
      assert.deepEqual(answers.map((each) => each.string()), expected);
      assert.equal(counts.reduce((one, other) => one + other), 100);
      assert(counts.every((each) => each > 0));
      await assert.rejects(client.request("nobody", "me"), /no responders|503/i);
      const many = await client.requestMany("help", "m", { maxMessages: 1 });
      for await (const each of many) assert.equal(each.string(), "M");
      await client.drain();
      for (const each of workers) await each.drain();
    """)  # fmt: skip


def test_a_subscription_ends_after_as_many_as_asked_for(process: Process, package: str) -> None:
    run(package, process.urls[0], """
      const one = await open(), two = await open();
      const errors = watch(one);
      const subscription = one.subscribe("some", { max: 3 });
      await one.flush();
      for (let number = 0; number < 6; number++) two.publish("some", String(number));
      await two.flush();
      const found = [];
      for await (const message of subscription) found.push(message.string());
      assert.deepEqual(found, ["0", "1", "2"]);
      await one.flush();
      assert.equal(one.stats().inMsgs, 3);
      subscription.unsubscribe();
      await one.flush();
      assert.deepEqual(errors, []);
      await one.close();
      await two.close();
    """)  # fmt: skip


def test_what_can_not_be_addressed_fails_alone(process: Process, package: str) -> None:
    """The subscription ends with the error, the request is refused, the connection goes on."""
    said = run(package, process.urls[0], """
      const client = await open();
      const errors = watch(client);
      const good = client.subscribe("good");
      const told = {};
      for (const [subject, queue] of [["a,b", undefined], ["a,b", "q"]]) {
        await new Promise((resolve) => client.subscribe(subject, {
          queue, callback: (error) => { told[`${subject} ${queue}`] = error.message; resolve(); },
        }));
      }
      await assert.rejects(client.request("x,y", "me", { timeout: 20_000 }), /commas/);
      client.publish("a,b", "lost");
      client.publish("good", "kept");
      assert.deepEqual(await take(good, 1), ["kept"]);
      await client.flush();
      assert.equal(client.isClosed(), false);
      say(told);
      say(errors.length);
      await client.close();
    """)  # fmt: skip
    told, count = said
    assert isinstance(told, dict)
    assert {key: text.strip("'") for key, text in told.items()} == {
        "a,b undefined": 'Permissions Violation for Subscription to "a,b": commas are not allowed',
        "a,b q": 'Permissions Violation for Subscription to "a,b" using queue "q": '
        "commas are not allowed",
    }
    assert count == 4


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with a secret, and a token for some subjects."""
    folder = tmp_path_factory.mktemp("guarded")
    options = ("--tokens", "memory://", "--history", "none")
    with serving(folder, *options, listen=LISTEN, MIST_SECRET="s3cret") as process:
        with dial(process.urls[1]) as peer:
            peer.sendall(b"auth s3cret\nregister .in.>,>.out.>,._INBOX.> t0ken\nping\n")
            assert peer.recv(100) == b"pong\n"
        yield process


def test_a_secret_or_a_token_is_asked_for(guarded: Process, package: str) -> None:
    run(package, guarded.urls[0], """
      for (const wrong of [{}, { token: "wrong" }, { user: "s3cret", pass: "wrong" }]) {
        await assert.rejects(open(wrong), /authorization violation/i);
      }
      const service = await open({ token: "s3cret" });
      const peer = await open({ user: "anyone", pass: "t0ken" });
      const errors = watch(peer);
      const heard = service.subscribe("out.*");
      await service.flush();
      const inside = peer.subscribe("in.*");
      const refused = new Promise((resolve) =>
        peer.subscribe("other", { queue: "q", callback: (error) => resolve(error) }));
      assert.match((await refused).message, /subscription to "other" using queue "q"/i);
      peer.publish("in.a", "not allowed");
      peer.publish("out.a", "allowed");
      await peer.flush();
      service.publish("in.b", "for the peer");
      assert.deepEqual(await take(inside, 1), ["for the peer"]);
      assert.deepEqual(await take(heard, 1), ["allowed"]);
      assert.equal(errors.length, 2);
      await peer.close();
      await service.close();
    """)  # fmt: skip


def test_a_client_is_back_after_a_restart(tmp_path: Path, package: str) -> None:
    options = ("--tokens", "memory://", "--history", "none")
    script = (
        START % json.dumps(package)
        + """
      const again = { reconnect: true, reconnectTimeWait: 50, maxReconnectAttempts: -1 };
      const client = await open(again);
      const subscription = client.subscribe("foo");
      await client.flush();
      say("subscribed");
      for await (const status of client.status()) if (status.type === "reconnect") break;
      client.publish("foo", "again");
      assert.deepEqual(await take(subscription, 1), ["again"]);
      await client.close();
    """
    )
    with serving(tmp_path / "a", *options, listen=LISTEN) as first:
        url = first.urls[0]
        with script_running(script, package=package, url=url) as running:
            assert running.next() == "subscribed"
            assert first.stop() == 0
            with serving(tmp_path / "b", *options, listen=("--listen", url)):
                assert list(running) == []
