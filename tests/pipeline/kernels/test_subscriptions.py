from pathlib import Path

import pytest

from mist.pipeline.errors import BadInput
from mist.pipeline.kernels.subscriptions import (
    blocks,
    parse_subscriptions,
    read_file,
)


def test_each_tag_set_is_there_once_in_its_canonical_form(tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.txt"
    path.write_bytes("b,a\n\nä\r\na,b,a\n c \n".encode())
    assert read_file(path).to_pylist() == ["a,b", "ä", "c"]


def test_addresses_stay_as_they_are_asked_for() -> None:
    lines = [b"/a,x", b"=/a", b".a.*,/a", b".a.>", b"*", b"x,/a"]
    assert parse_subscriptions(lines).to_pylist() == ["/a,x", "=/a", ".a.*,/a", ".a.>", "*"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"a\n", b"a b\n"], "line 2: "),
        ([b"a,,b"], "line 1: "),
        ([b"a", b"", b"\xff"], "line 3: not UTF-8"),
        ([b"room:*"], "line 1: "),
        ([b"a,b", b",".join(b"t%d" % n for n in range(17))], "line 2: "),
        # Tags that were good one by one are still too many together.
        ([*(b"t%d" % n for n in range(17)), b",".join(b"t%d" % n for n in range(17))], "line 18: "),
        ([b"", b"\n"], "no subscription"),
        ([b"..a"], "line 1: "),
        ([b"/a", b".a.>.b"], "line 2: "),
        # Of subjects there is one in each, and everything stands alone, also when it was good.
        ([b".a", b".b", b".a,.b"], "line 3: "),
        ([b"*", b"a", b"*,a"], "line 3: "),
    ],
)
def test_a_bad_line_is_named(lines: list[bytes], expected: str) -> None:
    with pytest.raises(BadInput, match=expected) as caught:
        parse_subscriptions(lines)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: No such file"):
        read_file(tmp_path / "nowhere")


def test_blocks_together_are_all_subscriptions() -> None:
    subscriptions = parse_subscriptions([b"a", b"b", b"c,d", b"e", b"f"])
    found = [block.to_pylist() for block in blocks(subscriptions, 2)]
    assert found == [["a", "b"], ["c,d", "e"], ["f"]]
