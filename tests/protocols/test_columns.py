"""Messages written from columns: what a form writes of entries, without an object for each."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist.broker.broker import Broker
from mist.broker.matches import Match
from mist.http.event_chunks import ChunkedEventForm
from mist.message import format_tags
from mist.protocols.event_forms import EventForm
from mist.protocols.frames.forms import JSON_FRAMES
from mist.protocols.json.forms import JSON_OBJECT_FRAMES, JSON_OBJECTS
from mist.protocols.line.forms import PLAIN
from mist.protocols.subjects.forms import subject_form
from mist.wire import Batch, Entry, TagList, WireForm, record
from tests.broker.test_broker import make_outbox, take_all

FORMS = [
    JSON_FRAMES,
    JSON_OBJECT_FRAMES,
    JSON_OBJECTS,
    subject_form(b"7"),
    EventForm(None),
    ChunkedEventForm(None),
]

tags = st.sampled_from(["a", "b", "order:17", 'q"', "back\\slash", "Ä", "\u2028"])
tag_lists = st.one_of(
    st.sampled_from([".a.b", ".c", ".Ä.*x"]),
    st.sets(tags, min_size=1).map(lambda some: format_tags(frozenset(some))),
    st.just(".a,b"),
)
datas = st.one_of(
    st.sampled_from([b"", b"x", b"x" * 200, b'{"a":1}', b"\\n", b"\xff", b"a\nb", b"\r\n", b"\0"]),
    st.text().map(str.encode),
    st.binary(),
)
messages = st.lists(st.tuples(tag_lists, datas), min_size=1, max_size=6)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(messages)
@example([(".a.b", b"1"), (".a.c", b"2")])
@example([(".a.b", b"1"), (".a.c", b"22")])
@example([("a,b", b"1"), ("b", b"2\n\x85\x7f")])
def test_what_is_written_from_columns_is_what_is_written_of_entries(
    form: WireForm, sent: list[tuple[str, bytes]]
) -> None:
    lists = [tag_list.encode() for tag_list, _ in sent]
    entries: list[Entry] = [
        (TagList(None, tag_list), record(tag_list, data), 1)
        for tag_list, (_, data) in zip(lists, sent, strict=True)
    ]
    joined = form.join_columns(lists, [data for _, data in sent])
    if joined is not None:
        framable = all(b"\n" not in data for _, data in sent)
        assert (joined, len(sent)) == form.join(entries, framable=framable)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_most_messages_are_is_written_from_columns(form: WireForm) -> None:
    lists = [b".a.b", b".order.17"] if form.name == "subjects" else [b"a,b", b"order:17"]
    assert form.join_columns(lists, [b"x", b"text"]) is not None


@pytest.mark.parametrize("form", [*FORMS, PLAIN], ids=lambda form: form.name)
@pytest.mark.parametrize("cached", [False, True])
def test_no_match_is_made_for_each_message(
    form: WireForm, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of lists that come again, nor of such that don't, in order or not."""
    broker = Broker()
    outbox = make_outbox(broker, form)
    subjects = form.name == "subjects"
    broker.subscribe(outbox, frozenset({".a.>" if subjects else "a"}))
    written = [f".a.{n}" if subjects else f"order:{n},a" for n in range(100)]
    batch = Batch.of_columns([each.encode() for each in written], [b"x"] * 100)
    expected = [",".join(sorted(each.split(","))).encode() for each in written]
    if cached:
        for _ in range(100):
            broker.publish(batch)
            take_all(outbox)
        # Not of all: which are kept is a matter of hashes, too.
        assert len(broker._directory.matches) > 50
    made: list[bytes] = []
    monkeypatch.setattr(Match, "along", lambda route, canonical: made.append(canonical))
    broker.publish(batch)
    assert made == []
    entries: list[Entry] = [(TagList(None, each), record(each, b"x"), 1) for each in expected]
    assert take_all(outbox) == form.join(entries, framable=True)[0]
