"""A request's headers by name."""

from hypothesis import given
from hypothesis import strategies as st

from mist.http.fields import Fields
from tests.deadline import deadline

NAMES = st.sampled_from([b"host", b"origin", b"x-a", b"x-b"])


@given(st.lists(st.tuples(NAMES, st.binary(max_size=2))))
def test_of_those_that_are_repeated_the_first_counts(headers: list[tuple[bytes, bytes]]) -> None:
    fields = Fields(headers)
    names = [name for name, _ in headers]
    assert set(fields) == set(names)
    for name in fields:
        assert fields[name] == next(value for found, value in headers if found == name)
        assert (name in fields.repeated) == (names.count(name) > 1)


def test_thousands_of_names_are_gone_through_once() -> None:
    names = [b"%d" % number for number in range(300_000)]
    with deadline(30):
        fields = Fields([(name, b"") for name in [*names, b"7"]])
    assert set(fields.repeated) == {b"7"}
