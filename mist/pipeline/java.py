"""Finding the Java runtime that Spark uses, in the places where Spark looks."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mist.pipeline.errors import NotInstalled

__all__ = ["OLDEST", "require_java"]

OLDEST: Final = 17
ADVICE: Final = "Debian: apt install openjdk-17-jre-headless"
JAVA_TIMEOUT: Final = 30.0  # seconds for `java -version`, which takes 0.1


def require_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` that Spark will start: the one of JAVA_HOME, else the first on the PATH.

    Raises:
        NotInstalled: none, one that doesn't run, or one older than 17.
    """
    path = _find(environ)
    try:
        said = subprocess.run(  # noqa: S603  # what the user's own environment names
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"{path} doesn't run ({error}); Spark needs Java: {ADVICE}") from None
    version = parse_version(said.stderr + said.stdout)
    if version < OLDEST:
        is_it = f"is Java {version}" if version else "doesn't say which Java it is"
        raise NotInstalled(f"Spark needs Java {OLDEST} or 21, and {path} {is_it}; {ADVICE}")
    return path


def _find(environ: Mapping[str, str]) -> Path:
    if home := environ.get("JAVA_HOME"):
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise NotInstalled(f"JAVA_HOME is {home}, which has no bin/java; {ADVICE}")
        return path
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        raise NotInstalled(
            f"Spark needs Java {OLDEST} or 21, and there is no JAVA_HOME, nor a java on the PATH; "
            + ADVICE
        )
    return Path(found)


def parse_version(text: str) -> int:
    """`openjdk version "17.0.15" …` → 17, and `"1.8.0_292"` → 8; 0 where it can't be told."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0
