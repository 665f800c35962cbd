"""Latest values at nodes: each keeps its own, of its mirror, and all have the same."""

from mist.engine.checkpointing import Checkpointer
from mist.history.arrivals import Arrival
from mist.history.erasure import Erasure
from tests.engine.nodes import Server, Start, same
from tests.history.latest.values import latest, newest_of_all
from tests.history.messages import texts
from tests.waiting import until


async def store(server: Server, *messages: tuple[str, str]) -> None:
    for tags, data in messages:
        await server.hub.store(frozenset(tags.split(",")), data.encode())


async def values(server: Server) -> list[str]:
    found = await latest(server.node.history)
    assert found == await newest_of_all(server.node.history)
    return texts(found)


async def test_nodes_have_the_same_and_so_has_one_that_begins_with_a_checkpoint(
    start: Start,
) -> None:
    one, two = await start(), await start()
    for each in (one, two):
        await each.node.history.keep_latest(["k:*"])
    await store(one, ("k:1,a", "1"), ("k:2,a", "2"), ("k:1,b", "3"))
    await store(two, ("k:3,a", "4"), ("k:2,a", "5"))
    await same(one, two)
    assert await values(one) == await values(two) == ["3", "4", "5"]
    assert await Checkpointer(one.node, least=1).step()
    await store(two, ("k:3", "6"))
    three = await start()
    await three.node.history.keep_latest(["k:*"])
    await same(one, two, three)
    assert [await values(each) for each in (one, two, three)] == [["3", "5", "6"]] * 3


async def test_a_mirror_that_begins_anew_has_those_of_the_log_that_it_mirrors(start: Start) -> None:
    one = await start()
    await one.node.history.keep_latest(["k:*"])
    await store(one, ("k:1,a", "1"), ("k:2,a", "2"))
    assert await values(one) == ["1", "2"]
    await one.node.mirror.begin_anew("another")
    assert await values(one) == []
    await one.node.mirror.apply([Arrival(1, 1, 1_000_000, void=2)])
    assert await values(one) == []


async def test_what_is_erased_at_one_is_no_value_at_any(start: Start) -> None:
    one, two = await start(), await start()
    for each in (one, two):
        await each.node.history.keep_latest(["k:*"])
    await store(one, ("k:1,a", "1"), ("k:1,secret", "2"), ("k:2,secret", "3"))
    await same(one, two)
    assert await values(one) == await values(two) == ["2", "3"]
    for each in (one, two):
        await each.node.history.erase(Erasure(frozenset({"secret"})))
    await until(lambda: one.sequencer.newest == two.sequencer.newest)
    assert await values(one) == await values(two) == ["1"]
