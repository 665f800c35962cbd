"""The driver against servers that do right, and that make every kind of mistake."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from mist.bench.errors import BenchError, HungUp, NotThere, UnexpectedBytes
from mist.bench.load import WARM, Run, open_load
from tests.bench.fakes import Fault, faulty_server

MESSAGES = 300


def run(
    fault: Fault,
    publishers: int = 1,
    subscribers: int = 2,
    window: int = 50,
    stall_timeout: float = 5.0,
) -> Run:
    with (
        faulty_server(fault) as target,
        open_load(target, publishers, subscribers, messages=MESSAGES) as load,
    ):
        load.stall_timeout = stall_timeout
        return load.flood(MESSAGES, window, 10.0)


def at(number: int, change: Callable[[bytes], list[bytes]]) -> Fault:
    """A fault with the measured message `number`, none with others."""
    return lambda n, line: change(line) if n == WARM + number else [line]


@pytest.mark.parametrize("window", [1, 50, 0])
@pytest.mark.parametrize("publishers", [1, 3])
def test_what_arrives_whole_is_counted_whole(publishers: int, window: int) -> None:
    result = run(lambda n, line: [line], publishers=publishers, window=window)
    assert (result.messages, result.deliveries) == (MESSAGES, 2 * MESSAGES)
    assert (result.lost, result.repeated, result.reordered) == (0, 0, 0)
    assert result.seconds > 0
    assert result.server_cpu is None


@pytest.mark.parametrize("publishers", [1, 3])
@pytest.mark.parametrize("number", [0, 1, 150, MESSAGES - 1])
class TestOneMistake:
    def test_a_lost_message(self, number: int, publishers: int) -> None:
        result = run(at(number, lambda line: []), publishers)
        assert (result.lost, result.repeated, result.reordered) == (2, 0, 0)
        assert result.deliveries == 2 * MESSAGES - 2

    def test_a_repeated_message(self, number: int, publishers: int) -> None:
        result = run(at(number, lambda line: [line, line]), publishers)
        assert (result.lost, result.repeated, result.reordered) == (0, 2, 0)


def test_a_message_that_comes_late_is_reordered_and_not_lost() -> None:
    held: list[bytes] = []

    def late(number: int, line: bytes) -> list[bytes]:
        if number == WARM + 7:
            held.append(line)
            return []
        return [line, held.pop()] if held and number == WARM + 9 else [line]

    result = run(late)
    assert (result.lost, result.repeated, result.reordered) == (0, 0, 2)


def test_all_lost_ends_all_the_same() -> None:
    result = run(lambda n, line: [line] if n < WARM else [], stall_timeout=0.3)
    assert result.deliveries == 0
    assert result.lost == 2 * result.messages  # what the window allowed
    assert result.messages == 50


def test_changed_bytes_are_no_delivery() -> None:
    with pytest.raises(UnexpectedBytes, match="publish bench"):
        run(at(20, lambda line: [line.replace(b"x", b"y")]))


def test_an_error_message_is_shown() -> None:
    with pytest.raises(UnexpectedBytes, match="error Too many"):
        run(at(MESSAGES - 1, lambda line: [b"error Too many subscriptions\n"]), stall_timeout=0.3)


def test_a_server_that_hangs_up_is_named() -> None:
    with pytest.raises(HungUp, match="subscriber"):
        run(at(20, lambda line: [b"hang up"]))


def test_nobody_there_is_an_error() -> None:
    with faulty_server(lambda n, line: [line]) as target:
        pass
    with pytest.raises(NotThere), open_load(target, 1, 1, messages=10):
        pass


def test_a_second_run_counts_for_itself() -> None:
    with (
        faulty_server(at(5, lambda line: [])) as target,
        open_load(target, 1, 1, messages=20) as load,
    ):
        assert load.flood(10, 5, 10.0).lost == 1
        result = load.flood(10, 5, 10.0)
        assert (result.messages, result.deliveries, result.lost) == (10, 10, 0)


def test_a_paced_run_tells_when_each_message_is_due() -> None:
    told: list[tuple[float, float]] = []
    with (
        faulty_server(lambda n, line: [line]) as target,
        open_load(target, 2, 1, messages=20) as load,
    ):
        result = load.pace(20, 1_000, lambda due, now: told.append((due, now)))
    assert (result.messages, result.deliveries, result.lost) == (20, 20, 0)
    assert len(told) == 20
    assert all(due <= now for due, now in told)
    steps = [after[0] - before[0] for before, after in pairwise(told)]
    assert steps == pytest.approx([0.001] * 19)


def test_a_rate_out_of_reach_is_an_error() -> None:
    with (
        faulty_server(lambda n, line: [line]) as target,
        open_load(target, 1, 1, messages=20) as load,
        pytest.raises(BenchError, match="more than this machine"),
    ):
        load.stall_timeout = 0.0
        load.pace(20, 1_000, lambda due, now: None)
