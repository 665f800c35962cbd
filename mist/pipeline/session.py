"""The Spark session of a job: without console output, in UTC, and stopped at its end.

    session         a context manager; what the commands use
    make_session    a session that lasts until `end_session`, or the end of the process

Spark runs in a Java process, which PySpark starts and controls through the Py4J gateway. Its output
is read and discarded, or shown on standard error with `verbose`. So standard output belongs to the
caller, and if Java fails to start, the error has the last lines of its output.

A session ends in one of two ways. Usually Spark is stopped, and then Java. After Ctrl-C the gateway
connection may be in the middle of a response, and a further call would read that one; so Java gets
SIGTERM instead, and Spark's shutdown hooks clean up.
"""

import contextlib
import os
import py_compile
import signal
import subprocess
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mist.pipeline.errors import ClusterUnavailable, JobFailed
from mist.pipeline.gateway import JavaOutput, defer_interrupt, silence_accumulators, silence_py4j
from mist.pipeline.java_options import default_java_options
from mist.pipeline.preflight import (
    is_local,
    is_near,
    require_java,
    require_master,
    require_spark,
)
from mist.pipeline.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["end_session", "make_session", "session"]

DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # As in an archive; Spark's default is INT96, which few other tools read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
EXIT_TIMEOUT: Final = 20.0  # seconds for Java to exit by itself
# Spark's message when it gives up on a cluster, a minute after the start.
STOPPED_CONTEXT: Final = "Cannot call methods on a stopped SparkContext"


@contextlib.contextmanager
def session(
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "mist",
    verbose: bool = False,
    rows: int = 0,
) -> Iterator["SparkSession"]:
    """A session that ends with the block; see `make_session`."""
    spark = make_session(master, conf, name=name, verbose=verbose, rows=rows)
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
    rows: int = 0,
) -> "SparkSession":
    """Start Spark.

    A process has one session; after `end_session` another can be started.

    Args:
        master: `local[*]`, `local[2]`, `spark://host:7077`. Remote executors are sent this package;
            its dependencies (attrs, msgspec, numpy, pyarrow) have to be installed there.
        conf: Spark settings, which override the defaults here.
        name: application name on a cluster.
        verbose: show Spark's output, warnings and above, on standard error.
        rows: that pass through Java, about; see `mist.pipeline.java_options`.

    Raises:
        NotInstalled: no Java, one too old, or no PySpark.
        ClusterUnavailable: the master does not answer.
        JobFailed: Spark doesn't start, because of invalid settings.
    """
    require_java()
    require_spark()
    require_master(master)
    silence_py4j(True)
    try:
        spark = _start(_settings(master, conf or {}, name, rows), verbose)
        if not is_local(master):
            spark.sparkContext.addPyFile(str(_package(_own_folder(spark.sparkContext))))
        _register(spark)
    except BaseException:
        _end_java(terminate=True)
        raise
    return spark


def end_session(spark: "SparkSession", *, interrupted: bool = False) -> None:
    """Stop Spark and its Java process, and remove its temporary files. Idempotent.

    Args:
        interrupted: whether a call to Spark was abandoned, as by Ctrl-C.
    """
    if interrupted:
        silence_accumulators(spark.sparkContext)
    else:
        with contextlib.suppress(OSError):  # Java has exited already
            spark.stop()
    _end_java(terminate=interrupted)


def _settings(master: str, conf: Mapping[str, str], name: str, rows: int = 0) -> dict[str, str]:
    return {
        **DEFAULTS,
        **(LOOPBACK if is_near(master) else {}),
        **(default_java_options(conf, os.environ, rows) if is_local(master) else {}),
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

    configured = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    interrupt = signal.getsignal(signal.SIGINT)
    java = JavaOutput(verbose)
    try:
        with worker_python(is_local=is_local(settings["spark.master"])):
            # An interrupt in here would leave Java running: its process is not recorded yet.
            with defer_interrupt(), java.pipe() as output:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    configured, {"stdout": output, "stderr": output}
                )
                SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
            context = SparkContext(conf=configured, gateway=gateway)
        context.setLogLevel("WARN" if verbose else "OFF")
        warehouse = str(_own_folder(context) / "warehouse")  # instead of the current folder
        return SparkSession.builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    except (PySparkException, Py4JError) as error:
        if STOPPED_CONTEXT in str(error) and not is_local(settings["spark.master"]):
            why = f"no answer from {settings['spark.master']} that Spark understands"
            raise ClusterUnavailable(why) from None
        raise JobFailed(f"Spark doesn't start: {java.reason(error)}", str(error)) from None
    finally:
        # PySpark's handler calls Java whenever the signal arrives, even in the middle of a
        # response. `end_session` handles an interrupt instead.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)


def _own_folder(context: "SparkContext") -> Path:
    # A temporary folder of Spark, which removes it at any kind of exit.
    return Path(context._temp_dir)


def _package(folder: Path) -> Path:
    """Zip the Python modules of the package for remote executors.

    It holds the sources, and bytecode for executors with the same Python version: modules
    imported from a zip are not cached, so each new process would compile them again.
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
    """End the Java process and clear PySpark's references to it, so that it can start again."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    if terminate:
        process.terminate()
    else:
        with contextlib.suppress(Exception):  # it may have exited already
            gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()  # Java exits when its standard input closes
    try:
        process.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if not terminate:
        silence_py4j(False)
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
