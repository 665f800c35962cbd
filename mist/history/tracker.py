"""Tracking of trimmed tags: whether retention has removed what a resuming client missed.

Whether a client that stopped at id n missed nothing depends on what retention has removed
since. The highest id ever trimmed is enough to tell; but it rises all the time, and a quiet room
whose last hundred messages are kept forever would never count as recovered. So for each tag that
a rule matches, the highest id trimmed from it is kept as well.

The answer may be no without a loss, and is never yes with one: where tags are too many to track
separately, or the rules changed, `untracked` is the id up to which nothing is known by tag.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from mist.addresses import is_derived
from mist.history.block_store import State
from mist.history.retention import any_match
from mist.message import TagSet

__all__ = ["covers", "recovered", "shrink"]

_MAX_TAGS: Final = 100_000  # tracked separately


def recovered(
    state: State, tracked: Mapping[str, int], alternatives: Iterable[TagSet] | None, after: int
) -> bool:
    """Whether nothing selected has been trimmed behind `after`.

    An alternative selects messages that have all of its tags. So one tag of it from which nothing
    behind `after` was trimmed is enough. Of derived tags nothing is known, though a rule for `*`
    would match them: what is trimmed is tracked by the tags that were published.
    """
    if after >= state.gone:
        return True
    # Erased tags are not tracked: their very names may have had to be erased.
    if alternatives is None or after < max(state.untracked, state.erased):
        return False
    return all(
        any(
            any_match(state.patterns, tag) and after >= tracked.get(tag, 0)
            for tag in alternative
            if not is_derived(tag)
        )
        for alternative in alternatives
    )


def covers(state: State, patterns: tuple[str, ...]) -> State:
    """The state in which trimming under `patterns` may begin.

    For a new rule nothing is known of what was trimmed before it.
    """
    if patterns == state.patterns:
        return state
    known = set(patterns) <= set(state.patterns)
    untracked = state.untracked if known else state.trimmed
    return attrs.evolve(state, patterns=patterns, untracked=untracked)


def shrink(state: State, tracked: dict[str, int]) -> tuple[State, dict[str, int]] | None:
    """Drop the older half of the tracked tags where they are too many; None where they are not."""
    if len(tracked) <= _MAX_TAGS:
        return None
    newest_first = sorted(tracked.items(), key=lambda item: item[1], reverse=True)
    kept = dict(newest_first[: _MAX_TAGS // 2])
    forgotten = newest_first[_MAX_TAGS // 2][1]
    return attrs.evolve(state, untracked=max(state.untracked, forgotten)), kept
