"""Event loops that never rest, and that end as asked."""

import os
import signal
import time

import pytest
import trio

from mist.bench.errors import BenchError, HungUp
from mist.bench.history.loops import beside, run
from mist.errors import HistoryUnavailable


def test_what_is_run_gives_its_value() -> None:
    async def seven() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert run(seven) == 7


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (HistoryUnavailable("the disk is full"), BenchError),
        (HungUp("gone"), HungUp),
        (ZeroDivisionError("no"), ZeroDivisionError),
        (KeyboardInterrupt("no"), KeyboardInterrupt),
    ],
)
def test_errors_come_out_by_themselves(raised: BaseException, seen: type[BaseException]) -> None:
    async def fail() -> None:
        async with trio.open_nursery():
            raise raised

    with pytest.raises(seen, match=str(raised)):
        run(fail)


@pytest.mark.parametrize("busy", [True, False])
def test_sigterm_ends_it_in_good_order(busy: bool) -> None:
    left = []

    async def wait() -> None:
        try:
            async with beside(busy):
                os.kill(os.getpid(), signal.SIGTERM)
                await trio.sleep_forever()
        finally:
            left.append(True)

    with pytest.raises(SystemExit) as caught:
        run(wait)
    assert (caught.value.code, left) == (143, [True])


def test_the_loop_is_saturated_while_the_block_lasts_and_no_longer() -> None:
    async def share() -> float:
        before = time.thread_time()
        start = time.perf_counter()
        await trio.sleep(0.1)
        return (time.thread_time() - before) / (time.perf_counter() - start)

    async def look() -> None:
        async with beside(True):
            # Others may have the processor meanwhile: not nearly one, and not each time.
            with trio.fail_after(20):
                while await share() <= 0.1:
                    pass
        async with beside(False):
            assert await share() < 0.1

    run(look)


def test_other_tasks_run_beside_and_end_with_the_block() -> None:
    seen = []
    begun = trio.Event()

    async def task() -> None:
        seen.append("begun")
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.append("ended")

    async def block() -> None:
        async with beside(True, task):
            await begun.wait()
            seen.append("block")

    run(block)
    assert seen == ["begun", "block", "ended"]
