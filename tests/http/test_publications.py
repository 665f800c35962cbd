"""A long list of messages is taken apart some at a time, just as if it were all at once."""

import gc
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist import audience
from mist.auth import Grant
from mist.errors import MistError
from mist.http import publications
from mist.http.problems import Problem
from mist.http.publications import Reading
from mist.message import Limits

TEXTS = st.text(alphabet='},{[]"\\ aä', max_size=8)
MESSAGES = st.fixed_dictionaries({"tags": st.just(["a"]), "data": TEXTS})
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")])


def read(body: bytes) -> list[bytes] | tuple[int, str]:
    """The data of all messages; or what is wrong."""
    reading = Reading(Limits())
    try:
        for _ in reading.steps(body, lines=False):
            pass
    except Problem as problem:
        return problem.status, problem.detail
    except MistError as error:
        return 400, str(error)
    return [data for _, data in reading.messages]


def at_once(body: bytes) -> list[bytes] | tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publications, "_PIECE", len(body))
        return read(body)


@given(st.lists(MESSAGES, max_size=8), SPACES, st.integers(1, 40))
def test_a_list_is_the_same_however_it_is_cut(
    messages: list[dict[str, object]], spaces: tuple[str, str], size: int
) -> None:
    body = json.dumps(messages, separators=spaces, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publications, "_PIECE", size)
        found = read(body)
    assert found == at_once(body)
    if messages:
        assert found == [str(each["data"]).encode() for each in messages]


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.integers(1, 40), st.data())
def test_what_is_wrong_is_told_just_the_same(
    messages: list[dict[str, object]], size: int, data: st.DataObject
) -> None:
    body = json.dumps(messages, separators=(",", ":")).encode()
    place = data.draw(st.integers(1, len(body)))
    odd = data.draw(st.sampled_from([b",", b"},", b"{", b"]", b"[", b'"', b"\xff", b" ", b""]))
    body = body[:place] + odd + body[place + data.draw(st.integers(0, 1)) :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publications, "_PIECE", size)
        assert read(body) == at_once(body)


@pytest.mark.parametrize(
    "body", [b'[{"a":1},]', b'[{"a":1},{"a":1},]', b"[,]", b'[{"a":1},,{"a":1}]', b'[{"a":1}]]']
)
def test_a_list_with_too_many_commas_is_no_list(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "_PIECE", 1)
    with pytest.raises(Problem, match="JSON is malformed"):
        list(Reading(Limits()).steps(body, lines=False))


TAGS = st.lists(st.sampled_from(["a", "b", "ä", "order:1", "Z"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(TAGS, st.integers(1, 3)), min_size=1, max_size=6), st.booleans())
def test_each_message_has_its_tags_however_many_before_it_had_the_same(
    runs: list[tuple[list[str], int]], lines: bool
) -> None:
    given = [tags for tags, count in runs for _ in range(count)]
    objects = [json.dumps({"tags": tags, "data": str(n)}) for n, tags in enumerate(given)]
    body = "\n".join(objects) if lines else f"[{','.join(objects)}]"
    reading = Reading(Limits())
    for _ in reading.steps(body.encode(), lines=lines):
        pass
    assert reading.messages == [
        (",".join(sorted(set(tags))).encode(), b"%d" % n) for n, tags in enumerate(given)
    ]


def test_tags_are_kept_as_text_alone() -> None:
    messages = [
        {"tags": [f"{number}:{tag}" for tag in range(64)], "data": "x"} for number in range(500)
    ]
    before = sum(len(each) for each in gc.get_objects() if isinstance(each, frozenset))
    reading = Reading(Limits())
    for _ in reading.steps(json.dumps(messages).encode(), lines=False):
        pass
    after = sum(len(each) for each in gc.get_objects() if isinstance(each, frozenset))
    assert len(reading.messages) == 500
    assert after - before <= 64


@given(st.lists(TAGS, min_size=1, max_size=6), st.sets(st.sampled_from(["a", "b", "Z"])))
def test_a_grant_that_is_asked_afterwards_says_what_it_had_said_meanwhile(
    lists: list[list[str]], granted: set[str]
) -> None:
    body = json.dumps([{"tags": tags, "data": ""} for tags in lists]).encode()
    grant = Grant(frozenset(f">{tag}" for tag in granted))
    asked, anybody = Reading(Limits(), grant), Reading(Limits())
    for reading in (asked, anybody):
        for _ in reading.steps(body, lines=False):
            pass
    assert anybody.granted
    for _ in anybody.ask(grant):
        assert not anybody.granted  # not yet
    assert asked.granted == anybody.granted == all(map(granted.issuperset, lists))


@pytest.mark.parametrize(("data", "most", "all_of_it"), [("},", 2, 1.2), ("},{", 1_000, 4)])
def test_no_step_takes_much_of_a_list_apart(
    data: str, most: int, all_of_it: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    split = publications._split_list

    def splitting(text: bytes) -> list[msgspec.Raw]:
        pieces.append(len(text))
        return split(text)

    monkeypatch.setattr(publications, "_split_list", splitting)
    message = {"tags": [f"tag{n}" for n in range(64)], "data": data * 20}
    body = json.dumps([message] * 3_000, separators=(",", ":")).encode()
    reading = Reading(Limits())
    assert sum(1 for _ in reading.steps(body, lines=False)) > 3_000
    assert len(reading.messages) == 3_000
    assert max(pieces) < most * publications._PIECE
    assert sum(pieces) < all_of_it * len(body)


@pytest.mark.parametrize("first", [b"", b'{"tags":["a"],"data":"x"},' * 3])
def test_what_is_no_object_is_refused_before_any_is_made(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    split = publications._split_list

    def splitting(text: bytes) -> list[msgspec.Raw]:
        made.append(len(found := split(text)))
        return found

    monkeypatch.setattr(publications, "_split_list", splitting)
    with pytest.raises(Problem, match="Expected `object`, got `int` - at "):
        list(Reading(Limits()).steps(b"[" + first + b"1," * 100_000 + b"1]", lines=False))
    assert sum(made) <= 3


def test_no_more_objects_are_split_than_one_request_may_have() -> None:
    steps = Reading(Limits()).steps(b"[" + b"{}," * 1_000_000 + b"{}]", lines=False)
    with pytest.raises(Problem, match="at most 10000 messages"):
        list(steps)
    assert next(steps, "ended") == "ended"


def test_an_object_of_far_too_many_tags_is_not_even_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "_split_list", None)
    body = json.dumps([{"tags": ["a"] * 100_000, "data": "x"}]).encode()
    with pytest.raises(MistError, match="Too many tags"):
        list(Reading(Limits()).steps(body, lines=False))


def test_the_texts_of_audiences_are_made_in_the_steps_of_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = [{"tags": ["a"], "data": "x", "to": {"users": [n]}} for n in range(3)]
    reading = Reading(Limits())
    list(reading.steps(json.dumps(messages).encode(), lines=False))
    monkeypatch.setattr(audience, "write", None)  # which would be called once they are stored
    assert [each and each.text for each in reading.audiences] == ["users=0", "users=1", "users=2"]
