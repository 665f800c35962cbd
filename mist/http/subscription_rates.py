"""Subscriptions by rate: the tag sets of most deliveries, estimated while they are watched.

It is asked again and again by who looks, and made at most once a second.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.broker.broker import Broker
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations

__all__ = ["OPERATIONS", "routes"]

_MOST: Final = 20  # tag sets
_CACHED: Final = 1.0  # seconds


class RatedSubscription(msgspec.Struct, frozen=True):
    """A tag set, how many are subscribed to it, and the deliveries a second that are due to them.

    Deliveries are estimated: messages that match, times subscribers.
    """

    tags: Sequence[str]
    subscribers: int
    delivered_rate: float


class SubscriptionRates(msgspec.Struct, frozen=True):
    """The tag sets of a server that most deliveries are for, most first, at most 20.

    Attributes:
        seconds: over which was counted, 35 at most. It begins with the first question, whose answer
            is empty, and ends half a minute after the last.
    """

    seconds: float
    subscriptions: Sequence[RatedSubscription]


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/stats/subscriptions`."""
    rates = _Rates(context.hub.broker)

    async def subscriptions(request: Request) -> Response:
        await context.access.service(request)
        return answer(rates.current())

    return [Route("/v1/stats/subscriptions", subscriptions)]


class _Rates:
    """What is answered, for a second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._made = SubscriptionRates(0.0, ())
        self._due = -1.0

    def current(self) -> SubscriptionRates:
        now = trio.current_time()
        if now >= self._due:
            self._due = now + _CACHED
            seconds, found = self._broker.top_tag_sets(_MOST)
            self._made = SubscriptionRates(
                round(seconds, 3),
                [
                    RatedSubscription(
                        group.tag_list.decode().split(","), group.subscribers, round(rate, 3)
                    )
                    for group, rate in found
                ],
            )
        return self._made


OPERATIONS: Final[Operations] = {
    "/v1/stats/subscriptions": {
        "get": Operation(
            summary="Subscriptions by rate",
            details="Of the server that answers. Counting begins with the first question and ends "
            "half a minute after the last.",
            who=SERVICE,
            answers={
                200: Answer(
                    "The tag sets that most deliveries are for, most first; estimated.",
                    SubscriptionRates,
                    {
                        "seconds": 30.0,
                        "subscriptions": [
                            {"tags": ["news", "room:1"], "subscribers": 40, "delivered_rate": 80.0}
                        ],
                    },
                )
            },
        )
    },
}
