"""One figure of the pipeline. Apart, since it needs nothing that the pipeline needs."""

import attrs

from mist.bench.pipeline.measuring import Timed

__all__ = ["Figure"]


@attrs.frozen
class Figure:
    """A job, and the plain form of it.

    Attributes:
        name: of the job: `match`, `rollup`, `compact`, `match_one_core`, `stream`; with
            `cluster_` before it where it ran on one, `_hard` or `_small` behind it for these cases.
        messages: it went over.
        subscriptions: it matched, where it matches.
        took: for all of them.
        plain_messages: the plain form went over; None where there is none.
        plain: what that took: the median of several runs.
        same: what the job took for just these messages: the median of as many runs, in turns
            with those of the plain form. None where it is `took`.
        must, aim: what is asked for: messages a second, or for a compaction `times`.
        server_seconds: of `took.cpu`, what a server took that the messages came from.
    """

    name: str
    messages: int
    subscriptions: int | None
    took: Timed
    plain_messages: int | None = None
    plain: Timed | None = None
    must: int | None = None
    aim: int | None = None
    server_seconds: float | None = None
    same: Timed | None = None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.took.seconds

    @property
    def cpu(self) -> float | None:
        """CPU seconds for a million messages."""
        return None if self.took.cpu is None else self.took.cpu * 1e6 / self.messages

    @property
    def server_cpu(self) -> float | None:
        """CPU seconds of the server for a million messages."""
        return None if self.server_seconds is None else self.server_seconds * 1e6 / self.messages

    @property
    def plain_rate(self) -> float | None:
        """Messages a second of the plain form."""
        if self.plain is None or self.plain_messages is None:
            return None
        return self.plain_messages / self.plain.seconds

    @property
    def plain_cpu(self) -> float | None:
        """CPU seconds for a million messages of the plain form."""
        if self.plain is None or self.plain.cpu is None or self.plain_messages is None:
            return None
        return self.plain.cpu * 1e6 / self.plain_messages

    @property
    def times(self) -> float | None:
        """How many times as long the plain form takes, for the same messages."""
        if self.plain_rate is None or self.plain is None:
            return None
        if self.same is None:
            return self.rate / self.plain_rate
        return self.plain.seconds / self.same.seconds

    @property
    def cpu_times(self) -> float | None:
        """How many times this CPU the plain form takes, for the same messages; other load
        matters little."""
        if self.cpu is None or self.plain is None or self.plain_cpu is None:
            return None
        if self.same is None or self.same.cpu is None or self.plain.cpu is None:
            return self.plain_cpu / self.cpu
        return self.plain.cpu / self.same.cpu
