"""Graceful shutdown: end all sessions, spread over time, and let them take what is queued."""

import random
from typing import Final

import trio

from mist.sessions.close_reason import CloseReason
from mist.sessions.hub import Hub

__all__ = ["end_sessions"]

_PER_SECOND: Final = 1_000  # sessions
_STEP: Final = 0.05  # seconds


async def end_sessions(hub: Hub, seconds: float) -> None:
    """End every session, and those that are made meanwhile. Runs until cancelled.

    One after the other, in random order, a thousand a second or faster: clients reconnect,
    here or elsewhere, and must not all do so at once. A few sessions end at once.

    Args:
        seconds: until connections are cut. Half of it at most is used here; each session has
            what is left of it to take what is queued.
    """
    ending = CloseReason(1001, "server is going away", grace=seconds)
    sessions = list(hub.sessions)
    random.shuffle(sessions)
    steps = int(min(len(sessions) / _PER_SECOND, seconds / 2) / _STEP) + 1
    for step in range(steps):
        for session in sessions[step::steps]:
            session.end(ending)
        await trio.sleep(_STEP)
    while True:
        for session in hub.sessions:
            session.end(ending)
        await trio.sleep(_STEP)
