"""Errors of the data source: one line each, without credentials.

PipelineError
└── SourceError
    ├── InvalidOption       an option that is unknown, invalid, or contradicts another
    ├── UnfitRows           rows to be written that lack the schema of a message
    ├── DataLoss            something requested is no longer available
    ├── ServerUnavailable   no response before the retry timeout
    └── ServerRefused       an error response
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
    """Base class of the errors of `format("mist")`, for reads and writes."""

    code = "source"


class InvalidOption(SourceError):
    """An option with an invalid value."""

    code = "invalid_option"


class UnfitRows(SourceError):
    """Rows that can't be published: a column is missing, of another type, or unknown."""

    code = "unfit_rows"


class DataLoss(SourceError):
    """Requested messages are gone: trimmed, damaged, or in a log that was replaced."""

    code = "data_loss"


class ServerUnavailable(SourceError):
    """The server could not be reached, or was overloaded, until the retry timeout."""

    code = "server_unavailable"


class ServerRefused(SourceError):
    """The server answered with an error for which a retry is useless.

    Attributes:
        status: HTTP status; 0 without a response.
        problem: the code in the response, such as `epoch_changed`; empty without one.
    """

    code = "server_refused"

    def __init__(self, message: str, status: int = 0, problem: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
