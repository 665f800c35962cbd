"""A session is quiet, sees the package from its workers, and says in one line why it isn't."""

import subprocess
import sys
from typing import Any


def test_workers_run_our_python_and_import_the_package(spark: Any) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow as pa

        import mist.message

        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {
                    "python": [sys.executable],
                    "tags": [sorted(mist.message.parse_tags(["b", "a"], 9))],
                }
            )

    (row,) = (
        spark.range(1, numPartitions=1)
        .mapInArrow(where, "python string, tags array<string>")
        .collect()
    )
    assert (row.python, row.tags) == (sys.executable, ["a", "b"])


INTERRUPTED = """
from mist.pipeline.session import end_session, make_session
from tests.pipeline.conftest import QUICK

spark = make_session("local[1]", QUICK, name="mist tests")
seen = spark.sparkContext.accumulator(0)
spark.sparkContext.parallelize(range(5), 1).foreach(lambda _: seen.add(1))
print(seen.value)
end_session(spark, interrupted=True)
"""


def test_an_interrupted_session_ends_without_a_word_of_what_its_tasks_counted(java: None) -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr, run.returncode) == ("5\n", "", 0)
