"""Which engines are measured, and how large."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.nodes.engines import EngineServer
from mist.bench.nodes.figure import Measured, NodesFigure
from mist.bench.nodes.joining import measure_joining
from mist.bench.nodes.outages import measure_engine_killed, measure_node_killed
from mist.bench.nodes.postgres import PostgresServer, missing_postgres
from mist.bench.nodes.publishing import measure_publishing
from mist.bench.nodes.realm import Realm, open_realm
from mist.bench.nodes.redis import FSYNCS, RedisServer, missing_redis
from mist.bench.nodes.revoking import measure_revocation
from mist.bench.nodes.steady import measure_idle_node, measure_latency_across
from mist.bench.script import NEVER_AGAIN
from mist.bench.site import Site
from mist.pipeline.progress import Progress, silent

__all__ = ["ENGINES", "nodes_cells"]

ENGINES: Final = ("redis", "postgres")

_MISSING: Final[dict[str, Callable[[], str | None]]] = {
    "redis": missing_redis,
    "postgres": missing_postgres,
}


@attrs.frozen(kw_only=True)
class _Sizes:
    """How large it is.

    Attributes:
        rounds: of each figure, but for revocations, which are counted.
        seconds: of each round of publishing, latency and idleness.
        revocations: how many.
        never_again: messages that get a tag list each before the first comes again.
        mebibytes: of data that a new node has to read.
    """

    rounds: int = 3
    seconds: float = 1.0
    revocations: int = 200
    never_again: int = NEVER_AGAIN
    mebibytes: int = 64


_QUICK: Final = _Sizes(
    rounds=1, seconds=0.3, revocations=20, never_again=NEVER_AGAIN // 10, mebibytes=8
)


def nodes_cells(
    engines: Sequence[str] = (),
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    mebibytes: int | None = None,
    folder: Path | None = None,
    quick: bool = False,
    progress: Progress = silent,
) -> list[Cell]:
    """A cell for each setting of each engine, or one that says what is not installed.

    Args:
        engines: of `ENGINES`; none for all that are installed.
        rounds: of which medians are taken; None for three.
        seconds: of each round of publishing, latency and idleness; None for one.
        mebibytes: of data that a new node has to read; None for 64.
        folder: where engines and nodes have their data; None for the system's place for such.
        quick: one round, smaller.
        progress: told what is done.

    Raises:
        BenchError: an engine that was named is not installed, or none is.
    """
    missing = {name: _MISSING[name]() for name in engines or ENGINES}
    reasons = [f"{name}: {reason}" for name, reason in missing.items() if reason is not None]
    if reasons and (engines or len(reasons) == len(missing)):
        raise BenchError("; ".join(reasons))
    usual = _QUICK if quick else _Sizes()
    sizes = attrs.evolve(
        usual,
        rounds=rounds or usual.rounds,
        seconds=seconds or usual.seconds,
        mebibytes=mebibytes or usual.mebibytes,
    )
    cells = []
    for name, reason in missing.items():
        if reason is not None:
            cells.append(Cell("nodes", f"nodes on {name}", None, partial(_absent, name, reason)))
            continue
        for setting, make in _engines(name, folder).items():
            label = f"nodes on {name} {setting}"
            measure = partial(_measure, make, folder, sizes, progress)
            cells.append(Cell("nodes", label, None, measure))
    return cells


def _engines(name: str, folder: Path | None) -> dict[str, Callable[[], EngineServer]]:
    """What makes a server for each setting that is measured."""
    if name == "postgres":
        return {"on": partial(PostgresServer, folder)}
    return {fsync: partial(RedisServer, folder, fsync) for fsync in FSYNCS}


def _absent(engine: str, reason: str, _: Site, /) -> NodesFigure:
    return NodesFigure(engine, "", Measured("all", "", (), f"not installed: {reason}"))


def _measure(
    make: Callable[[], EngineServer],
    folder: Path | None,
    sizes: _Sizes,
    progress: Progress,
    _: Site,
    /,
) -> list[NodesFigure]:
    """All figures of one engine. What fails is said in its place, and the others are measured."""
    with make() as engine:
        engine.start()
        with open_realm(engine, folder) as realm:
            found = []
            for name, measure in _measures(sizes).items():
                progress(f"{engine.engine} {engine.setting}: {name}")
                try:
                    measured = measure(realm)
                except (BenchError, OSError) as error:
                    measured = [Measured(name, "", (), f"not measured: {error}")]
                found += [NodesFigure(engine.engine, engine.setting, each) for each in measured]
            return found


def _measures(sizes: _Sizes) -> dict[str, Callable[[Realm], Sequence[Measured]]]:
    """By name; in an order in which none disturbs those that come later.

    After a node was killed, an engine that comes back waits for it for a moment. So that is last.
    """
    timed: Any = {"seconds": sizes.seconds, "rounds": sizes.rounds}
    return {
        "idle node": partial(measure_idle_node, **timed),
        "latency": partial(measure_latency_across, **timed),
        "revocation": partial(measure_revocation, count=sizes.revocations),
        "publish": partial(measure_publishing, **timed, never_again=sizes.never_again),
        "engine killed": partial(measure_engine_killed, rounds=sizes.rounds),
        "new node": partial(measure_joining, mebibytes=sizes.mebibytes, rounds=sizes.rounds),
        "node killed": partial(measure_node_killed, rounds=sizes.rounds),
    }
