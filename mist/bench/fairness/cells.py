"""Which attacks there are, and how large."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import attrs

from mist.bench.cell import Cell
from mist.bench.fairness.arena import Arena, Attack, open_arena, play
from mist.bench.fairness.matching import match, match_batch, million
from mist.bench.fairness.posting import long_line, request
from mist.bench.fairness.replays import replay, store
from mist.bench.fairness.subscribing import closing, subscribing
from mist.bench.fairness.wide import forms_nats, rooms, wide, wide_nats
from mist.bench.history.disk import scratch
from mist.bench.history.stored import url_of
from mist.bench.report import Result
from mist.bench.site import Site

__all__ = ["ATTACKS", "fairness_cells"]

ATTACKS: Final = ("match", "million", "subscribe", "request", "replay", "wide")
_BATCH: Final = 50  # messages
_BODY_TAGS: Final = 180_000
_READERS: Final = 10
# Nobody answers pings, and none of the attacks is about that.
_SILENT: Final = ("--ping-seconds", "3600", "--idle-seconds", "7200")
_KEEPING: Final = ("--durability", "process", "--keep-bytes", "1024GiB")


@attrs.frozen
class _Kind:
    """An attack that is measured.

    Attributes:
        stored: messages in the history; 0 for none.
        nats: whether the server listens for NATS.
    """

    family: str
    make: Callable[[Arena], Attack]
    stored: int = 0
    nats: bool = False


def fairness_cells(
    attacks: Sequence[str] = (),
    *,
    seconds: float | None = None,
    rounds: int | None = None,
    quick: bool = False,
) -> list[Cell]:
    """Attacks, each on a server of its own.

    Args:
        attacks: of `ATTACKS`; none for all.
        seconds: of each phase, at least; None for two.
        rounds: None for three.
        quick: one round of half a second, and a tenth of the connections or messages.
    """
    seconds = seconds or (0.5 if quick else 2.0)
    rounds = rounds or (1 if quick else 3)
    return [
        Cell(
            "fairness",
            f"attack: {kind.family}",
            None,
            partial(_measure, kind, seconds=seconds, rounds=rounds),
        )
        for kind in _kinds(10 if quick else 1)
        if not attacks or kind.family in attacks
    ]


def _kinds(divisor: int) -> list[_Kind]:
    browsers: Any = {"connections": 100 // divisor}
    many = 1_000_000 // divisor
    posts: Any = {"messages": 3_000 // divisor, "tags": 64}
    one_post: Any = {"messages": 1, "tags": _BODY_TAGS // divisor}
    return [
        _Kind("match", partial(match, messages=1, **browsers)),
        _Kind("match", partial(match_batch, messages=_BATCH, **browsers)),
        _Kind("match", partial(match, messages=_BATCH, **browsers)),
        _Kind("million", partial(million, subscriptions=many, messages=1)),
        _Kind("million", partial(million, subscriptions=many, messages=5_000 // divisor)),
        _Kind("subscribe", partial(subscribing, **browsers)),
        _Kind("subscribe", partial(closing, **browsers)),
        _Kind("request", partial(request, right=False, **posts)),
        _Kind("request", partial(request, right=True, **posts)),
        _Kind("request", partial(request, right=False, **one_post)),
        _Kind("request", partial(request, right=True, **one_post)),
        _Kind("request", long_line),
        _Kind("replay", partial(replay, readers=_READERS, messages=many), stored=many),
        _Kind("wide", partial(wide, subscribers=10_000 // divisor)),
        _Kind("wide", partial(wide_nats, subscriptions=100_000 // divisor), nats=True),
        _Kind("wide", partial(rooms, subscribers=300 // divisor, tags=500)),
        _Kind("wide", partial(forms_nats, messages=3_000 // divisor, subscriptions=120), nats=True),
    ]


def _measure(kind: _Kind, _: Site, /, *, seconds: float, rounds: int) -> Result:
    with ExitStack() as stack:
        options: tuple[str, ...] = _SILENT
        history = "none"
        if kind.stored:
            path = stack.enter_context(scratch(None)) / "history.db"
            store(path, kind.stored)
            options, history = (*_SILENT, *_KEEPING), url_of(path)
        arena = stack.enter_context(open_arena(*options, history=history, nats=kind.nats))
        return play(arena, kind.make(arena), seconds, rounds)
