"""What a backend says that a credential grants: asked, remembered, renewed, and taken back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mist.auth.callout.logins import LoginCallout
from mist.auth.callout.questions import Questions
from mist.auth.credentials import Credentials, Login
from mist.auth.issued import IssuedRecord
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.commands import Register
from mist.errors import RegistryUnavailable
from tests.auth.callout.backend import Backend, Says

LOGIN = Login("ws", "192.0.2.1", "https://app.example", "tab-1")
YES = {"tags": ["room:1"], "attributes": {"user": "7"}, "ttl": 100}


class World:
    """A callout, its backend, and the sessions that have its records."""

    def __init__(self, says: Says) -> None:
        self.backend = Backend(says)
        self.registry = LocalRegistry(MemoryStore())
        self.sessions: list[IssuedRecord | None] = []
        self.ahead = 0.0  # seconds that the clock was set ahead
        questions = Questions(self.backend, None, trio.current_time)
        self.callout = LoginCallout(
            questions,
            self.registry,
            10,
            self.now,
            steady=trio.current_time,
            in_use=lambda record: any(each is record for each in self.sessions),
            replace=self.replace,
        )
        self.credentials = Credentials(self.registry, None, self.callout)

    def now(self) -> float:
        return trio.current_time() + self.ahead

    def replace(self, old: IssuedRecord, new: IssuedRecord | None) -> None:
        self.sessions = [new if each is old else each for each in self.sessions]

    async def login(self, text: str = "hush", login: Login = LOGIN) -> IssuedRecord | None:
        await self.credentials.prepare(text, login)
        record = self.credentials.find(text, login)
        assert record is None or isinstance(record, IssuedRecord)
        return record

    @property
    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.callout.counts["callout"].items() if count}


@asynccontextmanager
async def world(says: Any) -> AsyncIterator[World]:
    it = World(says if callable(says) else lambda question: says)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.credentials.run)
        await trio.testing.wait_all_tasks_blocked()
        yield it
        nursery.cancel_scope.cancel()


async def test_a_credential_grants_what_the_backend_says(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        record = await it.login()
        assert record is not None
        assert record.tags == {"room:1"}
        assert record.attributes.user == "7"
        assert record.expires == pytest.approx(trio.current_time() + 100)
        assert it.backend.asked == [
            {
                "credential": "hush",
                "endpoint": "ws",
                "address": "192.0.2.1",
                "origin": "https://app.example",
                "client": "tab-1",
                "tags": [],
            }
        ]
        assert "hush" not in repr(record)


async def test_it_is_asked_once_in_its_time_for_each_place(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(it.login)
        records = [await it.login() for _ in range(5)]
        assert len({id(record) for record in records}) == 1
        assert len(it.backend.asked) == 1
        for login in (
            LOGIN._replace(address="192.0.2.2"),
            LOGIN._replace(origin="https://evil.example"),
            LOGIN._replace(origin=None),
            LOGIN._replace(client="tab-2"),
            LOGIN._replace(endpoint="http"),
            LOGIN._replace(tags="a"),
            LOGIN._replace(tags="a,b"),
        ):
            await it.login(login=login)
            await it.login(login=login)
        assert len(it.backend.asked) == 8
        await trio.sleep(101)
        await it.login()
        assert len(it.backend.asked) == 9


async def test_an_answer_for_some_tags_is_none_for_others(autojump_clock: MockClock) -> None:
    async with world(lambda question: YES if question["tags"] == ["a", "b"] else 403) as it:
        for _ in range(2):
            assert await it.login(login=LOGIN._replace(tags="a,b")) is not None
            for tags in ("", "a", "b", "a,b,c"):
                assert await it.login(login=LOGIN._replace(tags=tags)) is None
        assert it.callout.find("hush", LOGIN._replace(tags="c")) is None
        asked = [each["tags"] for each in it.backend.asked]
        assert asked == [["a", "b"], [], ["a"], ["b"], ["a", "b", "c"]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("y", LOGIN._replace(client="c\0t")), ("\0y", LOGIN._replace(client="c", tags="t"))),
        (("y", Login(origin="o\0c")), ("\0y", Login(origin="o", client="c"))),
        (("y", Login(client="t")), ("y", Login(tags="t"))),
        (("y", Login(client="")), ("y", Login(client=None))),
        (("y", Login(origin="")), ("y", Login(origin=None))),
        (("y", Login(origin="null")), ("y", Login(origin=None))),
    ],
)
async def test_two_questions_share_no_answer_however_their_parts_are_cut(
    one: tuple[str, Login], other: tuple[str, Login], autojump_clock: MockClock
) -> None:
    async with world(YES) as it:
        assert it.callout._key(*one) != it.callout._key(*other)
        await it.login(*one)
        assert it.callout.find(*other) is None


async def test_a_credential_that_is_no_users_has_one_id_whatever_is_asked_for_with_it(
    autojump_clock: MockClock,
) -> None:
    async with world({"tags": ["a"]}) as it:
        asked = [LOGIN, LOGIN._replace(tags="a"), LOGIN._replace(client="tab-2", tags="b")]
        records = [await it.login(login=each) for each in asked]
        assert len({None if each is None else each.id for each in records}) == 1
        other = await it.login("another")
        assert other is not None
        assert records[0] is not None
        assert other.id != records[0].id


async def test_registered_tokens_are_not_asked_about(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        await it.registry.execute([Register("known", frozenset({"a"}))])
        await it.credentials.prepare("known", LOGIN)
        record = it.credentials.find("known", LOGIN)
        assert record is not None
        assert record.tags == {"a"}
        assert it.backend.asked == []


@pytest.mark.parametrize("says", [401, 403, {"tags": []}])
async def test_a_no_is_remembered_for_a_moment(says: Any, autojump_clock: MockClock) -> None:
    async with world(says) as it:
        assert await it.login() is None
        assert await it.login() is None
        assert len(it.backend.asked) == 1
        assert it.credentials.explain("hush", LOGIN) == "the token is not accepted"
        assert it.outcomes == {"denied": 1, "cached": 1}
        it.backend.says = lambda question: YES
        await trio.sleep(4.9)
        assert await it.login() is None
        await trio.sleep(0.2)
        assert await it.login() is not None


async def test_a_no_holds_as_long_as_it_says(autojump_clock: MockClock) -> None:
    async with world({"tags": [], "ttl": 30}) as it:
        assert await it.login() is None
        it.backend.says = lambda question: YES
        await trio.sleep(29.9)
        assert await it.login() is None
        await trio.sleep(0.2)
        assert await it.login() is not None


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        (500, "status"),
        (b"nonsense", "malformed"),
        ({"tags": ["mist:*"]}, "grants"),
        ({"tags": ["a", ">mist:connected"]}, "grants"),
        ({"tags": "a"}, "grants"),
        ({}, "grants"),
        ({"tags": ["a b"]}, "grants"),
        ({"tags": [f"t{n}" for n in range(11)]}, "grants"),
        ({"tags": ["a"], "attributes": {"user": ""}}, "grants"),
        ({"tags": ["a"], "attributes": 7}, "grants"),
    ],
)
async def test_what_is_no_answer_lets_nobody_in_and_says_that_it_cannot_be_told(
    says: Any, outcome: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(says) as it:
        with pytest.raises(RegistryUnavailable):
            await it.login()
        assert it.credentials.find("hush", LOGIN) is None
        assert it.outcomes == {outcome: 1}
        it.backend.says = lambda question: YES
        assert await it.login() is not None
    assert "hush" not in caplog.text


@pytest.mark.parametrize("text", ["", "x" * 8_193])
async def test_what_can_be_no_credential_is_not_asked_about(
    text: str, autojump_clock: MockClock
) -> None:
    async with world(YES) as it:
        assert await it.login(text) is None
        assert it.backend.asked == []


async def test_a_session_is_asked_about_again_as_it_was_before(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login(login=LOGIN._replace(tags="a,b"))]
        await trio.sleep(90)
        assert len(it.backend.asked) == 2
        assert it.backend.asked[1] == it.backend.asked[0]
        assert it.backend.asked[0]["tags"] == ["a", "b"]


async def test_of_a_no_neither_the_credential_nor_what_was_asked_for_is_kept(
    autojump_clock: MockClock,
) -> None:
    async with world(403) as it:
        await it.login(login=LOGIN._replace(tags="a,b"))
        [known] = it.callout._known.values()
        assert (known.text, known.login) == ("", Login())


async def test_a_session_is_asked_about_before_its_time_is_over(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login(), await it.login()]
        first = it.sessions[0]
        assert first is not None
        await trio.sleep(90)
        assert len(it.backend.asked) == 2
        second = it.sessions[0]
        assert second is not None
        assert second is it.sessions[1] is not first
        assert second.id == first.id
        assert second.expires == pytest.approx(first.expires + 80, abs=2)
        it.sessions = []
        await trio.sleep(1_000)
        assert len(it.backend.asked) == 2
        assert it.callout._known == {}


async def test_a_session_ends_where_the_answer_is_no(autojump_clock: MockClock) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login()]
        it.backend.says = lambda question: 403
        await trio.sleep(90)
        assert it.sessions == [None]


async def test_a_session_keeps_its_record_while_the_backend_is_down(
    autojump_clock: MockClock,
) -> None:
    async with world(YES) as it:
        record = await it.login()
        it.sessions = [record]
        it.backend.says = lambda question: 500
        await trio.sleep(99)
        assert it.sessions == [record]  # and it ends by its time, if that goes on
        assert len(it.backend.asked) < 60
        it.backend.says = lambda question: YES
        it.sessions = [await it.login()]
        await trio.sleep(1)
        assert it.sessions[0] is not None


async def test_logins_have_a_backend_that_is_down_asked_no_more_often(
    autojump_clock: MockClock,
) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login()]
        it.backend.says = lambda question: 500
        await trio.sleep(85)
        for _ in range(50):
            await it.login()
            await trio.sleep(0.2)
        assert len(it.backend.asked) < 40


@pytest.mark.parametrize("ahead", [-3_600.0, 3_600.0], ids=["back", "ahead"])
async def test_a_clock_that_is_set_makes_no_answer_hold_longer(
    ahead: float, autojump_clock: MockClock
) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login()]
        it.ahead = ahead
        await trio.sleep(90)
        assert len(it.backend.asked) == 2  # in time, as if the clock had not been set
        (record,) = it.sessions
        assert record is not None
        assert record.expires == pytest.approx(trio.current_time() + ahead + 90)
        assert await it.login() is record


async def test_a_session_ends_in_time_though_the_clock_was_set_back(
    autojump_clock: MockClock,
) -> None:
    async with world(YES) as it:
        it.sessions = [await it.login()]
        it.backend.says = lambda question: 500
        it.ahead = -3_600.0
        await trio.sleep(99)
        [record] = it.sessions
        assert record is not None
        assert not record.expired(it.now())
        await trio.sleep(2)
        [record] = it.sessions
        assert record is not None  # as of a no: the credential may be as good as before
        assert record.expired(it.now())
        with pytest.raises(RegistryUnavailable):
            await it.login()


async def test_a_login_after_the_clock_was_set_ahead_is_asked_about(
    autojump_clock: MockClock,
) -> None:
    async with world(YES) as it:
        await it.login()
        it.ahead = 3_600.0
        record = await it.login()
        assert record is not None
        assert record.expires == pytest.approx(trio.current_time() + 3_700)


async def test_a_login_whose_answer_differs_changes_the_sessions_before_it(
    autojump_clock: MockClock,
) -> None:
    async with world({**YES, "ttl": 10}) as it:
        it.sessions = [await it.login()]
        it.backend.says = lambda question: {"tags": ["room:2"], "attributes": {"user": "7"}}
        await trio.sleep(9)
        [record] = it.sessions
        assert record is not None
        assert record.tags == {"room:2"}


async def test_what_is_remembered_is_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.auth.callout.logins._MOST", 10)
    async with world(YES) as it:
        it.sessions = [await it.login("used")]
        for number in range(50):
            await it.login(f"text{number}")
            await it.login("used", LOGIN._replace(tags=f"tag{number}"))
        assert len(it.callout._known) <= 11
        assert await it.login("used") is it.sessions[0]
