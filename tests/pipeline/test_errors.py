"""Errors of Spark: of its many lines, the one that a person wants to read."""

import pytest

from mist.pipeline.errors import explain

JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'foo'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3200)
"""
OURS = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
  File "/x/worker.py", line 5, in main
Traceback (most recent call last):
  File "/x/mist/pipeline/source/batch.py", line 9, in read
mist.pipeline.source.errors.DataLoss: messages 3 to 9 are no longer available
\tat org.apache.spark.api.python.BasePythonRunner
"""
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x.py", line 1, in where
ZeroDivisionError: division by zero
"""
WRAPPED = """: org.apache.spark.SparkException: Job aborted.
Caused by: java.io.IOException: No space left on device
"""
LAST_WORDS = """WARNING: Using incubator modules: jdk.incubator.vector
Invalid initial heap size: -Xmsabc
Error: Could not create the Java Virtual Machine.
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (JAVA, "Could not parse Master URL: 'foo'"),
        (OURS, "messages 3 to 9 are no longer available"),
        (PYTHON, "ZeroDivisionError: division by zero"),
        (WRAPPED, "No space left on device"),
        (LAST_WORDS, "Invalid initial heap size: -Xmsabc"),
        ("[PATH_NOT_FOUND] Path does not exist: /x.", "Path does not exist: /x."),
        ("", ""),
    ],
)
def test_the_line_that_says_why(text: str, line: str) -> None:
    assert explain(text) == line
