"""Errors of the pipeline. Each text is one line, fit to print.

PipelineError           a job can't be done
├── NotInstalled        Java or a package is missing: the text says how to get it
├── BadInput            what was asked for can't be used: a file, an option, a folder
├── ClusterUnavailable  nobody is where Spark was to run
└── JobFailed           Spark gave up on it
"""

from mist.errors import MistError

__all__ = ["BadInput", "ClusterUnavailable", "JobFailed", "NotInstalled", "PipelineError"]


class PipelineError(MistError):
    """A job can't be done. The text is one line that says why."""

    code = "pipeline"


class NotInstalled(PipelineError):
    """Something that has to be installed isn't, or is too old."""

    code = "not_installed"


class BadInput(PipelineError):
    """What was asked for can't be used as it is; asked again, it fails again."""

    code = "bad_input"


class ClusterUnavailable(PipelineError):
    """No answer from where Spark was to run."""

    code = "cluster_unavailable"


class JobFailed(PipelineError):
    """Spark began and gave up. Nothing that it was to make is there by halves.

    Attributes:
        details: all that Spark said, many lines.
    """

    code = "job_failed"

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details
