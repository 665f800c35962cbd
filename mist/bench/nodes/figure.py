"""One figure of nodes, and what is asked of it."""

from collections.abc import Sequence
from typing import Final

import attrs

__all__ = ["ASKED", "Asked", "Measured", "NodesFigure"]


@attrs.frozen
class Asked:
    """A bound. Met where the median is within it."""

    at_least: float | None = None
    at_most: float | None = None


@attrs.frozen
class Measured:
    """What a measurement came to.

    Attributes:
        name: says what was measured; the key of `ASKED` where something is asked of it.
        unit: of the values.
        values: one a round; empty where it was not measured, and the note says why.
        note: what else has to be known to read it.
    """

    name: str
    unit: str
    values: Sequence[float]
    note: str = ""


@attrs.frozen
class NodesFigure:
    """A figure of the nodes of one engine.

    Attributes:
        engine: `redis` or `postgres`.
        setting: what its durability is set to, such as `always`; empty where it is not installed.
    """

    engine: str
    setting: str
    measured: Measured

    @property
    def asked(self) -> Asked:
        """What is asked of it; no bound where nothing is."""
        found = ASKED.get(self.measured.name, {})
        return found.get(f"{self.engine} {self.setting}") or found.get(self.engine) or Asked()


_EVERYSEC: Final = "redis everysec"
_BOTH: Final = ("redis", "postgres")

ASKED: Final = {
    "publish": {_EVERYSEC: Asked(at_least=250_000), "postgres": Asked(at_least=120_000)},
    "publish, node CPU": {
        _EVERYSEC: Asked(at_most=2.5),
        "postgres": Asked(at_most=2.5),
    },
    "publish, other node CPU": {
        _EVERYSEC: Asked(at_most=1.5),
        "postgres": Asked(at_most=1.5),
    },
    "nobody asks, other node CPU": {
        _EVERYSEC: Asked(at_most=1.5),
        "postgres": Asked(at_most=1.5),
    },
    "publish, engine CPU": {
        _EVERYSEC: Asked(at_most=0.8),
        "postgres": Asked(at_most=2.5),
    },
    "latency, p50": {"redis": Asked(at_most=1.5), "postgres": Asked(at_most=3)},
    "latency, p99": {"redis": Asked(at_most=8), "postgres": Asked(at_most=15)},
    "idle node": dict.fromkeys(_BOTH, Asked(at_most=1)),
    "revocation, p99": dict.fromkeys(_BOTH, Asked(at_most=100)),
    "revocation, longest": dict.fromkeys(_BOTH, Asked(at_most=1_000)),
    "engine back, until a store": dict.fromkeys(_BOTH, Asked(at_most=1)),
    "new node with 1 GiB, until it is ready": dict.fromkeys(_BOTH, Asked(at_most=30)),
    "node killed, until the next message": dict.fromkeys(_BOTH, Asked(at_most=2)),
}
"""By name, then by engine, or by engine and setting where it is asked of one setting only."""
