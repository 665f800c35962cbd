"""Readers that all replay the whole history at once."""

from functools import partial
from pathlib import Path
from typing import Final

from mist.bench.dialect import Line
from mist.bench.fairness.arena import Arena, Attack
from mist.bench.history.loops import run
from mist.bench.history.stored import groups, script_of, tidy_up, url_of
from mist.bench.script import TAG, tag_lists
from mist.history import Durability
from mist.history.opening import open_history

__all__ = ["replay", "store"]

_LISTS: Final = 1_000


def store(path: Path, messages: int) -> None:
    """Make a history of so many messages."""
    run(partial(_store, path, messages))


async def _store(path: Path, messages: int) -> None:
    lists = tag_lists(_LISTS)
    script = script_of(lists, messages)
    async with await open_history(url_of(path), durability=Durability.PROCESS) as history:
        for group in groups(script, lists, messages):
            await history.append(group)
        await tidy_up(history)


def replay(arena: Arena, *, readers: int, messages: int) -> Attack:
    """Readers over TCP that ask for all that is kept, at once."""

    def again() -> None:
        arena.crowd.leave()
        for _ in range(readers):
            arena.crowd.add(arena.line.connect(), Line.fenced, b"error ")

    def play() -> int:
        for peer in arena.crowd.peers:
            peer.send(Line().replay([TAG]) + Line.fence)
        arena.crowd.wait()
        return arena.crowd.refusals

    return Attack("replay", f"{readers} readers of {messages:,} messages", play, again)
