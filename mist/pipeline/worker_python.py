"""Which Python Spark starts for its workers on this machine.

For each of the tasks in Python Spark starts at least one, and has it import PySpark from a zip,
ahead of what is installed. Of what it imports from a zip Python keeps nothing compiled: such a
worker took 0.67 s of CPU to begin, and 0.21 from the installed folder. A job starts half a dozen,
and a stream one for each source. So Spark is given a script, `worker_python.sh`, that takes its
zips off the path and becomes this Python.
"""

import importlib.util
import os
import site
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["worker_python"]

SCRIPT: Final = Path(__file__).with_suffix(".sh")
_CHOSEN: Final = "PYSPARK_PYTHON"
_BEHIND_SCRIPT: Final = "MIST_WORKER_PYTHON"
_NEEDED: Final = ("pyspark", "py4j")


@contextmanager
def worker_python(*, is_local: bool) -> Iterator[None]:
    """Have a Spark that is started in the block start this Python for its workers.

    Args:
        is_local: whether they run on this machine alone, where another Python would be refused;
            else what PYSPARK_PYTHON names is the one.
    """
    before = {name: os.environ.get(name) for name in (_CHOSEN, _BEHIND_SCRIPT)}
    if is_local and _goes_without_zips(os.environ):
        os.environ |= {_CHOSEN: str(SCRIPT), _BEHIND_SCRIPT: sys.executable}
    elif is_local:
        os.environ[_CHOSEN] = sys.executable
    else:
        os.environ.setdefault(_CHOSEN, sys.executable)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _goes_without_zips(environ: Mapping[str, str]) -> bool:
    """Whether a new process of this Python finds the same PySpark without Spark's zips."""
    if "SPARK_HOME" in environ or not os.access(SCRIPT, os.X_OK):
        return False
    searched = [*environ.get("PYTHONPATH", "").split(os.pathsep), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        searched.append(site.getusersitepackages())
    folders = {Path(each).resolve() for each in searched if each}
    found = [importlib.util.find_spec(name) for name in _NEEDED]
    return all(
        spec is not None
        and spec.origin is not None
        and Path(spec.origin).resolve().parents[1] in folders
        for spec in found
    )
