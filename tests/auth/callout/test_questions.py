"""Questions: bounded in time and number, asked once for all who wait, signed."""

import hashlib
import hmac
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mist.auth.callout.questions import Answer, Questions, Unanswered
from mist.auth.web import WebError
from tests.auth.callout.backend import Backend, Says

SECRET = b"0123456789abcdef0123456789abcdef"


async def asking(nursery: trio.Nursery, says: Says, secret: bytes | None = None) -> Any:
    backend = Backend(says)
    questions = Questions(backend, secret, lambda: 1_798_761_600.5)
    nursery.start_soon(questions.run)
    await trio.testing.wait_all_tasks_blocked()
    return backend, questions


async def test_a_question_is_asked_once_for_all_who_wait(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {"n": len(backend.asked)})
    backend.seconds = 0.5
    answers: list[Answer] = []

    async def ask(key: bytes) -> None:
        answers.append(await questions.ask(key, {}, asker="192.0.2.7"))

    async with trio.open_nursery() as logins:
        for _ in range(100):
            logins.start_soon(ask, b"one")
        for _ in range(100):
            logins.start_soon(ask, b"two")
    assert len(backend.asked) == 2
    assert len({id(answer) for answer in answers}) == 2
    await questions.ask(b"one", {}, asker="192.0.2.7")
    assert len(backend.asked) == 3


async def test_who_goes_does_not_have_it_asked_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {})
    backend.seconds = 0.9
    for _ in range(8):
        with trio.move_on_after(0.1):
            await questions.ask(b"one", {}, asker="192.0.2.7")
    assert len(backend.asked) == 1
    assert (await questions.ask(b"one", {}, asker="192.0.2.7")).says == {}


async def test_so_many_are_asked_at_a_time_and_the_others_wait_a_second_at_most(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {})
    backend.seconds = 0.6
    failures: list[str] = []

    async def ask(number: int) -> None:
        try:
            await questions.ask(b"%d" % number, {}, asker=f"192.0.2.{number % 4}")
        except Unanswered as error:
            failures.append(error.reason)

    began = trio.current_time()
    async with trio.open_nursery() as logins:
        for number in range(2_000):
            logins.start_soon(ask, number)
    assert trio.current_time() - began == pytest.approx(1.0)
    assert backend.at_once == 64
    assert failures.count("busy") == 2_000 - 1_024
    assert failures.count("timeout") == 1_024 - 64
    assert questions.failures == {"busy": 976, "timeout": 960}
    assert (await questions.ask(b"next", {}, asker="192.0.2.7")).says == {}


async def test_who_asks_a_thousand_times_keeps_nobody_else_waiting(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Made-up credentials, at an address that never rests; each takes a tenth of a second."""
    backend, questions = await asking(nursery, lambda question: {})
    backend.seconds = 0.1
    made_up: Counter[str] = Counter()

    async def attack(numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                await questions.ask(b"%d" % number, {}, asker="192.0.2.66")
                made_up["answered"] += 1
            except Unanswered as error:
                made_up[error.reason] += 1
                await trio.sleep(1)

    waits = []
    async with trio.open_nursery() as attackers:
        numbers = itertools.count()
        for _ in range(1_000):
            attackers.start_soon(attack, numbers)
        await trio.sleep(2)
        for number in range(20):
            began = trio.current_time()
            await questions.ask(b"good %d" % number, {}, asker="192.0.2.7")
            waits.append(trio.current_time() - began)
        attackers.cancel_scope.cancel()
    # Until one of the 64 is answered, and until this one is.
    assert max(waits) <= 0.2 + 0.001
    # The server is asked as much as it can answer, and others find room.
    assert made_up["answered"] > 1_000
    assert made_up["busy"] > 500


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (500, "status"),
        (204, "status"),
        (302, "status"),
        (b"", "malformed"),
        (b"<html>", "malformed"),
        (b"[]", "malformed"),
        (b"\xff", "malformed"),
        (b"[" * 60_000, "malformed"),
        (b'{"a":' * 10_000, "malformed"),
        ({"ttl": "60"}, "malformed"),
        ({"ttl": None}, "malformed"),
        ({"ttl": True}, "malformed"),
        ({"ttl": -1}, "malformed"),
        (b'{"ttl":1e999}', "malformed"),
        (WebError("connection", "refused"), "connection"),
        (WebError("size", "too long"), "size"),
        (RuntimeError("of a library"), "error"),
    ],
)
async def test_what_is_no_answer_is_counted(
    says: object, reason: str, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    _, questions = await asking(nursery, lambda question: says)
    with pytest.raises(Unanswered) as caught:
        await questions.ask(b"one", {}, asker="192.0.2.7")
    assert caught.value.reason == reason
    assert questions.failures == {reason: 1}


async def test_a_backend_that_hangs_takes_a_second(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {})
    backend.seconds = 3_600
    began = trio.current_time()
    with pytest.raises(Unanswered, match="timeout"):
        await questions.ask(b"one", {}, asker="192.0.2.7")
    assert trio.current_time() - began == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("says", "ttl"),
    [
        *(({}, 60), ({"ttl": 0}, 1), ({"ttl": 7.5}, 7.5), ({"ttl": 1e9}, 86_400), (401, 5)),
        *((403, 5), (b'{"ttl":1%s}' % (b"0" * 400), 86_400)),  # as JSON may have it, and no float
    ],
)
async def test_an_answer_holds_for_its_time(
    says: object, ttl: float, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    _, questions = await asking(nursery, lambda question: says)
    answer = await questions.ask(b"one", {}, asker="192.0.2.7")
    assert answer.ttl == ttl
    assert (answer.says is None) == isinstance(says, int)


async def test_a_question_is_signed_where_there_is_a_secret(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {}, SECRET)
    await questions.ask(b"one", {"credential": "ä"}, asker="192.0.2.7")
    stamp, _, signature = backend.headers[0]["mist-signature"].partition(",v1=")
    signed = stamp.removeprefix("t=").encode() + b"." + backend.bodies[0]
    assert stamp == "t=1798761600"
    assert hmac.new(SECRET, signed, hashlib.sha256).hexdigest() == signature
    assert SECRET.decode() not in str(backend.headers)


async def test_without_a_secret_nothing_is_signed(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend, questions = await asking(nursery, lambda question: {})
    await questions.ask(b"one", {}, asker="192.0.2.7")
    assert "mist-signature" not in backend.headers[0]


async def test_nothing_is_asked_before_it_runs() -> None:
    questions = Questions(Backend(lambda question: {}), None, float)
    with pytest.raises(Unanswered, match="busy"):
        await questions.ask(b"one", {}, asker="192.0.2.7")
