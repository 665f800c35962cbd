"""How large what is measured is."""

import attrs

__all__ = ["Sizes"]


@attrs.frozen(kw_only=True)
class Sizes:
    """Sizes of all jobs.

    Attributes:
        messages: that are matched and rolled up.
        plain_messages: of them, the plain forms go over; `messages` at most.
        hard: messages of a million tags, whose result is nearly as large.
        subscriptions: that are matched.
        compacted: messages of the archive that is compacted.
        segments: of that archive.
        few: messages of the job that is small.
        streamed: messages from a server into a lake.
        clustered: messages that jobs on a cluster go over.
        rounds: of which medians are taken, where a plain form is beside.
    """

    messages: int = 10_000_000
    plain_messages: int = 10_000_000
    hard: int = 500_000
    subscriptions: int = 100_000
    compacted: int = 1_000_000
    segments: int = 500
    few: int = 10_000
    streamed: int = 2_000_000
    clustered: int = 640_000
    rounds: int = 3

    @property
    def many(self) -> int:
        """Subscriptions that one core alone matches."""
        return 10 * self.subscriptions
