"""Readiness: whether a server should get clients, and if not, why.

A load balancer asks for it, and the nodes of an engine tell each other.
"""

from typing import Final

import attrs
import trio

from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer

__all__ = ["NotReady", "not_ready"]

_SILENCE: Final = 3.0  # seconds without contact to the token registry
_REMEMBERED: Final = 5.0  # seconds after a failure, for which the server is not ready


@attrs.frozen
class NotReady:
    """Why a server is not ready.

    Attributes:
        code: stable, for programs: `draining`, `too_many_files`, `registry_unavailable`,
            `history_unavailable`, `catching_up`.
        detail: for a person.
        passes: whether a second may be enough to wait for.
    """

    code: str
    detail: str
    passes: bool = True


def not_ready(hub: Hub) -> NotReady | None:
    """Why a server is not ready; None where it is."""
    if hub.ending:
        return NotReady("draining", "the server is shutting down")
    if hub.is_full():
        return NotReady("too_many_files", "no connection can be accepted: too many files are open")
    if hub.registry.silence > _SILENCE:
        return NotReady("registry_unavailable", "the token registry can't be reached", passes=False)
    sequencer = hub.sequencer
    if sequencer is None:
        return None
    if _is_failing(sequencer) or not sequencer.reachable:
        return NotReady("history_unavailable", "the history can't be written", passes=False)
    if sequencer.ready:
        return None
    if sequencer.lag:
        return NotReady("catching_up", f"it is {sequencer.lag:.0f} s behind other nodes")
    return NotReady("catching_up", "it is behind other nodes")


def _is_failing(sequencer: Sequencer) -> bool:
    # Only a publish can find that the disk has space again, and a load balancer sends none to a
    # server that is not ready.
    return sequencer.failing and trio.current_time() - sequencer.failed_at < _REMEMBERED
