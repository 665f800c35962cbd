"""Many JSON objects at once: what comes of them is what comes of each."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist.message import Limits
from mist.protocols.json.commands import read_one
from mist.protocols.json.objects import InvalidJson, ObjectReader
from mist.protocols.json.requests import (
    Gathering,
    Request,
    Similar,
    read_alike,
    read_many,
    read_similar,
)


def publish(data: str, tags: str = '["a","b"]') -> bytes:
    return f'{{"command":"publish","tags":{tags},"data":"{data}"}}'.encode()


def one_by_one(objects: bytes) -> list[Request] | None:
    """What objects ask for; None where one of them is none."""
    reader = ObjectReader(100_000)
    reader.feed(objects)
    found = []
    try:
        while (object_ := reader.next()) is not None:
            request = read_one(object_, Limits())
            if not isinstance(request, Request):
                return None
            found.append(request)
    except InvalidJson:
        return None
    return found if reader.idle else None


def lines(requests: list[Request]) -> str:
    gathering = Gathering()
    assert all(map(gathering.add, requests))
    return b"".join(wire for _, wire, _ in gathering.batch().runs).decode()


@pytest.mark.parametrize(
    "objects",
    [
        publish("1") + publish("2"),
        publish("1") + b"\r\n" + publish("") + b"\r\n" + publish(" ,{}[]:") + b"\n",
        b"\n " + publish("ü😀\x7f\x85") * 3,
        publish("1", '["\\u00e4"]') * 2,
        b'{"tags":["a"],"command":"publish","data":"1"} ' * 2,
    ],
)
def test_objects_that_differ_in_their_data_are_read_alike(objects: bytes) -> None:
    alike = read_alike(objects)
    found = one_by_one(objects)
    assert found is not None
    assert alike is not None
    assert (alike.lines, alike.count) == (lines(found), len(found))
    assert alike.tag_list == ",".join(found[0].tags or ())


OTHERS = [
    b'{"data":"1"}' * 2,
    b"",
    b"{}",
    publish("1"),  # nothing to be like
    publish("1") + publish("2")[:-1],
    publish("1") + publish("}")[:-2],
    publish("1")[:-1] + publish("2"),
    publish("1") + publish("2", '["b","a"]'),
    publish("1") + b'{"command":"ping"}' + publish("2"),
    publish("1") + publish("2") + publish("3", '["b","a"]'),
    publish("1") + publish("2") + publish("3", '["b","a"]') + publish("4"),
    publish("1") + publish("2") + b'{"command":"bogus--","tags":["a","b"],"data":"3"}',
    publish("1") + publish("2") + b'{"command":"ping"}' + publish("3"),
    publish("1") + b"x" + publish("2"),
    publish("1") + b"," + publish("2"),
    publish("1") + b"\n" + publish("2") + publish("3"),  # parted in two ways
    publish("1") + publish("\\n"),
    publish("1") + publish("\n"),
    publish("1") + publish("\x1f"),
    publish("1") + publish("\\"),
    publish('"') * 2,
    publish('","data":"') * 2,
    publish("1", "[]") * 2,
    publish("1", '["a,b"]') * 2,
    publish("1", '["a\\nb"]') * 2,
    publish("1", '"a"') * 2,
    (publish("1") * 2).replace(b"1", b"\xff"),
    (publish("1") * 2).replace(b"publish", b"bogus"),
    (publish("1") * 2).replace(b'"tags"', b'"tag"'),
    (publish("1") * 2).replace(b"{", b"["),
    (publish("1") * 2).replace(b'"1"', b'"1","more":"1"'),
    (b'{"command":"publish","tags":["c"]}' + publish("1")) * 2,  # the first has no data
    (b'{"command":"publish","tags":["c"],"data":null}\n' + publish("1") + b"\n") * 2,
]


@pytest.mark.parametrize("objects", OTHERS)
def test_others_are_not_read_alike(objects: bytes) -> None:
    assert read_alike(objects) is None


HEADS = [
    '{"command":"publish","tags":["a"],"data":"',
    '{"command":"publish","tags":["b"]}{"command":"publish","tags":["a"],"data":"',
    '{"data":"',
    '"data":"',
    "publish",
]
MARKS = ['"', "\\", "}", "{", ",", ":", "\n", " ", "\x7f", "ü", "\\n", '"}', '"}\n', "x"]
SOUP = st.lists(st.sampled_from(HEADS * 3 + MARKS), max_size=10).map("".join)


@given(st.sampled_from(HEADS), st.lists(SOUP, max_size=4), st.sampled_from(['"}', '"}\n', '"} ']))
@example(HEADS[0], ['x"}' + HEADS[0] + "y"], '"}')
def test_what_is_read_alike_is_what_is_read_one_by_one(
    head: str, texts: list[str], end: str
) -> None:
    objects = "".join(head + text + end for text in texts).encode()
    if (alike := read_alike(objects)) is not None:
        found = one_by_one(objects)
        assert found is not None
        assert (alike.lines, alike.count) == (lines(found), len(found))


def similar_lines(similar: Similar) -> str:
    gathering = Gathering()
    gathering.add_similar(similar)
    return b"".join(wire for _, wire, _ in gathering.batch().runs).decode()


@pytest.mark.parametrize(
    "objects",
    [
        publish("1", '["a"]') + publish("2", '["b"]'),
        publish("1", '["a","b","c"]') + b" \n" + publish("", '["]","}{",":"]') + b" \n",
        publish("ü😀\x7f\x85", '["ü"]') + publish("1", '[""]') + publish("1", '["","",""]'),
        b'{"tags": ["a", "b"], "command": "publish", "data": "1"}\n' * 2,
        b'{"tags":["a"],"data":"1","command":"publish"}{"tags":["b"],"data":"","command":"publish"}',
        publish("1", '["a"]') * 2,
    ],
)
def test_objects_that_differ_in_tags_and_data_are_read_as_such(objects: bytes) -> None:
    similar = read_similar(objects)
    found = one_by_one(objects)
    assert found is not None
    assert similar is not None
    assert similar_lines(similar) == lines(found)


@pytest.mark.parametrize(
    "objects",
    [
        publish("1", '["a"]'),  # nothing to be like
        publish("1", '["a"]') + publish("2", "[]"),
        publish("1", '["a"]') + publish("2", "null"),
        publish("1", '["a"]') + publish("2", '["b,c"]'),
        publish("1", '["a"]') + publish("2", '["b" ,"c"]'),
        publish("1", '["a"]') + publish("2", '["\\u0062"]'),
        publish("1", '["a"]') + publish("2", '["b\n"]'),
        publish("1", '["a"]') + publish('\\"', '["b"]'),
        publish("1", '["a"]') + publish("\x00", '["b"]'),
        publish("1", '["a"]') + publish("\n", '["b"]'),
        publish("1", '["a"]') + publish("\xff", '["b"]').replace("ÿ".encode(), b"\xff"),
        publish("1", '["a"]') + b" " + publish("2", '["b"]') + publish("3", '["c"]'),
        publish("1", '["a"]') + b"," + publish("2", '["b"]'),
        publish("1", '["a"]').replace(b"publish", b"add") * 2,
        publish("1", '["a"]').replace(b"}", b',"tags":["x"]}') * 2,
        publish("1", '["a"]').replace(b"}", b',"data":"x"}') * 2,
        b'{"data":"x","command":"publish","tags":["a"],"data":"1"' * 2,
        b'[{"command":"publish","tags":["a"],"data":"1"}]' * 2,
    ],
)
def test_others_are_not_read_as_similar(objects: bytes) -> None:
    assert read_similar(objects) is None


LISTS = ["", "a", 'a","b', "a,b", "ü", '"', "\\", "]", '"],"data":"', "\n", 'a", "b', "}"]


@given(
    st.sampled_from(['"],"data":"', '"], "data": "', '"],"command":"publish","data":"']),
    st.sampled_from(['{"command":"publish","tags":["', '{"tags":["', '{ "tags": [ "', "{["]),
    st.lists(st.tuples(st.sampled_from(LISTS), SOUP), max_size=4),
    st.sampled_from(['"}', '"}\n', '"} ', '","command":"publish"}', '","data":"y"}']),
)
@example('"],"data":"', '{"command":"publish","tags":["', [("a", "1"), ('b","c', "2")], '"}')
def test_what_is_read_as_similar_is_what_is_read_one_by_one(
    between: str, head: str, parts: list[tuple[str, str]], end: str
) -> None:
    objects = "".join(head + tags + between + text + end for tags, text in parts).encode()
    if (similar := read_similar(objects)) is not None:
        found = one_by_one(objects)
        assert found is not None
        assert similar_lines(similar) == lines(found)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "command": st.sampled_from(["publish", "ping", None, 5]),
        "tags": st.lists(st.text(max_size=3), max_size=2) | st.none() | st.just("a"),
        "data": st.text(max_size=5) | st.none() | st.just({}),
        "more": st.none(),
    },
)


@given(st.lists(FIELDS, max_size=4), st.sampled_from(["", " ", "\n"]), st.sampled_from(["", "x"]))
def test_what_is_read_in_one_call_is_what_is_read_one_by_one(
    objects: list[dict[str, object]], blank: str, end: str
) -> None:
    stream = (blank.join(map(json.dumps, objects)) + end).encode()
    many = read_many(stream)
    if many is not None:
        assert many == one_by_one(stream)
    known = all(
        set(each) <= {"command", "tags", "data"}
        and not isinstance(each.get("command"), int)
        and not isinstance(each.get("tags"), str)
        and not isinstance(each.get("data"), dict)
        for each in objects
    )
    assert (many is not None) == (known and not end)


def test_similar_ones_are_gathered_in_order_with_others() -> None:
    similar = read_similar(publish("1", '["a"]') + publish("2", '["b","c"]'))
    assert similar is not None
    gathering = Gathering()
    assert not gathering
    gathering.add_similar(similar)
    assert gathering
    both = b"publish a 1\npublish b,c 2\n"
    assert gathering.batch().whole == (both, 2)
    assert gathering.add(Request("publish", ["b", "c"], "3"))
    gathering.add_similar(similar)
    assert gathering.batch().whole == (both + b"publish b,c 3\n" + both, 5)
    assert gathering.batch().tag_lists == [b"a", b"b,c", b"b,c", b"a", b"b,c"]
    gathering.add_similar(similar)
    assert gathering.batch().whole == (both + b"publish b,c 3\n" + both + both, 7)


def test_similar_ones_behind_others_are_not_made_runs() -> None:
    similar = read_similar(publish("1", '["a"]') + publish("2", '["b","c"]'))
    alike = read_alike(publish("1") * 2)
    assert similar is not None
    assert alike is not None
    both = b"publish a 1\npublish b,c 2\n"
    one, two, lines = Gathering(), Gathering(), Gathering()
    assert one.add(Request("publish", ["ü"], "0"))
    one.add_similar(similar)
    assert one._runs == []
    assert one.batch().whole == ("publish ü 0\n".encode() + both, 3)
    two.add_all(alike)
    two.add_similar(similar)
    assert two.batch().whole == (b"publish a,b 1\n" * 2 + both, 4)
    assert lines.add(Request("publish", ["ü"], "0\n"))
    lines.add_similar(similar)
    assert b"".join(wire for _, wire, _ in lines.batch().runs) == "publish ü 0\n\n".encode() + both
    assert not lines.batch().framable


def test_runs_of_either_kind_are_gathered_in_order() -> None:
    gathering = Gathering()
    alike = read_alike(publish("1") + publish("2"))
    assert alike is not None
    gathering.add_all(alike)
    assert gathering.batch().runs == [(b"a,b", b"publish a,b 1\npublish a,b 2\n", 2)]
    assert gathering.add(Request("publish", ["a", "b"], "3"))
    assert gathering.batch().runs == [(b"a,b", b"publish a,b 1\npublish a,b 2\npublish a,b 3\n", 3)]
    assert gathering.add(Request("publish", ["c"], "4"))
    gathering.add_all(alike)
    whole = (
        b"publish a,b 1\npublish a,b 2\npublish a,b 3\npublish c 4\npublish a,b 1\npublish a,b 2\n"
    )
    assert gathering.batch().whole == (whole, 6)
    assert gathering.batch().tag_lists == [b"a,b"] * 3 + [b"c"] + [b"a,b"] * 2
    assert gathering.add(Request("publish", ["c"], "5\n6"))
    batch = gathering.batch()
    assert not batch.framable
    assert [(tags, count) for tags, _, count in batch.runs] == [
        (b"a,b", 2),
        (b"a,b", 1),
        (b"c", 1),
        (b"a,b", 2),
        (b"c", 1),
    ]
    assert batch.runs[-1] == (b"c", b"publish c 5\n6\n", 1)
