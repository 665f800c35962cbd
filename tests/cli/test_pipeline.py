"""`mist pipeline` as people and scripts use it: what is told without Spark, and as processes of
their own one of each kind. What the commands do with Spark is in `tests/pipeline`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import trustme
from click.testing import CliRunner, Result

from mist.cli import main
from mist.cli.pipeline import pipeline as pipeline_group
from mist.cli.pipeline.runner import output_folder
from mist.pipeline.errors import BadInput
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client
from mist.pipeline.source.errors import ServerRefused
from tests.pipeline.archives import Told, add_accounts, make_archive
from tests.processes import environment, mist, serving

SMALL = (
    "--master=local[1]",
    "--conf=spark.driver.memory=1g",
    "--conf=spark.sql.shuffle.partitions=1",
)


def pipeline(*arguments: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return mist("pipeline", *arguments, cwd=cwd, timeout=300, **variables)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process in the test's folder, with none of mist's settings in its environment."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("MIST_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def invoke(*arguments: str, **variables: str) -> Result:
    """A command that ends before Spark is started, in this process."""
    return CliRunner(env=variables).invoke(main, ["pipeline", *arguments], prog_name="mist")


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
        (["stream", "--to", "lake"], 2, "give --server"),
        (["retain", "--days", "3"], 2, "no archive at mist-data/archive"),
    ],
)
def test_wrong_input_is_one_clear_line(
    here: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    done = invoke(*arguments, JAVA_HOME="/nowhere")
    assert done.exit_code == code
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
        (["--out", "mist-data/archive", "--overwrite"], "is an archive, which"),
        (["--out", "mist-data", "--overwrite"], "has an archive in it, which"),
        (["--out", ".", "--overwrite"], "has an archive in it, which"),
        (["--out", "empty", "--html", "empty/page.html"], "is in --out empty, which is made anew"),
    ],
)
def test_what_is_wrong_is_told_before_spark_is_started(
    data: Path, here: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    (data / "full").mkdir()
    (data / "full" / "something").touch()
    (data / "empty").mkdir()
    (data / "file").touch()
    # With a Java that can't run: the command that needs it says so.
    done = invoke("report", "volume", *arguments, JAVA_HOME="/nowhere")
    assert done.exit_code == 2
    assert says in done.stderr.splitlines()[-1]


def test_what_was_put_at_out_while_a_job_ran_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        pytest.raises(BadInput, match="is there already; --overwrite replaces it"),
        output_folder(out, overwrite=False) as making,
    ):
        assert making is not None
        making.mkdir()
        out.mkdir()
        (out / "of another job").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "of another job"]


def test_a_bad_line_among_subscriptions_is_named(data: Path, here: pytest.MonkeyPatch) -> None:
    (data / "wanted.txt").write_text("a,b\n\nx\ty\n")
    done = invoke("match", "--subscriptions", "wanted.txt", JAVA_HOME="/nowhere")
    assert done.exit_code == 2
    assert "wanted.txt, line 3" in done.stderr


@pytest.mark.parametrize("command", [("match",), ("report", "coverage")])
def test_attributes_that_are_none_are_told_before_spark_is_started(
    data: Path, here: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    Path("wanted.txt").write_text("/a\n")
    given = ("--subscriptions", "wanted.txt", "--attributes", "user=1,2")
    done = invoke(*command, *given, JAVA_HOME="/nowhere")
    assert done.exit_code == 2
    assert "Invalid value for '--attributes': Invalid audience or attributes: " in done.output


def test_no_java_says_how_to_get_it(data: Path, here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = invoke("report", "volume", JAVA_HOME="/nowhere")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == (
        "mist pipeline report volume: JAVA_HOME is /nowhere, which has no bin/java; "
        "Debian: apt install openjdk-17-jre-headless"
    )
    old = tmp_path / "java8" / "bin"
    old.mkdir(parents=True)
    (old / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    (old / "java").chmod(0o755)
    done = invoke("report", "volume", JAVA_HOME=str(old.parent))
    assert "is Java 8" in done.stderr
    done = invoke("report", "volume", JAVA_HOME="", PATH=str(tmp_path))
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


def test_retention_runs_without_java(data: Path, here: pytest.MonkeyPatch) -> None:
    done = invoke("retain", "--days", "1", "--json", JAVA_HOME="/nowhere")
    assert done.exit_code == 0, done.stderr
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


def test_a_token_reads_what_it_was_granted_over_https(
    tmp_path: Path, here: pytest.MonkeyPatch, java: None
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pem"))
    listen = ("--listen", "tcp://127.0.0.1:0", "--listen", "https://127.0.0.1:0")
    pem = ("--tls-cert", str(tmp_path / "pem"), "--tls-key", str(tmp_path / "pem"))
    with serving(tmp_path / "data", *pem, "--secret", "s3cret", listen=listen) as server:
        tcp, https = server.urls
        assert https.startswith("https://127.0.0.1:")
        service = ("--host", tcp, "--secret", "s3cret")
        for tags in ("order,eu", "news", "order"):
            assert mist("publish", tags, "17", *service).returncode == 0
        token = mist("token", "new", "order", *service).stdout.strip()
        # A server without a trusted certificate is sent nothing, and no secret either.
        make_archive(tmp_path / "archive", [Told("a")])
        to = ("--to", https, "--to-secret", "s3cret")
        done = invoke("replay", "--archive", "archive", *to, JAVA_HOME="/nowhere")
        assert done.exit_code == 1
        assert "its certificate is not trusted" in done.stderr.splitlines()[-1]

        trusting = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        read = ("report", "tags", "--url", https, "--token", token, "--json")
        result = pipeline(*read, "--subscribe", "order", *SMALL, cwd=tmp_path, **trusting)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["messages"] == 2
        assert token not in result.stderr
        here.setenv("SSL_CERT_FILE", trusting["SSL_CERT_FILE"])
        with Client(Address.parse(https, None, token)) as client:
            with pytest.raises(ServerRefused, match="403 not_granted"):
                client.request("GET", "/v1/log", {"subscribe": "news"})
        with Client(Address.parse(https, None, "another")) as client:
            with pytest.raises(ServerRefused, match="answered 401"):
                client.request("GET", "/v1/log", {"subscribe": "order"})


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
