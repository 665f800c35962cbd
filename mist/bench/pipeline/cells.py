"""Which figures of the pipeline are measured, and how large."""

from collections.abc import Sequence

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.report import Result
from mist.bench.site import Site

__all__ = ["pipeline_cells"]


def pipeline_cells(
    messages: int | None = None, subscriptions: int | None = None, *, quick: bool = False
) -> list[Cell]:
    """All figures: some twelve minutes, most of them for the plain forms; or (`quick`) three.

    Args:
        messages: that are matched and rolled up; None for 10 million.
        subscriptions: None for 100,000. The kernel alone, on one core, gets ten times as many.
    """
    messages = messages or (500_000 if quick else 10_000_000)
    subscriptions = subscriptions or (10_000 if quick else 100_000)

    def measure(_: Site) -> Result | Sequence[Result]:
        try:
            from mist.bench.pipeline.figures import measure_pipeline
        except ImportError as error:
            raise BenchError(
                f"the pipeline needs {error.name}: pip install 'mist-pubsub[spark]'"
            ) from None
        return measure_pipeline(
            messages,
            subscriptions,
            max(1, messages // 20),
            small=(50_000, 50) if quick else (1_000_000, 500),
            streamed=(200_000, 200_000) if quick else (2_000_000, 2_000_000),
            clustered=64_000 if quick else 640_000,
            many=10 * subscriptions,
            rounds=1 if quick else 3,
        )

    return [Cell("pipeline", f"the pipeline, with {messages:,} messages", None, measure)]
