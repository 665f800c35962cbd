"""Errors of the data source: one line each, without credentials.

PipelineError
└── SourceError
    ├── InvalidOption       an option that is unknown, wrong, or contradicts another
    ├── UnfitRows           what is to be written has no shape of a message
    ├── DataLoss            something requested is no longer available
    ├── ServerUnavailable   no answer for as long as was worth waiting
    └── ServerRefused       an answer, and it was no
"""

from mist.pipeline.errors import PipelineError

__all__ = [
    "DataLoss",
    "InvalidOption",
    "ServerRefused",
    "ServerUnavailable",
    "SourceError",
    "UnfitRows",
]


class SourceError(PipelineError):
    """Root of what `spark.read.format("mist")` and its siblings raise on purpose."""

    code = "source"


class InvalidOption(SourceError):
    """An option can't be used as it was given."""

    code = "invalid_option"


class UnfitRows(SourceError):
    """Rows that can't be published: a column is missing, of another type, or unknown."""

    code = "unfit_rows"


class DataLoss(SourceError):
    """Messages that were asked for are gone: trimmed, damaged, or of a log that was replaced."""

    code = "data_loss"


class ServerUnavailable(SourceError):
    """The server can't be reached, or was too busy, for longer than the client is patient."""

    code = "server_unavailable"


class ServerRefused(SourceError):
    """The server answered with an error that asking again does not mend.

    Attributes:
        status: of HTTP.
        problem: the server's code, such as `epoch_changed`; empty where it gave none.
    """

    code = "server_refused"

    def __init__(self, message: str, status: int = 0, problem: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
