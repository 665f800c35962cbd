"""Adding up what kernels have counted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["sum_by"]


def sum_by(counted: "DataFrame", *keys: str, of: Sequence[str] = ("messages",)) -> "DataFrame":
    """The sums of some columns by `keys`: these, then the sums under their own names.

    After a shuffle only. A kernel has added up all that there is in its task; without the
    repartition Spark would try so again, row by row.

    Args:
        counted: what a kernel has given; a row for each of the keys in a task.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    sums = [F.sum(each).alias(each) for each in of]
    return counted.repartition(*keys).groupBy(*keys).agg(*sums)
