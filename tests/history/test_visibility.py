"""Targeted delivery from a history: who may get what is read."""

from mist.attributes import Attributes
from mist.history import Stored
from mist.history.visibility import envelope_of, visible_to
from mist.wire import Entry, TagList


def entry(tags: str, data: str = "x") -> Entry:
    return TagList(frozenset(tags.split(","))), f"publish {tags} {data}\n".encode(), 1


def stored(audience: str | None, *tags: str) -> Stored:
    entries = [entry(each) for each in tags or ("a",)]
    return Stored(entries, 5.0, "p", True, audience, {"k": b"v"}, firsts=range(1, 1 + len(entries)))


def test_an_audience_decides_for_all_of_a_publication() -> None:
    publication = stored("users=1", "a", "b")
    assert visible_to(publication, Attributes(user="1")) is publication
    assert visible_to(publication, Attributes(user="2")) is None
    assert visible_to(stored(None), Attributes(user="2")) is not None


def test_a_site_gets_its_own_and_of_others_what_is_global() -> None:
    red = Attributes(others={"site": "red"})
    mixed = stored(None, "a", "/global/x", "b", "/global/y")
    found = visible_to(mixed, red)
    assert found is not None
    assert [
        (each[0].canonical, first) for each, first in zip(found.entries, found.firsts, strict=True)
    ] == [
        (b"/global/x", 2),
        (b"/global/y", 4),
    ]
    assert visible_to(stored("site=red"), red) is not None
    assert visible_to(stored("site=blue"), red) is None


def test_one_that_cannot_be_read_is_for_nobody() -> None:
    for attributes in (Attributes(), Attributes(client="?"), Attributes(user="1")):
        assert visible_to(stored("no audience"), attributes) is None


def test_what_messages_have_beside_goes_with_them() -> None:
    envelope = envelope_of(stored("users=1"))
    assert envelope.time == 5.0
    assert envelope.publisher == "p"
    assert envelope.meta == {"k": b"v"}
    assert envelope.audience is not None
    assert envelope.audience.text == "users=1"
