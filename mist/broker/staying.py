"""Who stays: recipients that were found, and that may have unsubscribed since.

A delivery to very many is made in steps, and between two of them anybody may come or go. So the
rest of them are looked for once more, each in the groups that the message matches. There may be
100,000 groups, each of another subscription, and as many recipients: what is in one group ever is
asked for that, and what may be in any is looked for in so many groups a step.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from mist.broker.matches import Matched, Recipients, Subscriber
from mist.broker.outbox import Outbox

__all__ = ["LOOKED", "looked_for", "some_at_a_time", "subscribes"]

LOOKED: Final = 16_384  # groups in which recipients are looked for in a step, 0.04 µs each


def some_at_a_time(
    recipients: Recipients, entries: Sequence[Matched]
) -> Iterator[list[Subscriber]]:
    """Recipients by as many as are looked for in a step."""
    some: list[Subscriber] = []
    looked = 0
    for each in recipients:
        some.append(each)
        looked += looked_for(each, entries)
        if looked > LOOKED:
            yield some
            some, looked = [], 0
    if some:
        yield some


def looked_for(subscriber: Subscriber, entries: Sequence[Matched]) -> int:
    """In how many groups `subscribes` looks for a subscriber, at most."""
    if isinstance(subscriber, Outbox):
        return sum([len(match.groups) for match, _, _ in entries])
    return 1


def subscribes(subscriber: Subscriber, entries: Sequence[Matched]) -> bool:
    """Whether a subscriber, which was, is still in a group that one of these matches."""
    if not isinstance(subscriber, Outbox):  # in one group ever, among perhaps 100,000 that match
        return subscriber.group is not None
    return any(subscriber in group for match, _, _ in entries for group in match.groups)
