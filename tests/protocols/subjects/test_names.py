"""Names of a NATS client's subscriptions."""

from mist.protocols.subjects.names import Names


def named(*pairs: tuple[bytes, bytes]) -> Names:
    names = Names()
    for sid, subject in pairs:
        names.note(sid, subject)
    return names


def test_a_name_means_the_sid_or_else_the_subject() -> None:
    names = named((b"1", b"foo"), (b"2", b"foo"), (b"foo", b"bar"), (b"3", b"baz"))
    assert names.meant(b"1") == [b"1"]
    assert names.meant(b"foo") == [b"foo"]
    assert names.meant(b"baz") == [b"3"]
    assert names.meant(b"nothing") == [b"nothing"]
    names.forget(b"foo")
    assert names.meant(b"foo") == [b"1", b"2"]


def test_a_sid_in_use_stays_what_it_was_unless_it_ends_by_itself() -> None:
    names = named((b"1", b"foo"), (b"1", b"bar"))
    assert names.awaiting(b"foo") == b"1"
    assert names.awaiting(b"bar") is None
    names.end_after(b"1", 1)
    names.note(b"1", b"bar")
    assert names.awaiting(b"foo") is None
    assert names.awaiting(b"bar") == b"1"
    assert not names.is_last(b"1")


def test_only_a_thousand_that_end_by_themselves_are_remembered() -> None:
    names = named((b"x", b"foo"))
    for n in range(1001):
        names.note(b"%d" % n, b"inbox.%d" % n)
        names.end_after(b"%d" % n, 1)
    assert len(names) == 1001
    assert names.awaiting(b"inbox.0") is None
    assert names.awaiting(b"inbox.1") == b"1"
    assert names.awaiting(b"foo") == b"x"


def test_what_is_forgotten_leaves_nothing() -> None:
    names = named((b"1", b"foo"), (b"2", b"foo"))
    names.end_after(b"2", 5)
    names.end_after(b"unknown", 5)
    names.note(b"3", b"foo", "q")
    assert [names.queue(sid) for sid in (b"1", b"3", b"unknown")] == ["", "q", ""]
    for sid in (b"1", b"2", b"3", b"unknown"):
        names.forget(sid)
    assert not len(names)
    assert names.awaiting(b"foo") is None
    assert not names._sids
    assert not names._ending
    assert not names._queues


def test_one_sid_of_a_subject_and_several_are_alike() -> None:
    names = named((b"1", b"a"), (b"2", b"a"), (b"3", b"b"))
    assert names.meant(b"a") == [b"1", b"2"]
    assert names.meant(b"b") == [b"3"]
    assert names.awaiting(b"a") == b"1"
    names.forget(b"1")
    assert names.meant(b"a") == [b"2"]
    names.forget(b"2")
    assert names.awaiting(b"a") is None
    assert names.meant(b"a") == [b"a"]
