"""Everybody who waits hears of the next change, whoever else waits or gives up."""

import trio
import trio.testing

from mist.change import Change


async def test_all_who_wait_are_woken(autojump_clock: trio.testing.MockClock) -> None:
    change = Change()
    woken = []

    async def wait(name: int) -> None:
        await change.wait()
        woken.append(name)

    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(wait, name)
                await trio.testing.wait_all_tasks_blocked()
            assert woken == []
            change.notify()
    assert sorted(woken) == [0, 1, 2]


async def test_only_a_later_change_counts(autojump_clock: trio.testing.MockClock) -> None:
    change = Change()
    change.notify()
    with trio.move_on_after(1) as scope:
        await change.wait()
    assert scope.cancelled_caught


async def test_one_who_waits_again_waits_for_another_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    change = Change()
    seen = 0

    async def watch() -> None:
        nonlocal seen
        while True:
            await change.wait()
            seen += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for expected in (1, 2, 3):
            await trio.testing.wait_all_tasks_blocked()
            change.notify()
            change.notify()  # nobody waits for it yet
            await trio.testing.wait_all_tasks_blocked()
            assert seen == expected
        nursery.cancel_scope.cancel()


async def test_one_who_gives_up_changes_nothing_for_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    change = Change()
    woken = []

    async def wait() -> None:
        await change.wait()
        woken.append(True)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.move_on_after(1):
                await change.wait()
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            change.notify()
    assert woken == [True, True]


async def test_waiting_is_a_checkpoint() -> None:
    change = Change()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
        with trio.testing.assert_checkpoints():
            nursery.start_soon(_notify, change)
            await change.wait()


async def _notify(change: Change) -> None:
    change.notify()
