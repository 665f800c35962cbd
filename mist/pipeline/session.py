"""The Spark session of a job: quiet, in UTC, and stopped when it is done.

    session         for the length of a block; what the commands use
    make_session    one that lasts until `end_session`, or the end of the process

Spark's Java is a process of its own, which PySpark starts and talks to. It says much on its
output; here that is read and dropped, or shown on standard error on request. So standard output
belongs to the caller, and when Java doesn't start, its last output is in the error.

A session ends in one of two ways. In the usual one Spark is stopped, and Java after it. After
Ctrl-C the line to Java is in the middle of an answer, and whatever is said on it now would be
taken for another; so Java gets SIGTERM instead, upon which Spark cleans up behind itself.
"""

import contextlib
import os
import py_compile
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mist.pipeline.errors import ClusterUnavailable, JobFailed, NotInstalled
from mist.pipeline.java import require_java
from mist.pipeline.master import is_local, is_near, require_master
from mist.pipeline.quiet import LastWords, hush, hush_updates, uninterrupted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["end_session", "make_session", "require_java", "require_spark", "session"]

DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # As an archive has them; Spark's default is a type of its own that few others read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
EXIT_TIMEOUT: Final = 20.0  # seconds for the JVM to exit by itself
# What Spark says when it has given up on a cluster, a minute after it was started.
UNANSWERED: Final = "Cannot call methods on a stopped SparkContext"


def require_spark() -> None:
    """See that PySpark, and what it needs for Arrow, can be imported.

    Raises:
        NotInstalled: names the extra.
    """
    try:
        import numpy  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise NotInstalled(
            f"the pipeline needs {error.name}: pip install 'mist-pubsub[spark]'"
        ) from None


@contextlib.contextmanager
def session(
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "mist",
    verbose: bool = False,
) -> Iterator["SparkSession"]:
    """A session for the length of the block; see `make_session`."""
    spark = make_session(master, conf, name=name, verbose=verbose)
    try:
        yield spark
    except (KeyboardInterrupt, SystemExit):
        end_session(spark, interrupted=True)
        raise
    except BaseException:
        end_session(spark)
        raise
    else:
        end_session(spark)


def make_session(
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "mist",
    verbose: bool = False,
) -> "SparkSession":
    """Start Spark.

    There is one session in a process; it can be made anew after `end_session`. Sets
    PYSPARK_PYTHON, for the rest of the process: executors on this machine run what we run.

    Args:
        master: `local[*]`, `local[2]`, `spark://host:7077`. To executors elsewhere the package
            is sent; what it imports (attrs, msgspec, numpy, pyarrow) has to be there.
        conf: settings of Spark's, which win over those made here.
        name: as which it is known to a cluster.
        verbose: show on standard error what Spark says, warnings and worse.

    Raises:
        NotInstalled: no Java, one too old, or no PySpark.
        ClusterUnavailable: there is no answer from it.
        JobFailed: it doesn't start: bad settings.
    """
    require_java()
    require_spark()
    require_master(master)
    hush(True)
    try:
        spark = _start(_settings(master, conf or {}, name), verbose)
        if not is_local(master):
            spark.sparkContext.addPyFile(str(_package(_own_folder(spark.sparkContext))))
        _register(spark)
    except BaseException:
        _end_java(terminate=True)
        raise
    return spark


def end_session(spark: "SparkSession", *, interrupted: bool = False) -> None:
    """Stop Spark, its Java, and what it keeps on disk. Idempotent.

    Args:
        interrupted: a call to Spark was left in the middle, as Ctrl-C does.
    """
    if interrupted:
        hush_updates(spark.sparkContext)
    else:
        with contextlib.suppress(OSError):  # Java has gone already
            spark.stop()
    _end_java(terminate=interrupted)


def _settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    return {
        **DEFAULTS,
        **(LOOPBACK if is_near(master) else {}),
        **conf,
        "spark.master": master,
        "spark.app.name": name,
    }


def _start(settings: Mapping[str, str], verbose: bool) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if is_local(settings["spark.master"]):
        os.environ["PYSPARK_PYTHON"] = sys.executable  # another Python would be refused
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configured = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    interrupt = signal.getsignal(signal.SIGINT)
    words = LastWords(verbose)
    try:
        # Interrupted in here, Java would be left behind: nobody knows its process yet.
        with uninterrupted(), words.listening() as output:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                configured, {"stdout": output, "stderr": output}
            )
            SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
        context = SparkContext(conf=configured, gateway=gateway)
        context.setLogLevel("WARN" if verbose else "OFF")
        warehouse = str(_own_folder(context) / "warehouse")  # else one in the current folder
        return SparkSession.builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    except (PySparkException, Py4JError) as error:
        if UNANSWERED in str(error) and not is_local(settings["spark.master"]):
            why = f"no answer from {settings['spark.master']} that Spark understands"
            raise ClusterUnavailable(why) from None
        raise JobFailed(f"Spark doesn't start: {words.reason(error)}", str(error)) from None
    finally:
        # PySpark's own handler talks to Java from wherever the signal comes, be it in the
        # middle of an answer. `end_session` is there for that.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)


def _own_folder(context: "SparkContext") -> Path:
    # A temporary folder of Spark's, which it removes at its end, however that comes.
    return Path(context._temp_dir)


def _package(folder: Path) -> Path:
    """The package as a zip for executors elsewhere: all but what only browsers read.

    Sources, and beside them compiled code for executors that run the same Python: nothing that
    is imported out of a zip is compiled for good, and each new process would do it again.
    """
    root = Path(__file__).parents[1]
    path = folder / "mist.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(root.rglob("*.py")):
            name = source.relative_to(root.parent)
            archive.write(source, name)
            compiled = folder / "compiled.pyc"
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(
                str(source), str(compiled), str(name), doraise=True, invalidation_mode=mode
            )
            archive.write(compiled, name.with_suffix(".pyc"))
    return path


def _register(spark: "SparkSession") -> None:
    from mist.pipeline.source import MistDataSource

    spark.dataSource.register(MistDataSource)


def _end_java(*, terminate: bool) -> None:
    """End the process that PySpark started, and have it forget it, so that it can start anew."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    if terminate:
        process.terminate()
    else:
        with contextlib.suppress(Exception):  # it may have gone, and then there is no one to tell
            gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()  # upon which it ends, where it was not told to
    try:
        process.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if not terminate:
        hush(False)
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
