"""A job beside its plain form: both give the same, and what each takes for the same messages."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from mist.bench.errors import BenchError
from mist.bench.pipeline.measuring import Timed, in_turns, timed
from mist.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compared", "take"]


@attrs.frozen
class Compared:
    """A job and its plain form.

    Attributes:
        ours, plainly: called with the id up to which they go over messages. Each gives a table, or
            a DataFrame, which is then computed.
        order: columns that tell rows apart.
        upto: messages that both go over.
        everything: messages there are.
    """

    name: str
    ours: "Callable[[int], pa.Table | DataFrame]"
    plainly: "Callable[[int], pa.Table | DataFrame]"
    order: list[str]
    upto: int
    everything: int

    def run(self, rounds: int, progress: Progress) -> tuple[Timed, Timed, Timed]:
        """What ours and the plain form take for the same messages, and ours for all of them.

        Raises:
            BenchError: they give something else.
        """
        progress(f"{self.name}, {self.upto:,} messages: comparing what both give")
        # By columns: a table is also unequal where only one of them may hold nulls.
        if self._rows(self.ours).columns != self._rows(self.plainly).columns:
            raise BenchError(f"{self.name}: the plain form gives something else")
        same, plain_took = in_turns(
            lambda: take(self.ours(self.upto)),
            lambda: take(self.plainly(self.upto)),
            rounds,
            progress,
        )
        if self.upto == self.everything:
            return same, plain_took, same
        took = timed(lambda: take(self.ours(self.everything)))[1]
        progress(f"{self.name}, {self.everything:,} messages: {took}")
        return same, plain_took, took

    def _rows(self, call: "Callable[[int], pa.Table | DataFrame]") -> pa.Table:
        given = call(self.upto)
        table = given if isinstance(given, pa.Table) else given.toArrow()
        return table.sort_by([(name, "ascending") for name in self.order])


def take(given: "pa.Table | DataFrame") -> None:
    """Compute all rows and columns of a DataFrame, and keep none."""
    if not isinstance(given, pa.Table):
        given.write.format("noop").mode("overwrite").save()
