"""What is stored is what a subscriber has to get, in pieces as a server's reads bring them."""

import sys
from itertools import islice
from pathlib import Path

import pytest
import trio

from mist.bench.history.stored import groups, publications, script_of, serving, url_of
from mist.bench.load import WARM
from mist.bench.script import MANY, tag_lists
from mist.bench.throughput import measure_throughput
from mist.history import MAX_GROUP, Durability, HistoryStatistics
from mist.history.opening import open_history
from mist.wire import record_head, split_run


@pytest.mark.parametrize("lists", [1, 7])
def test_what_is_stored_is_what_is_heard(lists: int) -> None:
    tags = tag_lists(lists)
    script = script_of(tags, 2_000)
    stored = publications(script, tags, 3, 1_200)
    assert [each.count for each in stored] == [500, 500, 200]
    wire = b"".join(wire for each in stored for _, wire, _ in each.batch.runs)
    size = script.delivery_size
    assert wire == script.delivery[3 * size : 1_203 * size]
    for each in stored:
        for tag_list, run, count in each.batch.runs:
            assert len(split_run(tag_list, run, count)) == count
            assert run.startswith(record_head(tag_list))


def test_one_tag_list_makes_one_run_of_a_read() -> None:
    tags = tag_lists(1)
    assert [
        len(each.batch.runs) for each in publications(script_of(tags, 1_000), tags, 0, 1_000)
    ] == [
        1,
        1,
    ]


def test_messages_go_on_where_the_script_begins_again() -> None:
    tags = tag_lists(1)
    script = script_of(tags, 10)  # a cycle of 1,024
    (stored,) = publications(script, tags, script.cycle - 1, 2)
    ((tag_list, run, _),) = stored.batch.runs
    numbers = [data[:10] for data in split_run(tag_list, run, 2)]
    assert numbers == [b"0%09d" % (script.cycle - 1), b"0000000000"]


def test_messages_have_their_tag_lists_in_turns_also_from_one_group_to_the_next() -> None:
    tags = tag_lists(7)
    some = islice(groups(script_of(tags, 10), tags, None, 5), 300)  # a cycle of 1,029
    found = [run[0] for group in some for each in group for run in each.batch.runs]
    assert found == [",".join(tags[n % 7]).encode() for n in range(1_500)]


def test_lists_of_which_only_some_occur_are_those_of_their_turns() -> None:
    tags = tag_lists(MANY)
    (stored,) = publications(script_of(tags, 10), tags, MANY - 1, 2)
    assert [run[0] for run in stored.batch.runs] == [
        ",".join(tags[n]).encode() for n in (MANY - 1, 0)
    ]


def test_what_a_read_brings_is_handed_over_as_a_server_does() -> None:
    for lists, shape in ((1, (1, True)), (7, (500, True))):
        tags = tag_lists(lists)
        (stored,) = publications(script_of(tags, 1_000), tags, 3, 500)
        assert (len(stored.batch.tag_lists), stored.batch.is_lines) == shape
        assert stored.batch.size == 500 * script_of(tags, 1_000).delivery_size
        wires = b"".join(wire for _, wire, _ in stored.batch.runs)
        assert stored.batch.whole == (wires, 500)
    datas = stored.batch.datas
    assert datas is not None
    assert [data[:10] for data in datas] == [b"0%09d" % n for n in range(3, 503)]


def test_groups_are_all_there_is_and_none_too_large() -> None:
    tags = tag_lists(3)
    made = list(groups(script_of(tags, 25_000), tags, 25_000))
    assert [sum(each.count for each in group) for group in made] == [MAX_GROUP, MAX_GROUP, 5_000]


def test_a_server_of_ours_stores_what_is_published(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with serving(path, "power") as site:
        if sys.platform == "linux":
            told = Path(f"/proc/{site.process()}/cmdline").read_bytes().split(b"\0")
            assert told[told.index(b"--durability") + 1] == b"power"
        measure_throughput(site.target("tcp"), messages=100, subscribers=0)

    async def look() -> HistoryStatistics:
        async with await open_history(url_of(path), durability=Durability.PROCESS) as history:
            return await history.statistics()

    assert trio.run(look).messages == WARM + 100
