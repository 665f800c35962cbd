"""Messages of 64 tags where there are many subscriptions to a few of these."""

import random
from typing import Final

from mist.bench.dialect import Line
from mist.bench.fairness.arena import Arena, Attack
from mist.bench.fairness.posting import Poster, json_body
from mist.bench.fairness.subscribing import TAGS, Browsers, frame

__all__ = ["match", "match_batch", "million"]

_MESSAGE_TAGS: Final = 64  # the default limit
_VOCABULARY: Final = [f"v{number}" for number in range(100)]
_JSON: Final = "mist.json"  # the subprotocol in which a token may publish
_PIECE: Final = 10_000  # subscriptions sent at once


def match(arena: Arena, *, connections: int, messages: int) -> Attack:
    """Messages that match much of what the browsers of one token are subscribed to.

    Args:
        messages: that are sent at once, on a WebSocket.
    """
    browsers = _subscribed(arena, connections)
    publisher = browsers.connect_one(_JSON)
    message = frame(command="publish", tags=TAGS, data="x")

    def play() -> int:
        before = publisher.refusals
        publisher.send(message * messages + frame(command="ping"))
        arena.crowd.wait()
        return publisher.refusals - before

    return Attack(
        "match, one" if messages == 1 else "match, pipelined",
        f"{browsers.about}; {messages:,} of 64 tags at once",
        play,
    )


def match_batch(arena: Arena, *, connections: int, messages: int) -> Attack:
    """The same messages, in one request."""
    browsers = _subscribed(arena, connections)
    poster = Poster(arena, browsers.TOKEN)
    body = json_body([TAGS] * messages)
    return Attack(
        "match, batch",
        f"{browsers.about}; {messages:,} of 64 tags in a request",
        lambda: poster.post(body),
    )


def _subscribed(arena: Arena, connections: int) -> Browsers:
    browsers = Browsers(arena, connections)
    browsers.connect()
    browsers.subscribe()
    return browsers


def million(arena: Arena, *, subscriptions: int, messages: int) -> Attack:
    """Tag lists that are new each time, where a service has very many subscriptions.

    Args:
        messages: that are sent at once.
    """
    line = Line()
    chance = random.Random(2)  # noqa: S311  # the same each time
    fence = b"pong\n"
    subscriber = arena.crowd.add(arena.line.connect(), fence, b"error ")
    publisher = arena.crowd.add(arena.line.connect(), fence, b"error ")
    for first in range(0, subscriptions, _PIECE):
        count = min(_PIECE, subscriptions - first)
        sets = [chance.sample(_VOCABULARY, chance.randint(3, 5)) for _ in range(count)]
        subscriber.send(b"".join([line.subscribe(each) for each in sets]), marks=0)
    subscriber.send(b"ping\n")
    arena.crowd.wait()

    def play() -> int:
        lists = [chance.sample(_VOCABULARY, _MESSAGE_TAGS) for _ in range(messages)]
        publisher.send(b"".join([line.publish(tags, b"x") for tags in lists]) + b"ping\n")
        arena.crowd.wait()
        return 0

    return Attack(
        "million, one" if messages == 1 else "million, pipelined",
        f"{subscriptions:,} subscriptions of a service over 100 tags; "
        f"{messages:,} new lists of 64 tags at once",
        play,
    )
