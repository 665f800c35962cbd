"""A Java for tests that starts in half of the time.

A start of Spark takes 12 s of CPU, most of which Java spends on loading and verifying the same
10,000 classes each time. It can keep them in an archive ("class data sharing", JEP 350), which is
made by one start and used by the others, on this machine and of this Spark: executors and what a
test starts as a process of its own, too. It is found by JAVA_HOME, in which is a `java` that names
the archive and becomes the real one. Where the archive doesn't fit, Java goes on without it.

    python -m tests.java FOLDER     makes the archive, by running some of Spark
"""

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mist.pipeline.errors import NotInstalled
from mist.pipeline.preflight import require_java

__all__ = ["need_java"]

_ARCHIVE = "spark.jsa"
_USE = '#!/bin/sh\nexec {java} -XX:SharedArchiveFile={archive} "-Xlog:cds*=off" "$@"\n'
_MAKE = """#!/bin/sh
case "$*" in
  *SparkSubmit*) exec {java} -XX:ArchiveClassesAtExit={archive} "-Xlog:cds*=off" "$@" ;;
  *) exec {java} "$@" ;;
esac
"""


def need_java() -> None:
    """Skip a test where there is no Java; in CI that is a failure (tests/conftest.py)."""
    try:
        require_java()
    except NotInstalled as error:
        pytest.skip(str(error))
    _use_quick_java()


def _use_quick_java() -> None:
    """Have this process, and those that it starts, use it; made by whoever comes first.

    Nothing changes where JAVA_HOME is set, or there is no Java or no PySpark.
    """
    java = shutil.which("java")
    if os.environ.get("JAVA_HOME") or java is None:
        return
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return
    real = os.path.realpath(java)
    jars = Path(spark.origin).with_name("jars")
    name = f"mist-java-{os.getuid()}-{hashlib.sha256(bytes(jars)).hexdigest()[:16]}"
    home = Path(tempfile.gettempdir(), name)
    home.mkdir(mode=0o700, exist_ok=True)
    # Java wants the very files that it was made of: not those of another installation in their
    # place. It would go on without it, and say nothing.
    made_of = "\n".join(f"{each} {os.stat(each).st_mtime_ns}" for each in (real, jars))
    with open(home / "lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        lock.seek(0)
        if lock.read() != made_of:
            _make(home, real)
            lock.truncate(0)
            lock.write(made_of)
    if (home / _ARCHIVE).exists():
        os.environ["JAVA_HOME"] = str(home)


def _make(home: Path, real: str) -> None:
    (home / _ARCHIVE).unlink(missing_ok=True)
    making = home / "making"
    _write(making / "bin" / "java", _MAKE, real, home / _ARCHIVE)
    subprocess.run(
        [sys.executable, "-m", "tests.java", str(making)],
        env={**os.environ, "JAVA_HOME": str(making)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )
    shutil.rmtree(making, ignore_errors=True)
    _write(home / "bin" / "java", _USE, real, home / _ARCHIVE)


def _write(path: Path, script: str, java: str, archive: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name("made")
    made.write_text(script.format(java=shlex.quote(java), archive=shlex.quote(str(archive))))
    made.chmod(0o700)
    made.rename(path)


def _run(folder: Path) -> None:
    """What most jobs do: read and write Parquet, in Python and not, in steps."""
    from collections.abc import Iterator

    from pyspark.sql import functions as f

    from mist.pipeline import session

    def same(batches: Iterator[object]) -> Iterator[object]:
        yield from batches

    session.EXIT_TIMEOUT = 300.0  # type: ignore[misc]  # Java writes the archive at its end
    with session.session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as spark:
        frame = spark.range(1000).select("id", (f.col("id") % 7).alias("key"))
        frame.mapInArrow(same, frame.schema).write.parquet(str(folder / "data"))
        read = spark.read.parquet(str(folder / "data"))
        read.groupBy("key").count().orderBy("key").toArrow()
        read.join(spark.range(5), "id").collect()


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
