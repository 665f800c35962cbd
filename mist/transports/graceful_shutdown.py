"""Graceful shutdown: end all sessions, spread over time, and let them take what is queued.

A publisher's reply is its fence: what it sent before has been carried out when the reply comes. So
the order matters. If subscribers' sessions ended while publishers are still read, publishers would
be told that their messages were published, and the subscribers would never have them.

    stop reading   from the moment that `Hub.ending` is set, sessions handle no command that they
                   are not at; HTTP refuses to publish what isn't stored
    finish         sessions finish the commands that they are at, the sequencer stores and delivers
                   what was submitted, and all of it is written as far as peers take it
    end            each session ends, and has what is left of the time to take what is queued
"""

import random
from typing import Final

import trio

from mist.sessions.close_reason import CloseReason
from mist.sessions.hub import Hub
from mist.sessions.session_table import ConnectedSession

__all__ = ["end_sessions"]

_PER_SECOND: Final = 1_000  # sessions
_STEP: Final = 0.05  # seconds
_LOOK: Final = 0.01  # seconds


async def end_sessions(hub: Hub, seconds: float) -> None:
    """End every session, and those that are made meanwhile. Runs until cancelled.

    First what publishers are at is finished: within a quarter of the time, after which those who
    are still at it end before all others.

    Then one after the other ends, in random order, a thousand a second or faster: clients
    reconnect, here or elsewhere, and must not all do so at once. A few sessions end at once. Last
    are WebSockets whose peers have said nothing yet, or have not authenticated.

    Args:
        hub: with `ending` set.
        seconds: until connections are cut. Half of it at most is used here to end sessions; each
            has what is left of it to take what is queued.
    """
    ending = CloseReason(1001, "server is going away", grace=seconds)
    for session in await _unfinished(hub, seconds / 4):
        session.end(ending)
    await _unfinished(hub, seconds / 4)  # until their tasks have noticed
    hub.broker.flush()
    sessions = list(hub.sessions)
    random.shuffle(sessions)
    steps = int(min(len(sessions) / _PER_SECOND, seconds / 2) / _STEP) + 1
    for step in range(steps):
        for session in sessions[step::steps]:
            session.end(ending)
        await trio.sleep(_STEP)
    while True:
        for session in (*hub.sessions, *hub.sessions.pending):
            session.end(ending)
        await trio.sleep(_STEP)


async def _unfinished(hub: Hub, seconds: float) -> list[ConnectedSession]:
    """Wait until sessions have finished what they are at; those that have not in time."""
    with trio.move_on_after(seconds):
        while True:
            if not any(session.handling for session in hub.sessions):
                break
            await trio.sleep(_LOOK)
        if hub.sequencer is not None:
            await hub.sequencer.settled()
    return [session for session in hub.sessions if session.handling]
