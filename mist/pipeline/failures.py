"""Error reporting: one line for a person from the traces of Spark and Java.

An error of a task comes as a Java exception that quotes a Python traceback; one of ours, such as
`DataLoss`, is in there and is what the person wants to read.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mist.pipeline.errors import JobFailed

__all__ = ["explain", "translated"]

# The last line of a Python traceback, ours first: `mist.archive.manifest.ArchiveDamaged: …`.
OURS: Final = re.compile(r"^\s*mist\.[\w.]+: (.+)$", re.MULTILINE)
PYTHON: Final = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE
)
JAVA: Final = re.compile(
    r"^(?:: |Exception in thread \S+ |Error: |Caused by: )?"
    r"(?:[\w$]+\.)+(\w*(?:Exception|Error)): (.+)$",
    re.MULTILINE,
)
CLASS: Final = re.compile(r"^\[(\w+(?:\.\w+)?)\] (.+)$")  # Spark's own: [PATH_NOT_FOUND] …
CHATTER: Final = re.compile(
    r"WARNING|Using Spark's|An error occurred while|\d\d/\d\d/\d\d .* WARN|Setting default log"
)
# Java exceptions that only wrap another.
WRAPPERS: Final = ("SparkException", "ExecutionException", "StreamingQueryException")


def explain(text: str) -> str:
    """The line that says why.

        An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
        : org.apache.spark.SparkException: Could not parse Master URL: 'foo'
            at org.apache.spark.SparkContext$.…          → Could not parse Master URL: 'foo'

    Returns:
        Empty where nothing is said.
    """
    if ours := OURS.findall(text):
        return str(ours[-1]).strip()
    trace = text.rpartition("Traceback (most recent call last)")[2]
    if trace is not text and (python := PYTHON.search(trace)):
        return f"{python[1]}: {python[2]}".strip()
    java = JAVA.findall(text)
    telling = [what for kind, what in java if kind not in WRAPPERS] or [what for _, what in java]
    if telling:
        return _plain(telling[0])
    for line in text.splitlines():
        if line.strip() and not CHATTER.match(line.strip()):
            return _plain(line.strip().removeprefix(": "))
    return ""


def _plain(line: str) -> str:
    found = CLASS.match(line)
    return (found[2] if found else line).strip()


@contextmanager
def translated() -> Iterator[None]:
    """Have what Spark raises in the block come out as `JobFailed`, with the line that says why.

    What is raised on purpose, by mist, is left as it is.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        # Java that died in the middle is a broken connection to PySpark.
        gone = isinstance(error, ConnectionError) or "Java side is empty" in str(error)
        why = "" if gone else explain(str(error))
        why = why or "Spark's Java has gone; was there memory enough?"
        raise JobFailed(why, str(error)) from error
