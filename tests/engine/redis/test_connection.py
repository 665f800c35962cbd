"""Commands as Redis reads them, whatever their arguments and however long."""

from typing import Any, cast

import hiredis
import pytest

from mist.engine.redis.connection import Command, _pieces

_pack_command = cast(Any, hiredis).pack_command


@pytest.mark.parametrize(
    "command",
    [
        ("PING",),
        ("XREAD", "COUNT", 1, "BLOCK", 500, "STREAMS", "{mist:é}:log", 0),
        ("EVALSHA", "abc", 2, "k1", "k2", "", b"", -1, b"\r\n\0" * 10_000, "é", 1 << 60, b"x"),
        ("HSET", b"b" * (1 << 14), "part", b"b" * ((1 << 14) - 1)),
    ],
)
def test_a_command_is_written_as_hiredis_does(command: Command) -> None:
    assert b"".join(_pieces(command)) == _pack_command(tuple(command))


def test_a_long_argument_is_passed_on_as_it_is() -> None:
    body = bytes(1 << 20)
    assert any(piece is body for piece in _pieces(("SET", "key", body)))
