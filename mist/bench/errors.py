"""Why a measurement can't be made."""

from mist.errors import MistError

__all__ = ["BenchError", "HungUp", "NotThere", "UnexpectedBytes"]

_SHOWN = 120  # bytes


class BenchError(MistError):
    """A measurement was not made, or would mean nothing; the text says why."""

    code = "bench_failed"


class UnexpectedBytes(BenchError):
    """The server said what no delivery, proof or answer looks like.

    Args:
        data: what it said, from there on.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(f"the server sent {data[:_SHOWN]!r}")


class NotThere(BenchError):
    """No connection to the server."""


class HungUp(BenchError):
    """The server ended a connection in the middle of a run."""
