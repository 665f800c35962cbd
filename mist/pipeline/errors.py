"""Errors of the pipeline, and error reporting: each text is one line, fit to print.

PipelineError           a job can't be done
├── NotInstalled        Java or a package is missing: the text says how to install it
├── BadInput            invalid input: a file, an option, a folder
│   └── SegmentUnreadable   a segment of the archive is missing or damaged
├── ClusterUnavailable  the Spark master does not answer
└── JobFailed           Spark failed

`translated` turns the errors of Spark into `JobFailed`. An error of a task arrives as a Java
exception that quotes a Python traceback; one of mist's own errors, such as `DataLoss`, is quoted in
there and is the line to report.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mist.errors import MistError

__all__ = [
    "BadInput",
    "ClusterUnavailable",
    "JobFailed",
    "NotInstalled",
    "PipelineError",
    "SegmentUnreadable",
    "explain",
    "translated",
]

# The last line of a Python traceback, of an error of mist and of any other:
# `mist.archive.manifest.ArchiveDamaged: …`.
MIST_ERROR: Final = re.compile(r"^\s*mist\.[\w.]+: (.+)$", re.MULTILINE)
PYTHON_ERROR: Final = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE
)
JAVA_ERROR: Final = re.compile(
    r"^(?:: |Exception in thread \S+ |Error: |Caused by: )?"
    r"(?:[\w$]+\.)+(\w*(?:Exception|Error)): (.+)$",
    re.MULTILINE,
)
# Spark names the file, and Java what is wrong with it, in an error of its own.
SPARK_FILE: Final = re.compile(
    r"\[FAILED_READ_FILE\.\w+\] [^\n]*? (?:file:(?://)?)?(/\S+?)\.(?: |$)", re.MULTILINE
)
SPARK_CLASS: Final = re.compile(r"^\[(\w+(?:\.\w+)?)\] (.+)$")  # Spark's own: [PATH_NOT_FOUND] …
NOISE: Final = re.compile(
    r"WARNING|Using Spark's|An error occurred while|\d\d/\d\d/\d\d .* WARN|Setting default log"
)
# Java exceptions that only wrap another.
WRAPPERS: Final = ("SparkException", "ExecutionException", "StreamingQueryException")


class PipelineError(MistError):
    """A job can't be done. The text is one line with the reason."""

    code = "pipeline"


class NotInstalled(PipelineError):
    """A requirement is not installed, or is too old."""

    code = "not_installed"


class BadInput(PipelineError):
    """Invalid input: the same call would fail again."""

    code = "bad_input"


class SegmentUnreadable(BadInput):
    """A segment of the archive is missing or damaged. The text names the file and its day."""

    code = "archive_damaged"  # no wrong usage, though the same call would fail again


class ClusterUnavailable(PipelineError):
    """The Spark master does not answer."""

    code = "cluster_unavailable"


class JobFailed(PipelineError):
    """Spark failed after the job had begun. No half-written output is left.

    Attributes:
        details: the full error of Spark, many lines.
    """

    code = "job_failed"

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def explain(text: str) -> str:
    """The line of an error text that gives the cause.

        An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
        : org.apache.spark.SparkException: Could not parse Master URL: 'foo'
            at org.apache.spark.SparkContext$.…          → Could not parse Master URL: 'foo'

    Returns:
        Empty if there is none.
    """
    if own := MIST_ERROR.findall(text):
        return str(own[-1]).strip()
    trace = text.rpartition("Traceback (most recent call last)")[2]
    if trace is not text and (python := PYTHON_ERROR.search(trace)):
        return f"{python[1]}: {python[2]}".strip()
    java = JAVA_ERROR.findall(text)
    causes = [what for kind, what in java if kind not in WRAPPERS] or [what for _, what in java]
    if file := SPARK_FILE.search(text):
        return f"{file[1]} can't be read: {_without_class(causes[-1] if causes else 'damaged')}"
    if causes:
        return _without_class(causes[0])
    for line in text.splitlines():
        if line.strip() and not NOISE.match(line.strip()):
            return _without_class(line.strip().removeprefix(": "))
    return ""


def _without_class(line: str) -> str:
    found = SPARK_CLASS.match(line)
    return (found[2] if found else line).strip()


@contextmanager
def translated() -> Iterator[None]:
    """Translate the errors that Spark raises in the block to `JobFailed`, with the cause as text.

    Errors of mist pass unchanged.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        # The death of the Java process is a broken connection to PySpark.
        gone = isinstance(error, ConnectionError) or "Java side is empty" in str(error)
        why = "" if gone else explain(str(error))
        why = why or "Spark's Java has gone; was there memory enough?"
        raise JobFailed(why, str(error)) from error
