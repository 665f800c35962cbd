"""Interning: tags share their strings, and tell the rarest of them first."""

from hypothesis import given
from hypothesis import strategies as st

from mist.index.intern import Tags
from mist.index.nodes import Key

keys = st.frozensets(st.sampled_from("abcdef"), min_size=1).map(lambda tags: tuple(sorted(tags)))


@given(st.lists(keys))
def test_tags_come_rarest_first_and_by_name_where_equally_rare(entries: list[Key]) -> None:
    tags: Tags[int] = Tags()
    uses = dict.fromkeys("abcdef", 0)
    for key in entries:
        for name in key:
            uses[name] += 1
        wanted = sorted(key, key=lambda name: (uses[name].bit_length(), name))
        acquired, rarest, others = tags.acquire(list(key))
        assert acquired == key
        assert [rarest.name, *others] == wanted
        assert [tag.name for tag in tags.of(key)] == wanted


def test_a_tag_has_one_string_and_goes_with_its_last_use() -> None:
    tags: Tags[int] = Tags()
    first, _, _ = tags.acquire(["one", "two"])
    again, _, _ = tags.acquire(["".join(["t", "wo"])])
    assert again[0] is first[1]
    tags.release(tags.of(first))
    assert list(tags) == ["two"]
    tags.release(tags.of(again))
    assert len(tags) == 0
    assert not any(tags.table)
