"""`mist pipeline` as people and scripts use it: processes of their own, a few with Spark."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mist.archive.segments import read_segment
from mist.cli.pipeline import pipeline as pipeline_group
from mist.pipeline.errors import NotInstalled
from mist.pipeline.java import require_java
from tests.pipeline.archives import Told, add_accounts, make_archive
from tests.processes import environment

SMALL = (
    "--master=local[1]",
    "--conf=spark.driver.memory=1g",
    "--conf=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "--conf=spark.sql.shuffle.partitions=1",
)


def pipeline(*arguments: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mist", "pipeline", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(PYTHONPATH=os.getcwd(), **variables),
        check=False,
    )


@pytest.fixture
def java() -> None:
    try:
        require_java()
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in which a server has left `mist-data/archive`."""
    told = [Told("order,eu" if n % 2 else "news", publisher="p") for n in range(100)]
    archive = make_archive(tmp_path / "mist-data" / "archive", told, segment=25)
    row = {"token": "t", "subscription": "news", "sent": 3, "dropped": 1, "bytes": 30}
    add_accounts(archive, "deliveries", [{"minute": 0, **row}])
    return tmp_path


def test_help_needs_nothing_of_spark() -> None:
    code = (
        "import sys; sys.argv = ['mist', '--help']\n"
        "from mist.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'pandas', 'py4j'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "pipeline" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["report", "volume"], 2, "no archive at mist-data/archive"),
        (["compact", "--archive", "nowhere"], 2, "no archive at nowhere"),
        (["report", "nonsense"], 2, "No such command"),
        (["report", "volume", "--archive", "a", "--url", "http://x"], 2, "one of them"),
        (["report", "volume", "--url", "nonsense"], 2, "url: "),
        (["report", "volume", "--conf", "nonsense"], 2, "spark.SOMETHING=VALUE"),
        (["match", "--subscriptions", "missing.txt"], 2, "missing.txt"),
        (["erase"], 2, "one of them"),
        (["erase", "--tag", "a", "--publisher", "b"], 2, "one of them"),
        (["stream", "--to", "lake"], 2, "give --url"),
        (["retain", "--days", "3"], 2, "no archive at mist-data/archive"),
    ],
)
def test_wrong_input_is_one_clear_line(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    done = pipeline(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "yesterday"], "not a time: 'yesterday'"),
        (["--from", "9", "--until", "5"], "nothing lies from 9 until 5"),
        (["--subscribe", "a;;b"], "subscribe: "),
        (["--out", "full"], "is there already; --overwrite replaces it"),
        (["--out", "file"], "file"),
    ],
)
def test_what_is_wrong_is_told_before_spark_is_started(
    data: Path, arguments: list[str], says: str
) -> None:
    (data / "full").mkdir()
    (data / "full" / "something").touch()
    (data / "file").touch()
    # With a Java that can't run: whoever gets to it says so.
    done = pipeline("report", "volume", *arguments, cwd=data, JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]


def test_a_bad_line_among_subscriptions_is_named(data: Path) -> None:
    (data / "wanted.txt").write_text("a,b\n\nx\ty\n")
    done = pipeline("match", "--subscriptions", "wanted.txt", cwd=data, JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert "wanted.txt, line 3" in done.stderr


def test_no_java_says_how_to_get_it(data: Path, tmp_path: Path) -> None:
    done = pipeline("report", "volume", cwd=data, JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "mist pipeline report volume: JAVA_HOME is /nowhere, which has no bin/java; "
        "Debian: apt install openjdk-17-jre-headless"
    )
    old = tmp_path / "java8" / "bin"
    old.mkdir(parents=True)
    (old / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    (old / "java").chmod(0o755)
    done = pipeline("report", "volume", cwd=data, JAVA_HOME=str(old.parent))
    assert "is Java 8" in done.stderr
    done = pipeline("report", "volume", cwd=data, JAVA_HOME="", PATH=str(tmp_path))
    assert "no JAVA_HOME, nor a java on the PATH" in done.stderr.splitlines()[-1]


def test_no_pyspark_names_the_extra(data: Path, tmp_path: Path, java: None) -> None:
    hidden = tmp_path / "hidden" / "pyspark"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('gone', name='pyspark')")
    code = (
        f"import sys; sys.path.insert(0, {str(hidden.parent)!r}); sys.argv[0] = 'mist'\n"
        "from mist.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "pipeline", "report", "volume"],
        cwd=data,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "the pipeline needs pyspark: pip install 'mist-pubsub[spark]'"
    )


def test_retention_runs_without_java(data: Path) -> None:
    done = pipeline("retain", "--days", "1", "--json", cwd=data, JAVA_HOME="/nowhere")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {table["table"] for table in summary["tables"]} == {"messages", "deliveries"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(pipeline_group)), ids=" ".join)
def test_no_two_options_of_a_command_have_one_name(path: tuple[str, ...]) -> None:
    # click warns, which is an error here.
    result = CliRunner().invoke(pipeline_group, [*path, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_what_a_token_published_is_erased_by_its_id(tmp_path: Path, java: None) -> None:
    token = "0123456789abcdef"
    told = [Told("a", b"theirs", publisher=token), Told("a", b"ours"), Told("b", publisher=token)]
    archive = make_archive(tmp_path / "archive", told).messages
    result = pipeline(
        *("erase", "--archive", "archive", "--token", token, "--no-log", "--receipt", "r.json"),
        *SMALL,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "r.json").read_text())
    (segment,) = archive.current().segments
    assert read_segment(archive, segment, ["data"]).to_pylist() == [{"data": b"ours"}]
    assert len(list(tmp_path.glob("archive/date=*/*.parquet"))) == 1


def test_a_report_gives_json_parquet_and_a_page(data: Path, java: None) -> None:
    done = pipeline(
        "report", "volume", "--out", "rows", "--html", "page.html", "--json", *SMALL, cwd=data
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)  # and nothing else is on standard output
    assert summary["messages"] == 100
    assert done.stderr.splitlines() == [
        "starting Spark",
        "adding up by hour and tag",
        "writing page.html",
    ]
    page = (data / "page.html").read_text()
    assert "<h1>Volume</h1>" in page
    assert "mist pipeline report volume" in page
    import pyarrow.parquet as pq

    assert set(pq.read_table(data / "rows").column("tag").to_pylist()) == {"order", "eu", "news"}
    # Nothing is left beside what was asked for: no warehouse, no half-made folder.
    assert sorted(path.name for path in data.iterdir()) == ["mist-data", "page.html", "rows"]


def test_nothing_selected_is_an_error_and_leaves_nothing(data: Path, java: None) -> None:
    done = pipeline("report", "tags", "--subscribe", "nobody", "--out", "rows", *SMALL, cwd=data)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("no message is selected")
    assert sorted(path.name for path in data.iterdir()) == ["mist-data"]


def test_interrupting_ends_with_130_and_no_traceback(data: Path, java: None) -> None:
    popen = subprocess.Popen(
        [sys.executable, "-m", "mist", "pipeline", "export", "--out", "copy", *SMALL],
        cwd=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=os.getcwd()),
    )
    with popen:
        assert popen.stderr is not None
        lines = []
        for line in popen.stderr:
            lines.append(line.strip())
            if line.startswith("writing"):  # a session is there, and a job begins
                break
        popen.send_signal(signal.SIGINT)
        out, err = popen.communicate(timeout=60)
    assert popen.returncode == 130, [*lines, err]
    assert "Traceback" not in err
    assert out == ""
    assert not (data / "copy").exists()
    assert [path.name for path in data.iterdir()] == ["mist-data"]
