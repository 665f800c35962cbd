"""Presence over the nodes of an engine: lists of all, changes of all, and nodes that are gone."""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed

import mist.broker.presence_view
import mist.sessions.presence
import mist.sessions.realm_presence
from mist.broker.presence import Presence, PresenceLog, PresenceTags, Seen
from mist.engine.contract import EngineUnavailable
from mist.engine.members import MAX_ANSWER, MAX_QUESTION
from mist.message import TagSet
from mist.server import Server
from mist.sessions.presence_questions import (
    answer_presence,
    ask_at,
    ask_since,
    read_at,
    read_since,
)
from mist.sessions.presence_rooms import RoomKey
from mist.sessions.questions import answer_question
from mist.sessions.realm_presence import RealmPresence
from mist.sessions.session_table import SessionTable
from tests.broker.test_presence import Clock, broker_with, outbox
from tests.http.client import request
from tests.servers import listeners, running
from tests.sessions.test_presence import GONE, PATH, give, present, service, users
from tests.transports.lines import talk
from tests.transports.test_websocket import browse
from tests.waiting import until

LISTEN = listeners("tcp", "ws", "http")
ROOM: RoomKey = (frozenset({"room:7"}), "")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.broker.presence_view, "LINGER", GONE)
    monkeypatch.setattr(mist.sessions.presence, "_ROUND", 0.01)
    monkeypatch.setattr(mist.sessions.realm_presence, "_ROUND", 0.1)


@attrs.define
class Realm:
    """Two nodes of a realm; `stop_two` ends the second one."""

    one: Server
    two: Server
    stop_two: trio.CancelScope


@pytest.fixture
async def realm(tmp_path: Path, nursery: trio.Nursery) -> Realm:
    engine = f"memory://{secrets.token_hex(4)}"
    scopes: list[trio.CancelScope] = []

    async def node(number: int, *, task_status: trio.TaskStatus[Server]) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            async with running(
                tmp_path / f"n{number}",
                listen=LISTEN,
                history="memory://",
                tokens=None,
                engine=engine,
                presence=("room:*",),
            ) as server:
                task_status.started(server)
                await trio.sleep_forever()

    one, two = [await nursery.start(node, number) for number in (1, 2)]
    for user in "abc":
        await give(one, f"token-{user}", "room:*", user=user)
    await give(one, "asks", "x", "@room:*")
    return Realm(one, two, scopes[1])


async def test_a_list_is_of_all_nodes_and_so_are_changes(realm: Realm) -> None:
    async with present(realm.one, "token-a"), present(realm.two, "token-b"):
        for server in (realm.one, realm.two):
            answer = await request(server, "GET", PATH)
            assert sorted(users(answer.json()["present"])) == ["a", "b"]
        async with browse(realm.one, "asks") as page:
            assert (await page.ask("presence", tags=["room:7"]))["count"] == 2
            async with present(realm.two, "token-c"):
                assert users((await page.get())["joined"]) == ["c"]
            assert users((await page.get())["left"]) == ["c"]


async def test_who_moves_to_another_node_is_not_told_of(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.broker.presence_view, "LINGER", 3.0)
    async with browse(realm.one, "asks") as page:
        async with present(realm.two, "token-a"):
            assert users((await page.ask("presence", tags=["room:7"]))["present"]) == ["a"]
        await trio.sleep(0.6)  # so that this node has seen it gone
        async with present(realm.one, "token-a"), present(realm.two, "token-b"):
            assert users((await page.get())["joined"]) == ["b"]


