"""What was trimmed, as exactly as resuming needs it.

Whether a client that stopped at id n missed nothing depends on what retention has taken
since. The highest id ever trimmed answers for everything; but it rises all the time, and a
quiet room whose last hundred messages are kept for ever would never count as recovered. So
for each tag that a rule is about, the highest id trimmed from it is kept as well.

The answer may be no without a loss, and is never yes with one: where tags are too many to
keep apart, or the rules changed, `untracked` says up to where nothing is known.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from mist.history.block_store import State
from mist.history.retention import any_match
from mist.message import TagSet

__all__ = ["covers", "recovered", "shrink"]

_MAX_TAGS: Final = 100_000  # kept apart


def recovered(
    state: State, tracked: Mapping[str, int], alternatives: Iterable[TagSet] | None, after: int
) -> bool:
    """Whether nothing that was wanted has been trimmed of what lies behind `after`.

    An alternative asks for messages that have all of its tags. So one tag of it from which
    nothing behind `after` was trimmed is enough.
    """
    if after >= state.gone:
        return True
    # What an erasure took isn't known tag by tag: their very names may have had to go.
    if alternatives is None or after < max(state.untracked, state.erased):
        return False
    return all(
        any(any_match(state.patterns, tag) and after >= tracked.get(tag, 0) for tag in alternative)
        for alternative in alternatives
    )


def covers(state: State, patterns: tuple[str, ...]) -> State:
    """The state in which trimming under `patterns` may begin.

    A rule that is new knows nothing of what was trimmed before it.
    """
    if patterns == state.patterns:
        return state
    known = set(patterns) <= set(state.patterns)
    untracked = state.untracked if known else state.trimmed
    return attrs.evolve(state, patterns=patterns, untracked=untracked)


def shrink(state: State, tracked: dict[str, int]) -> tuple[State, dict[str, int]] | None:
    """Forget the older half where too many tags are tracked; None where they are not."""
    if len(tracked) <= _MAX_TAGS:
        return None
    newest_first = sorted(tracked.items(), key=lambda item: item[1], reverse=True)
    kept = dict(newest_first[: _MAX_TAGS // 2])
    forgotten = newest_first[_MAX_TAGS // 2][1]
    return attrs.evolve(state, untracked=max(state.untracked, forgotten)), kept
