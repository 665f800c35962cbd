"""Preflight checks before Spark is started: the Java runtime, PySpark, and the Spark master.

Each raises an error of one line. Without them a missing Java is a traceback, and Spark tries to
reach an absent cluster for a minute and a half before it reports something else as stopped.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mist.pipeline.errors import ClusterUnavailable, NotInstalled

__all__ = ["OLDEST_JAVA", "is_local", "is_near", "require_java", "require_master", "require_spark"]

OLDEST_JAVA: Final = 17
ADVICE: Final = "Debian: apt install openjdk-17-jre-headless"
JAVA_TIMEOUT: Final = 30.0  # seconds for `java -version`, which takes a tenth of one
MASTER_TIMEOUT: Final = 15.0  # seconds for all masters of a cluster together
DEFAULT_PORT: Final = 7077
_SCHEME: Final = "spark://"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/,]+)(?::([0-9]{1,5}))?")


def require_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` that Spark will start: from JAVA_HOME, else the first on the PATH.

    Raises:
        NotInstalled: there is none, it doesn't run, or it is older than 17.
    """
    path = _find_java(environ)
    try:
        output = subprocess.run(  # noqa: S603  # named by the user's environment
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"{path} doesn't run ({error}); Spark needs Java: {ADVICE}") from None
    version = parse_version(output.stderr + output.stdout)
    if version < OLDEST_JAVA:
        is_it = f"is Java {version}" if version else "doesn't say which Java it is"
        raise NotInstalled(f"Spark needs Java {OLDEST_JAVA} or 21, and {path} {is_it}; {ADVICE}")
    return path


def _find_java(environ: Mapping[str, str]) -> Path:
    if home := environ.get("JAVA_HOME"):
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise NotInstalled(f"JAVA_HOME is {home}, which has no bin/java; {ADVICE}")
        return path
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        raise NotInstalled(
            f"Spark needs Java {OLDEST_JAVA} or 21, and there is no JAVA_HOME, nor a java on the"
            f" PATH; {ADVICE}"
        )
    return Path(found)


def parse_version(text: str) -> int:
    """`openjdk version "17.0.15" …` → 17, and `"1.8.0_292"` → 8; 0 if unknown."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def require_spark() -> None:
    """Check that PySpark, and what it needs for Arrow, can be imported.

    Raises:
        NotInstalled: a package is missing; the text names the extra.
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


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's environment, with the same packages."""
    return master == "local" or master.startswith("local[")


def is_near(master: str) -> bool:
    """Whether the master is on this machine."""
    return is_local(master) or bool(re.match(r"spark://(127\.|localhost\b|\[::1\])", master))


def require_master(master: str, *, timeout: float = MASTER_TIMEOUT) -> None:
    """Check that a standalone master accepts connections.

    Only for `spark://HOST:PORT,HOST:PORT`, of which one has to answer. Spark finds masters of
    other kinds itself, and reports a malformed URL.

    Raises:
        ClusterUnavailable: no master answers.
    """
    addresses = _addresses(master)
    why = ""
    for host, port in addresses:
        try:
            with socket.create_connection((host, port), timeout / len(addresses)):
                return
        except OSError as error:
            why = error.strerror or "no answer in time"
    if addresses:
        raise ClusterUnavailable(f"no answer from {master}: {why}")


def _addresses(master: str) -> list[tuple[str, int]]:
    if not master.startswith(_SCHEME):
        return []
    found = [_HOST_AND_PORT.fullmatch(each) for each in master.removeprefix(_SCHEME).split(",")]
    addresses = [(each[1].strip("[]"), int(each[2] or DEFAULT_PORT)) for each in found if each]
    return (
        addresses
        if len(addresses) == len(found) and all(port < 65_536 for _, port in addresses)
        else []
    )
