"""Answers of polls as bytes, and that polls which are told the same share them."""

import itertools

from mist.bus.messages import BusMessage
from mist.http.bus_answers import NOTHING_YET, ChunkForm, encode_answer


def message(number: int, data: bytes = b'"x"', channel: str = "/foo") -> BusMessage:
    return BusMessage(number, number, channel, data, 0.0)


def test_a_chunk_is_framed_for_http_and_for_the_client() -> None:
    answer = encode_answer([message(1)], {})
    assert answer == b'[{"global_id":1,"message_id":1,"channel":"/foo","data":"x"}]'
    wire = ChunkForm().join([message(1)], {})
    assert wire == b"%x\r\n%b\r\n|\r\n\r\n" % (len(answer) + 5, answer)
    assert NOTHING_YET == b"7\r\n[]\r\n|\r\n\r\n"


def test_a_separator_within_is_doubled() -> None:
    (message_with_one,) = [message(1, b"[\r\n|\r\n]")]
    assert b"[\r\n||\r\n]" in ChunkForm().join([message_with_one], {})


def test_the_same_messages_are_the_same_bytes_object() -> None:
    form = ChunkForm()
    first = form.join([message(1), message(2)], {})
    assert form.join([message(1), message(2)], {}) is first
    others = [[message(1)], [message(1), message(2, channel="/bar")], [message(2), message(1)]]
    assert len({first, *[form.join(each, {}) for each in others]}) == 4


def test_a_status_is_of_one_poll() -> None:
    form = ChunkForm()
    form.join([message(1)], {})
    assert b'"/__status","data":{"/foo":1}' in form.join([message(1)], {"/foo": 1})
    assert b"/__status" not in form.join([message(1)], {})


def test_what_is_remembered_is_bounded() -> None:
    form = ChunkForm()
    large = b'"%b"' % (b"x" * 1_000_000)
    for number in range(50):
        form.join([message(number, large)], {})
        form.join([message(number)], {})
    held = [value for value in vars(form).values() if isinstance(value, dict)]
    assert len(held) == 1
    assert sum(map(len, itertools.chain(*[each.values() for each in held]))) < 5_000_000
