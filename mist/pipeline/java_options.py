"""Options of the Java process of a local session.

A job of mist does its work in Python and Arrow; Java plans it and moves little. So it pays to start
Java for a short life: the first compiler alone (C1), which compiles at once instead of profiling
for the second, and a collector without threads of its own. Java is left as it is on a cluster, and
where very many rows pass through it, as in an export, since the second compiler pays then.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["DEFAULT_OPTIONS", "MANY_ROWS", "default_java_options"]

DEFAULT_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# The first million messages of an export to Parquet took 29 CPU seconds with the start, and each
# further one 12; with Java as Spark starts it 38 and 7.
MANY_ROWS: Final = 2_500_000

# Spark puts the options of the first before those of the second.
_DEFAULT: Final = "spark.driver.defaultJavaOptions"
_KEYS: Final = (_DEFAULT, "spark.driver.extraJavaOptions")
_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_FILE: Final = "spark-defaults.conf"
_LINE: Final = re.compile(r"^\s*(spark\.driver\.\w+JavaOptions)[\s=:]+(.*)$", re.MULTILINE)


def default_java_options(
    conf: Mapping[str, str], environ: Mapping[str, str], rows: int = 0
) -> dict[str, str]:
    """Spark settings for a local session; none where the user has tuned Java already.

    Java refuses to start with two collectors, so any `-XX:` of the user's leaves all of it to them.

    Args:
        conf: the user's Spark settings; they override Spark's own file of settings.
        environ: such as `os.environ`.
        rows: that pass through Java, about; those that kernels only count don't.
    """
    if rows >= MANY_ROWS:
        return {}
    given = list(_options_of(conf, environ))
    if _DEFAULT in conf or any("-XX:" in options for options in given):
        return {}
    return {_DEFAULT: DEFAULT_OPTIONS}


def _options_of(conf: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    """Options of Java that the user gives, wherever Spark or Java itself finds them."""
    yield from (environ.get(name, "") for name in _VARIABLES)
    yield from (conf.get(key, "") for key in _KEYS)
    for key, options in _LINE.findall(_defaults_file(environ)):
        if key not in conf:
            yield options


def _defaults_file(environ: Mapping[str, str]) -> str:
    if folder := environ.get("SPARK_CONF_DIR"):
        path = Path(folder) / _FILE
    elif home := environ.get("SPARK_HOME"):
        path = Path(home) / "conf" / _FILE
    else:
        return ""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
