"""What a session publishes with a token: in one read or in many, the same is refused."""

import json
from collections.abc import Callable, Generator, Iterable, Sequence

import pytest
import trio

from mist.attributes import Attributes
from mist.auth import Enroll
from mist.auth.opening import open_registry
from mist.broker.broker import Broker
from mist.broker.validation import Accepted, Rejected
from mist.commands import RemoveTags
from mist.history.opening import open_history
from mist.protocols import Protocol
from mist.protocols.json import JsonProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.subjects import SubjectProtocol
from mist.sessions.authenticating import Credential
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.turns import Account, Turns
from mist.wire import Batch
from tests.protocols.json.test_frames import frame
from tests.sessions.storing import join, sequence, take

QUIET = b'CONNECT {"verbose":false,"auth_token":"t"}\r\n'
VERBOSE = b'CONNECT {"auth_token":"t"}\r\n'

Write = Callable[[str, str], bytes]
Validating = Generator[Accepted | Rejected | None, None, None]


def pub(tag: str, data: str) -> bytes:
    return f"PUB {tag[1:]} {len(data)}\r\n{data}\r\n".encode()


def publish(tag: str, data: str) -> bytes:
    return json.dumps({"command": "publish", "tags": [tag], "data": data}).encode()


def framed(tag: str, data: str) -> bytes:
    return frame(publish(tag, data))


DIALECTS = [
    pytest.param(SubjectProtocol, QUIET, pub, id="nats"),
    pytest.param(SubjectProtocol, VERBOSE, pub, id="nats, verbose"),
    pytest.param(JsonProtocol, b"", publish, id="json"),
    pytest.param(JsonFrameProtocol, b"", framed, id="json in frames"),
]
# Some of one tag, of several, and so many that they are read in bulk.
SENT = [".no", ".yes", ".no", ".no", ".yes", ".yes", ".other", *[".yes", ".no"] * 6]


async def outcome(hub: Hub, protocol: Protocol, chunks: Sequence[bytes]) -> tuple[bytes, bytes]:
    """What a subscriber to all gets, and what the publisher is told."""
    subscriber, _ = join(hub, "*"), join(hub, ".yes")  # whose recipients aren't the same
    session = CommandSession(
        hub, protocol, transport="x", credential=Credential.TOKEN, auth_timeout=5.0
    )
    if not isinstance(protocol, SubjectProtocol):
        record = hub.registry.lookup("t")
        assert record is not None
        session.adopt(record)
    for chunk in chunks:
        await session.receive(chunk)
    if session._publisher is not None:
        await session._publisher.settle()
    return take(subscriber), take(session)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("make", "greeting", "write"), DIALECTS)
async def test_what_is_refused_does_not_take_along_what_came_in_one_read(
    make: Callable[..., Protocol], greeting: bytes, write: Write, stored: bool
) -> None:
    found = []
    sent = [write(tag, str(n)) for n, tag in enumerate(SENT)]
    for chunks in ([greeting, *sent], [greeting, b"".join(sent)]):
        async with (
            await open_registry("memory://") as registry,
            await open_history("memory://") as history,
            trio.open_nursery() as nursery,
        ):
            hub = Hub(registry)
            await nursery.start(hub.turns.run)
            if stored:
                hub.sequencer = await sequence(hub.broker, history, hub.flush_scheduler)
                nursery.start_soon(hub.sequencer.run)
            await registry.execute([Enroll("t", frozenset({">.yes"}), Attributes())])
            found.append(await outcome(hub, make(hub.limits), [each for each in chunks if each]))
            nursery.cancel_scope.cancel()
    one_by_one, at_once = found
    assert at_once == one_by_one
    delivered, said = at_once
    granted = [f"publish .yes {n}\n" for n, tag in enumerate(SENT) if tag == ".yes"]
    assert delivered.decode() == "".join(granted)
    assert said.count(b"Violation") + said.count(b"not granted") == len(SENT) - len(granted)


