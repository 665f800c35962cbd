"""Replays: everything comes, and what comes otherwise is no figure."""

import sys
from pathlib import Path

import pytest

from mist.bench.dialect import Line
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.history.replay import hear, measure_replay, read
from mist.bench.history.stored import publications, script_of
from mist.bench.script import TAG, tag_lists
from mist.history import Selection
from mist.history.opening import open_history
from tests.bench.fakes import faulty_server

MESSAGES = 300
SCRIPT = script_of(tag_lists(1), MESSAGES)
QUESTION = Line().replay([TAG])


def stored(first: int, last: int) -> bytes:
    return SCRIPT.delivery[first * SCRIPT.delivery_size : last * SCRIPT.delivery_size]


def heard(replayed: bytes) -> tuple[float, float]:
    with faulty_server(lambda n, line: [line], replayed) as target:
        found = hear(target.subscribe, QUESTION, SCRIPT, MESSAGES)
    return found.first, found.seconds


def test_what_comes_whole_is_timed() -> None:
    first, seconds = heard(stored(0, MESSAGES))
    assert 0 < first <= seconds


@pytest.mark.parametrize(
    ("replayed", "words"),
    [
        (stored(0, MESSAGES - 1), "sent 299"),
        (b"", "sent 0"),
        (stored(0, 10) + stored(11, MESSAGES), "sent 299"),
        (stored(0, MESSAGES) + stored(MESSAGES - 1, MESSAGES), "twice"),
        (stored(0, 9) + stored(10, 20) + stored(9, 10) + stored(20, MESSAGES), "out of order"),
        (stored(0, MESSAGES + 1), "sent 301"),
    ],
)
def test_what_comes_otherwise_is_an_error(replayed: bytes, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        heard(replayed)


@pytest.mark.parametrize(
    "replayed",
    [b"error History is off\n", stored(0, 5) + b"error History is unavailable\n"],
)
def test_a_refusal_is_shown(replayed: bytes) -> None:
    with pytest.raises(UnexpectedBytes, match="error History is"):
        heard(replayed)


async def test_a_log_that_gives_back_another_number_is_an_error() -> None:
    tags = tag_lists(1)
    async with await open_history("memory://") as history:
        await history.append(publications(SCRIPT, tags, 0, MESSAGES))
        everything = await read(history, None, MESSAGES, limit=7)
        assert 0 < everything.first <= everything.seconds
        nothing = await read(history, Selection([frozenset({"none"})]), 0)
        assert nothing.first == nothing.seconds
        for wrong in (MESSAGES - 1, MESSAGES + 1):
            with pytest.raises(BenchError, match="gave 300"):
                await read(history, None, wrong)


def test_a_log_and_its_server_replay_all_of_it(tmp_path: Path) -> None:
    # More than a group, and more than a page of either.
    alone, over_tcp = measure_replay(tmp_path, messages=30_000, lists=1, seconds=0.02)
    assert (alone.through, over_tcp.through) == ("log", "tcp")
    assert alone.server_cpu is None
    if sys.platform == "linux":
        assert over_tcp.server_cpu is not None
    for found in (alone, over_tcp):
        assert (found.messages, found.tag_lists) == (30_000, 1)
        assert len(found.seconds) == len(found.firsts) >= 3
        assert all(0 < f <= s for f, s in zip(found.firsts, found.seconds, strict=True))
        assert 90 < found.stored < 200
    assert not list(tmp_path.iterdir())
