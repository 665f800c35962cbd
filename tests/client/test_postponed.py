"""What a server refused for the moment, and the client asks for again."""

import trio
import trio.testing

from mist.client.dialect import Request
from mist.client.postponed import Postponed
from mist.commands import Unsubscribe


async def test_what_is_not_wanted_by_then_is_not_asked_for(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    asked: list[Request] = []
    postponed = Postponed(asked.append)
    wanted, unwanted, lost = (Unsubscribe(frozenset({each})) for each in "abc")
    nursery.start_soon(postponed.run)
    for _ in range(2):
        postponed.add(lost, lambda: True)
        postponed.clear()
        postponed.add(wanted, lambda: True)
        postponed.add(unwanted, lambda: False)
        assert asked == []
        await trio.sleep(60)
        assert [each.command for each in asked] == [wanted]
        asked.clear()