async def test_those_of_a_node_that_is_gone_leave(
    realm: Realm, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay(*, task_status: trio.TaskStatus[None]) -> None:
        with suppress(ConnectionClosed):
            async with present(realm.two, "token-b") as page:
                task_status.started()
                await page.get()

    await nursery.start(stay)
    async with present(realm.one, "token-a"), browse(realm.one, "asks") as page:
        told = await page.ask("presence", tags=["room:7"])
        assert sorted(users(told["present"])) == ["a", "b"]
        realm.stop_two.cancel()
        assert users((await page.get())["left"]) == ["b"]


async def test_where_the_engine_does_not_answer_it_is_as_it_was(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with present(realm.two, "token-b"), browse(realm.one, "asks") as page:
        assert (await page.ask("presence", tags=["room:7"]))["count"] == 1
        nodes = realm.one.hub.nodes
        assert nodes is not None

        async def fail(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise EngineUnavailable

        with monkeypatch.context() as patch:
            patch.setattr(nodes._beats._members, "ask", fail)
            patch.setattr(mist.sessions.realm_presence, "_WAIT", 0.1)
            await trio.sleep(0.3)
            async with present(realm.one, "token-a"):
                told = await page.get()
                assert (users(told["joined"]), told["count"]) == (["a"], 2)
                # What isn't known yet is told of this node alone.
                assert (await page.ask("presence", tags=["room:8"]))["count"] == 0
        assert users((await page.get())["left"]) == ["a"]


async def test_a_node_that_did_not_say_in_time_who_is_there_is_asked_again(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = realm.one.hub.nodes
    others = service(realm.one).others
    assert nodes is not None
    assert isinstance(others, RealmPresence)
    ask = others._ask

    async def without_two(question: bytes) -> Mapping[str, bytes]:
        return {nodes.name: (await ask(question))[nodes.name]}

    async with present(realm.two, "token-b"), browse(realm.one, "asks") as page:
        assert (await page.ask("presence", tags=["room:8"]))["count"] == 0
        await until(lambda: len(others._versions) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(others, "_ask", without_two)
            assert (await page.ask("presence", tags=["room:7"]))["count"] == 0
        with trio.fail_after(10):
            assert users((await page.get())["joined"]) == ["b"]


async def test_nobody_is_asked_while_nobody_watches(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = realm.one.hub.nodes
    assert nodes is not None
    asked: list[bytes] = []
    ask = nodes._ask

    async def noted(question: bytes) -> Mapping[str, bytes]:
        asked.append(question)
        return await ask(question)

    monkeypatch.setattr(nodes, "_ask", noted)
    presence = service(realm.one)
    others = presence.others
    assert isinstance(others, RealmPresence)
    monkeypatch.setattr(others, "_ask", noted)
    async with browse(realm.one, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        await until(lambda: len(asked) >= 3)
        monkeypatch.setattr("mist.sessions.presence_rooms._KEPT", 0.05)
    await until(lambda: not presence.keys)
    await trio.sleep(0.5)  # what is on its way
    asked.clear()
    await trio.sleep(0.5)
    assert asked == []
    assert not others._seen
    monkeypatch.undo()
    async with talk(realm.one) as line:
        assert await line.ask(b"presence room:7\n") == [b"present room:7 0\n"]


async def test_ever_new_tag_sets_are_asked_about_together(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    questions = 0
    keys: list[RoomKey] = []

    async def ask(question: bytes) -> Mapping[str, bytes]:
        nonlocal questions
        questions += 1
        await trio.sleep(0.3)
        return {}

    async def living() -> list[str]:
        return []

    others = RealmPresence(
        ask,
        living,
        lambda: "one",
        keys=lambda: keys,
        concerned=lambda _: [],
        changed=lambda _: None,
    )
    for _ in range(4):
        nursery.start_soon(others._learn_on)
    async with trio.open_nursery() as learning:
        for number in range(1_000):
            keys.append((frozenset({f"room:{number}"}), ""))
            learning.start_soon(others.learn, keys[-1:])
            await trio.sleep(0.01)
    assert all(key in others._seen for key in keys)
    assert questions <= 42  # in ten seconds
    nursery.cancel_scope.cancel()


async def test_an_answer_that_comes_late_does_not_replace_a_newer_one(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = broker_with("room:*")
    came: list[trio.Event] = []

    async def ask(question: bytes) -> Mapping[str, bytes]:
        answer = await answer_question(broker, SessionTable(10), "two", question)
        assert answer is not None
        came.append(trio.Event())
        await came[-1].wait()
        return {"two": answer}

    async def living() -> list[str]:
        return ["one", "two"]

    others = RealmPresence(
        ask,
        living,
        lambda: "one",
        keys=lambda: [ROOM],
        concerned=lambda _: [ROOM],
        changed=lambda _: None,
    )
    monkeypatch.setattr(mist.sessions.realm_presence, "_APART", 0.0)
    for _ in range(2):
        nursery.start_soon(others._learn_on)
        await trio.testing.wait_all_tasks_blocked()
    for each in ("a", "b"):
        others._wanted[ROOM] = None
        others._asked.notify()
        await trio.testing.wait_all_tasks_blocked()
        broker.subscribe(outbox(broker, user=each), *ROOM[:1])
    assert len(came) == 2
    for event in reversed(came):
        event.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [seen.sessions for seen in others.seen(ROOM)] == [1]
    nursery.cancel_scope.cancel()


# what nodes say


async def test_questions_and_answers() -> None:
    broker, presence = broker_with("room:*")
    broker.subscribe(outbox(broker, user="a"), frozenset({"room:7"}))

    async def ask(body: bytes) -> bytes:
        answer = await answer_question(broker, SessionTable(1), "n1", body)
        assert answer is not None
        return answer

    assert read_since(await ask(ask_since({}))) == (1, None)
    broker.subscribe(outbox(broker, user="b"), frozenset({"room:7", "x"}))
    broker.subscribe(outbox(broker, user="c"), frozenset({"x"}))
    assert read_since(await ask(ask_since({"n1": 1}))) == (2, [frozenset({"room:7"})])
    assert read_since(await ask(ask_since({"n1": 2}))) == (2, [])
    assert read_since(await ask(ask_since({"n1": 3}))) == (2, None)  # of another life
    body, count = ask_at("1", [ROOM, (frozenset({"room:8"}), "")], MAX_QUESTION)
    assert count == 2
    since = {("a", "", ""): 1_000.0, ("b", "", ""): 1_000.0}
    assert read_at(await ask(body)) == [Seen(2, since), Seen(0, {})]
    broker.presence = None
    assert read_at(await ask(body)) == [Seen(0, {}), Seen(0, {})]
    assert read_since(await ask(ask_since({"n1": 2}))) == (1, [])
    assert presence.log is not None


@pytest.mark.parametrize("answer", [b"", b"\xc1", msgspec.msgpack.encode("no answer"), b"\x92\x01"])
def test_what_is_no_answer_is_none(answer: bytes) -> None:
    assert read_since(answer) is None
    assert read_at(answer) == []


async def test_a_question_has_what_fits_and_so_has_an_answer() -> None:
    rooms: list[RoomKey] = [(frozenset({f"room:{number:0250}"}), "") for number in range(500)]
    body, count = ask_at("1", rooms, MAX_QUESTION)
    assert 0 < count < 500
    assert len(body) <= MAX_QUESTION
    broker, _ = broker_with("*", clock=Clock())
    for number in range(1_000):
        broker.subscribe(
            outbox(broker, user=f"{number:0255}", client=f"{number:064}"), frozenset({"room:7"})
        )
    asked = [ROOM, (frozenset({"room:7"}), "one"), ROOM]
    body, _ = ask_at("1", asked, MAX_QUESTION)
    answer = await answer_question(broker, SessionTable(1), "n1", body)
    assert answer is not None
    assert len(answer) <= MAX_ANSWER
    assert len(read_at(answer)) == 2


async def test_an_answer_of_many_changes_says_that_all_may_have_changed() -> None:
    presence = Presence(PresenceTags(("*",)), Clock())
    presence.log = PresenceLog()
    for number in range(6_000):
        presence.log.note(frozenset({f"room:{number}"}))
    body = ask_since({"n1": 1})
    question = msgspec.msgpack.decode(body)
    assert question[0] == "presence-since"
    broker, _ = broker_with("*")
    broker.presence = presence
    answer = await answer_question(broker, SessionTable(1), "n1", body)
    assert answer is not None
    assert read_since(answer) == (6_001, None)
    assert callable(answer_presence)


def test_the_log_of_changes_forgets_the_oldest() -> None:
    log = PresenceLog()
    sets: list[TagSet] = [frozenset({f"room:{number}"}) for number in range(10_001)]
    for tags in sets:
        log.note(tags)
    assert log.since(1) is None
    assert log.since(2) == sets[:0:-1]
    log.note(sets[5])
    assert log.since(log.version - 1) == [sets[5]]
    assert log.since(log.version) == []
