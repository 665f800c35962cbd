"""Which figures of the pipeline are measured, and how large."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.pipeline.sizes import Sizes
from mist.bench.report import Result
from mist.bench.site import Site
from mist.pipeline.progress import Progress, silent

__all__ = ["JOBS", "pipeline_cells"]

JOBS: Final = ("match", "one-core", "rollup", "compact", "small", "stream", "cluster")
_QUICK: Final = Sizes(
    messages=500_000,
    plain_messages=100_000,
    hard=100_000,
    subscriptions=10_000,
    compacted=50_000,
    segments=50,
    streamed=200_000,
    clustered=64_000,
    rounds=1,
)


def pipeline_cells(
    jobs: Sequence[str] = (),
    *,
    messages: int | None = None,
    plain_messages: int | None = None,
    subscriptions: int | None = None,
    rounds: int | None = None,
    quick: bool = False,
    progress: Progress = silent,
) -> list[Cell]:
    """Jobs, each with archives and a Spark session of its own.

    Args:
        jobs: of `JOBS`; none for all.
        messages: that are matched and rolled up; None for 10 million, and as many of a smaller
            job as it has, at most.
        plain_messages: of them, for the plain forms; None for all.
        subscriptions: None for 100,000. One core alone gets ten times as many.
        rounds: of which medians are taken; None for three.
        quick: a twentieth of the messages, a fifth of those for the plain forms, one round.
        progress: told what is done, and what each round took.
    """
    usual = _QUICK if quick else Sizes()
    given = messages or usual.messages
    plain_given = plain_messages or (usual.plain_messages if messages is None else given)
    sizes = Sizes(
        messages=given,
        plain_messages=min(plain_given, given),
        hard=min(usual.hard, given),
        subscriptions=subscriptions or usual.subscriptions,
        compacted=usual.compacted,
        segments=usual.segments,
        few=min(usual.few, given),
        streamed=usual.streamed,
        clustered=usual.clustered,
        rounds=rounds or usual.rounds,
    )
    return [
        Cell("pipeline", f"pipeline: {job}", None, partial(_measure, job, sizes, progress))
        for job in JOBS
        if not jobs or job in jobs
    ]


def _measure(job: str, sizes: Sizes, progress: Progress, _: Site, /) -> Sequence[Result]:
    try:
        from mist.bench.pipeline.figures import measure
    except ImportError as error:
        raise BenchError(
            f"the pipeline needs {error.name}: pip install 'mist-pubsub[spark]'"
        ) from None
    return measure(job, sizes, lambda line: progress(f"{job}: {line}"))