@pytest.mark.parametrize("write", [pub, publish])
async def test_a_token_that_changes_in_the_middle_of_a_read_refuses_the_rest(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    async with await open_registry("memory://") as registry:
        hub = Hub(registry)
        await registry.execute([Enroll("t", frozenset({">.yes", ">.no"}), Attributes())])
        sent = [write(tag, str(n)) for n, tag in enumerate([".yes", ".no"] * 500)]
        protocol: Protocol = (JsonProtocol if write is publish else SubjectProtocol)(hub.limits)

        async def work(
            self: FlushScheduler, steps: Iterable[object], account: Account, *, late: bool = False
        ) -> None:
            for number, _ in enumerate(steps):
                if number == 0:
                    await registry.execute([RemoveTags("t", frozenset({">.no"}))])

        monkeypatch.setattr(FlushScheduler, "work", work)
        chunks = [QUIET, b"".join(sent)] if write is pub else [b"".join(sent)]
        delivered, said = await outcome(hub, protocol, chunks)
    numbers = [int(line.split()[2]) for line in delivered.decode().splitlines()]
    first = next(n for n in range(len(sent)) if n not in numbers)
    assert first > 0
    assert numbers == [n for n in range(len(sent)) if n < first or not n % 2]
    assert said.count(b"Violation") + said.count(b"not granted") == len(sent) - len(numbers)


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_whether_many_tag_lists_are_granted_is_looked_up_in_turns(
    monkeypatch: pytest.MonkeyPatch, stored: bool, loses: bool
) -> None:
    """And judged anew, where the token changes meanwhile."""
    tags = [f".{'yes' if n % 2 else 'no'}{n}" for n in range(300)]
    waits = 0
    asked: list[int] = []
    async with (
        await open_registry("memory://") as registry,
        await open_history("memory://") as history,
        trio.open_nursery() as nursery,
    ):
        hub = Hub(registry)
        await nursery.start(hub.turns.run)
        if stored:
            hub.sequencer = await sequence(hub.broker, history, hub.flush_scheduler)
            nursery.start_soon(hub.sequencer.run)
        await registry.execute([Enroll("t", frozenset(f">{tag}" for tag in tags), Attributes())])
        own = CommandSession._may

        def may(self: CommandSession, tag_list: bytes) -> bool:
            asked.append(waits)
            return own(self, tag_list)

        async def wait(self: Turns, account: Account, *, late: bool = False) -> None:
            nonlocal waits
            waits += 1
            if loses and waits == 2:
                await registry.execute([RemoveTags("t", frozenset(f">{tag}" for tag in tags[::2]))])

        monkeypatch.setattr(CommandSession, "_may", may)
        monkeypatch.setattr(Turns, "spent", lambda self, began: True)
        monkeypatch.setattr(Turns, "wait", wait)
        sent = b"".join(publish(tag, str(n)) for n, tag in enumerate(tags))
        delivered, said = await outcome(hub, JsonProtocol(hub.limits), [sent])
        nursery.cancel_scope.cancel()
    at_once = max(map(asked.count, asked))
    assert at_once < len(tags) / 2
    numbers = [int(line.split()[2]) for line in delivered.decode().splitlines()]
    assert numbers == list(range(1, 300, 2) if loses else range(300))
    assert said.count(b"not granted") == (150 if loses else 0)


@pytest.mark.parametrize("write", [pub, publish])
async def test_what_a_token_loses_before_a_read_is_stored_is_refused(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    tags = [f".{'yes' if n % 2 else 'no'}{n}" for n in range(20)]
    async with (
        await open_registry("memory://") as registry,
        await open_history("memory://") as history,
        trio.open_nursery() as nursery,
    ):
        hub = Hub(registry)
        await nursery.start(hub.turns.run)
        hub.sequencer = await sequence(hub.broker, history, hub.flush_scheduler)
        nursery.start_soon(hub.sequencer.run)
        await registry.execute([Enroll("t", frozenset(f">{tag}" for tag in tags), Attributes())])
        sent = [write(tag, str(n)) for n, tag in enumerate(tags)]
        protocol: Protocol = (JsonProtocol if write is publish else SubjectProtocol)(hub.limits)

        validate, validated = Broker.validate, []

        def validating(self: Broker, batch: Batch) -> Validating:
            validated.append(batch)
            yield None  # as where there is much to look at
            yield from validate(self, batch)

        async def wait(self: Turns, account: Account, *, late: bool = False) -> None:
            if validated:
                await registry.execute([RemoveTags("t", frozenset(f">{tag}" for tag in tags[::2]))])

        monkeypatch.setattr(Broker, "validate", validating)
        monkeypatch.setattr(Turns, "spent", lambda self, began: True)
        monkeypatch.setattr(Turns, "wait", wait)
        chunks = [QUIET, b"".join(sent)] if write is pub else [b"".join(sent)]
        delivered, said = await outcome(hub, protocol, chunks)
        nursery.cancel_scope.cancel()
    numbers = [int(line.split()[2]) for line in delivered.decode().splitlines()]
    assert numbers == list(range(1, 20, 2))
    assert said.count(b"Violation") + said.count(b"not granted") == 10
