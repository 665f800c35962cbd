"""A local session starts Java for a short life, unless the user has options for it."""

from pathlib import Path
from typing import Any

import pytest

from mist.pipeline.java_options import DEFAULT_OPTIONS, MANY_ROWS, default_java_options
from mist.pipeline.session import _settings

KEY = "spark.driver.defaultJavaOptions"
EXTRA = "spark.driver.extraJavaOptions"
OURS = {KEY: DEFAULT_OPTIONS}


@pytest.mark.parametrize(
    ("conf", "environ", "expected"),
    [
        ({}, {}, OURS),
        ({"spark.driver.memory": "4g"}, {"JAVA_HOME": "/java"}, OURS),
        ({EXTRA: "-Dhttp.proxyHost=proxy"}, {"JAVA_TOOL_OPTIONS": "-Xss2m"}, OURS),
        ({EXTRA: "-XX:+UseG1GC"}, {}, {}),
        ({KEY: ""}, {}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}, {}),
        ({}, {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=4"}, {}),
    ],
)
def test_what_the_user_has_tuned_is_left_alone(
    conf: dict[str, str], environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert default_java_options(conf, environ) == expected


def test_very_many_rows_are_left_to_both_compilers() -> None:
    assert default_java_options({}, {}, MANY_ROWS - 1) == OURS
    assert default_java_options({}, {}, MANY_ROWS) == {}
    assert KEY not in _settings("local[2]", {}, "mist", MANY_ROWS)


@pytest.mark.parametrize("by", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_sparks_own_file_of_settings_counts_too(tmp_path: Path, by: str) -> None:
    folder = tmp_path if by == "SPARK_CONF_DIR" else tmp_path / "conf"
    folder.mkdir(exist_ok=True)
    file = folder / "spark-defaults.conf"
    file.write_text(f"# {EXTRA} -XX:+UseZGC\nspark.driver.memory 2g\n")
    environ = {by: str(tmp_path)}
    assert default_java_options({}, environ) == OURS
    file.write_text(f"spark.driver.memory 2g\n{EXTRA}   -XX:+UseG1GC -Xss1m\n")
    assert default_java_options({}, environ) == {}
    # Settings of the command override the file, as in Spark.
    assert default_java_options({EXTRA: "-Da=b"}, environ) == OURS


def test_only_a_local_session_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    assert _settings("local[*]", {}, "mist")[KEY] == DEFAULT_OPTIONS
    assert KEY not in _settings("spark://h:7077", {}, "mist")
    assert KEY not in _settings("local[2]", {EXTRA: "-XX:+UseG1GC"}, "mist")


def test_java_runs_with_what_was_asked_for(spark: Any) -> None:
    # The tests' session is a local one without options of its own.
    management = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    collectors = [each.getName() for each in management.getGarbageCollectorMXBeans()]
    assert collectors == ["Copy", "MarkSweepCompact"]
