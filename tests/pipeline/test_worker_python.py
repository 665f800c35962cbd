"""Spark's workers on this machine import what is installed, not Spark's zips."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mist.pipeline.worker_python import SCRIPT, worker_python


def chosen(monkeypatch: pytest.MonkeyPatch, *, is_local: bool, **environ: str) -> str:
    """What PYSPARK_PYTHON is in the block; behind it all is as before."""
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with worker_python(is_local=is_local):
        found = os.environ["PYSPARK_PYTHON"]
    assert dict(os.environ) == before
    return found


def test_workers_import_pyspark_as_this_process_does(spark: Any) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import py4j
        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"from": [pyspark.__file__, py4j.__file__]})

    import py4j
    import pyspark

    rows = spark.range(1, numPartitions=1).mapInArrow(where, "from string").collect()
    assert [each["from"] for each in rows] == [pyspark.__file__, py4j.__file__]


def test_the_script_leaves_out_the_zips_alone(tmp_path: Path) -> None:
    kept = [str(tmp_path), "/with space/and *", "/some/jars/spark-core.jar"]
    zips = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    for path in (kept, [zips[0], kept[0], zips[1], *kept[1:]], zips, []):
        run = subprocess.run(
            [SCRIPT, "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:])", "a b"],
            env={"PYTHONPATH": os.pathsep.join(path), "MIST_WORKER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        )
        left = [each for each in path if each not in zips]
        assert run.stdout == os.pathsep.join(left) + " a b\n"


def test_a_local_spark_has_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the script, unless PySpark would be another one, or it can't be run."""
    pytest.importorskip("pyspark")
    assert chosen(monkeypatch, is_local=True) == str(SCRIPT)
    assert chosen(monkeypatch, is_local=True, PYSPARK_PYTHON="another") == str(SCRIPT)
    assert chosen(monkeypatch, is_local=True, SPARK_HOME="/opt/spark") == sys.executable
    script = tmp_path / "worker_python.sh"
    script.write_bytes(SCRIPT.read_bytes())
    script.chmod(0o644)
    monkeypatch.setattr("mist.pipeline.worker_python.SCRIPT", script)
    assert chosen(monkeypatch, is_local=True) == sys.executable


def test_what_only_this_process_finds_comes_from_the_zips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr("site.getsitepackages", list)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    assert chosen(monkeypatch, is_local=True) == sys.executable


def test_executors_elsewhere_have_the_python_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, is_local=False) == sys.executable
    assert chosen(monkeypatch, is_local=False, PYSPARK_PYTHON="/opt/python") == "/opt/python"
