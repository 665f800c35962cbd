"""Requests that publish: much in one, with the right to it and without; and a line as long."""

import http.client
import json
from collections.abc import Sequence
from typing import Final

from mist.bench.errors import HungUp
from mist.bench.fairness.arena import Arena, Attack
from mist.bench.fairness.peers import TookTooLong
from mist.bench.fairness.probe import TIMEOUT

__all__ = ["Poster", "json_body", "long_line", "request"]

_VARIES: Final = b"VARY"  # in a body, so that no two have a tag list in common
_LINE_TAGS: Final = 150_000


class Poster:
    """A connection that publishes by HTTP.

    Args:
        token: what it publishes with.
    """

    def __init__(self, arena: Arena, token: str) -> None:
        self._connection = http.client.HTTPConnection(*arena.http, timeout=TIMEOUT)
        arena.others.callback(self._connection.close)
        self._headers = {"X-Auth-Token": token, "Content-Type": "application/json"}

    def post(self, body: bytes) -> int:
        """One request; 1 where it was refused.

        Raises:
            TookTooLong: it was not answered in time.
            HungUp: it was not answered.
        """
        try:
            self._connection.request("POST", "/v1/messages", body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except TimeoutError as error:
            raise TookTooLong("the server took too long") from error
        except (OSError, http.client.HTTPException) as error:
            raise HungUp(f"the server did not answer a request: {error}") from error
        return int(answer.status >= 300)


def json_body(lists: Sequence[Sequence[str]]) -> bytes:
    """A body with a message for each tag list."""
    messages = [{"tags": list(tags), "data": "x"} for tags in lists]
    return json.dumps(messages, separators=(",", ":")).encode()


def request(arena: Arena, *, messages: int, tags: int, right: bool) -> Attack:
    """Requests with as many messages of as many tags, by a token.

    Args:
        right: whether it may publish.
    """
    token = "poster"
    arena.register("g*,>g*" if right else "g*", token)
    poster = Poster(arena, token)
    prefix = f"g{_VARIES.decode()}"
    body = json_body(
        [
            [f"{prefix}{number}" for number in range(first, first + tags)]
            for first in range(messages)
        ]
    )
    played = 0

    def play() -> int:
        nonlocal played
        played += 1
        return poster.post(body.replace(_VARIES, b"%04d" % played))

    name = "request, batch" if messages > 1 else "request, one"
    about = f"POST of {messages:,} messages of {tags:,} tags"
    if right:
        return Attack(name, f"{about}, with the right to publish", play)
    return Attack(f"{name}, no right", f"{about}, without the right to publish", play)


def long_line(arena: Arena) -> Attack:
    """Lines over TCP with more tags than a message may have."""
    peer = arena.crowd.add(arena.line.connect(), b"pong\n", b"error ")
    tags = b",".join(b"%06d" % number for number in range(_LINE_TAGS))
    line = b"publish %b x\nping\n" % tags

    def play() -> int:
        before = peer.refusals
        peer.send(line)
        arena.crowd.wait()
        return peer.refusals - before

    return Attack("line", f"a line of {_LINE_TAGS:,} tags", play)
