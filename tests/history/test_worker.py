"""The thread that works for an event loop."""

import gc
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from mist.history.sqlite.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("a worker")
    yield worker
    worker.close()


def fail() -> None:
    raise ValueError("no")


async def test_work_is_done_in_one_other_thread(worker: Worker) -> None:
    threads = [await worker.run(threading.current_thread) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0].name == "a worker"
    assert threads[0] is not threading.current_thread()


async def test_each_run_is_a_checkpoint_and_returns_what_the_work_does(worker: Worker) -> None:
    for number in range(100):
        with trio.testing.assert_checkpoints():
            assert await worker.run(lambda number=number: number) == number


async def test_what_the_work_raises_is_raised_and_the_next_work_is_done(worker: Worker) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await worker.run(fail)
        assert await worker.run(lambda: 1) == 1


async def test_what_it_raised_leaves_no_garbage(worker: Worker) -> None:
    async def failing() -> str:
        try:
            await worker.run(fail)
        except ValueError as error:
            return str(error)
        return ""

    await failing()
    gc.collect()
    gc.disable()
    try:
        assert await failing() == "no"
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_cancelled_before_it_begins_nothing_is_done(worker: Worker) -> None:
    done: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await worker.run(lambda: done.append(1))
    assert scope.cancelled_caught
    assert await worker.run(done.copy) == []


async def test_cancelled_meanwhile_it_is_done_and_its_result_returned(worker: Worker) -> None:
    may_end = threading.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, may_end.wait)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            may_end.set()
    assert await worker.run(lambda: 1) == 1


async def test_it_does_one_thing_at_a_time(worker: Worker) -> None:
    may_end = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, may_end.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await worker.run(lambda: 1)
        may_end.set()
    assert await worker.run(lambda: 2) == 2


async def test_closing_ends_the_thread_and_may_be_repeated(worker: Worker) -> None:
    thread = await worker.run(threading.current_thread)
    worker.close()
    assert not thread.is_alive()
    worker.close()


def test_one_that_was_never_asked_has_no_thread() -> None:
    before = threading.active_count()
    worker = Worker("idle")
    assert threading.active_count() == before
    worker.close()
