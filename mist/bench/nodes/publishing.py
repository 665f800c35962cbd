"""Publishing at one node, to a subscriber at the other: messages a second, and CPU for each.

Full blocks: so many messages are in flight that every append takes as many as one may hold. A
message counts once the publisher has the proof that it was handled, and the subscriber has it.
"""

import time
from collections.abc import Sequence
from typing import Final

import attrs

from mist.bench.load import Load, Run, Target, open_load
from mist.bench.nodes.figure import Measured
from mist.bench.nodes.realm import Realm, RunningNode
from mist.bench.script import NEVER_AGAIN, lists_that_never_come_again
from mist.history import MAX_GROUP

__all__ = ["measure_publishing"]

SIZE: Final = 100  # bytes of data in a message
STALL_TIMEOUT: Final = 30.0  # seconds that an engine's disk may keep all waiting
QUIET: Final = 5.0  # seconds without a delivery after which what is missing counts as lost
_REPEATED: Final = 100  # tag lists that messages have in turns
_WINDOW: Final = 4 * MAX_GROUP  # messages in flight, fewer than an outbox takes
_MOST: Final = 4_000_000  # messages a second that could be published; time ends a round
_REST: Final = 0.5  # seconds between rounds, for what nodes do afterwards


@attrs.frozen
class _Round:
    """One round.

    Attributes:
        cpus: seconds of the publishers' node, the other one and the engine.
    """

    run: Run
    cpus: Sequence[float | None]


def measure_publishing(
    realm: Realm, *, seconds: float, rounds: int, never_again: int = NEVER_AGAIN
) -> list[Measured]:
    """With tag lists that come in turns, with a subscriber at the other node and with none there;
    and with such as hardly come again.

    Args:
        seconds: of each round.
        never_again: messages that get a tag list each before the first comes again.
    """
    few = _measure(realm, realm.other, _REPEATED, seconds, rounds)
    unasked = _measure(realm, realm.one, _REPEATED, seconds, rounds)
    lists = lists_that_never_come_again(never_again)
    many = _measure(realm, realm.other, lists, seconds, rounds)
    return [
        *_figures("publish", _REPEATED, few),
        _cpu("nobody asks, other node CPU", [(each.run, each.cpus[1]) for each in unasked]),
        *_figures("publish new tags", lists, many),
    ]


def _measure(
    realm: Realm, subscribers: RunningNode, lists: int, seconds: float, rounds: int
) -> list[_Round]:
    target = Target(realm.one.line, subscribers.line, quiet=QUIET)
    messages = max(int(seconds * _MOST), 1)
    with open_load(target, 1, 1, messages=messages, size=SIZE, lists=lists) as load:
        load.stall_timeout = STALL_TIMEOUT
        return [_round(realm, load, messages, seconds) for _ in range(rounds)]


def _round(realm: Realm, load: Load, messages: int, seconds: float) -> _Round:
    time.sleep(_REST)
    meters = (realm.one.cpu, realm.other.cpu, realm.engine.cpu)
    before = [meter() for meter in meters]
    run = load.flood(messages, _WINDOW, seconds)
    time.sleep(_REST)  # until a node that nobody waits for has all of it, too
    spent = [
        None if begin is None or (end := meter()) is None else end - begin
        for begin, meter in zip(before, meters, strict=True)
    ]
    return _Round(run, spent)


def _figures(name: str, lists: int, rounds: Sequence[_Round]) -> list[Measured]:
    rates = [each.run.messages / each.run.seconds for each in rounds]
    note = _wrong([each.run for each in rounds]) or f"{lists:,} tag lists"
    names = ("node", "other node", "engine")
    return [
        Measured(name, "messages/s", rates, note),
        *[
            _cpu(f"{name}, {whose} CPU", [(each.run, each.cpus[n]) for each in rounds])
            for n, whose in enumerate(names)
        ],
    ]


def _cpu(name: str, spent: Sequence[tuple[Run, float | None]]) -> Measured:
    values = [seconds * 1e6 / run.messages for run, seconds in spent if seconds is not None]
    note = "" if len(values) == len(spent) else "this system does not tell"
    return Measured(name, "µs/message", values, note)


def _wrong(runs: Sequence[Run]) -> str:
    counts = {
        "lost": sum(run.lost for run in runs),
        "repeated": sum(run.repeated for run in runs),
        "reordered": sum(run.reordered for run in runs),
    }
    return ", ".join([f"{count:,} {name}" for name, count in counts.items() if count])
