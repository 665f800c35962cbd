"""Passes of the event loop, counted: what takes turns is done in several."""

import attrs
import pytest
import trio

from mist.turns import Turns

__all__ = ["Passes", "counted"]


@attrs.define(eq=False)
class Passes(trio.abc.Instrument):
    """How many there have been."""

    count: int = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


def counted(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Count passes for the rest of a test, and have each step of what takes turns use one up."""
    monkeypatch.setattr(Turns, "spent", lambda self, began: True)
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    return passes
