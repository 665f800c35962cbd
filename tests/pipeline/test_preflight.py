"""Preflight checks: what is missing is an error of one line, before Java is started."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mist.pipeline.errors import ClusterUnavailable
from mist.pipeline.preflight import is_local, is_near, parse_version, require_master
from tests.pipeline.archives import Told, make_archive
from tests.processes import environment


@pytest.fixture
def nobody() -> Iterator[str]:
    """A port that nobody listens at, nor can meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def somebody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_cluster_that_is_not_there_is_named(nobody: str) -> None:
    with pytest.raises(ClusterUnavailable) as caught:
        require_master(f"spark://{nobody}")
    assert str(caught.value) == f"no answer from spark://{nobody}: Connection refused"


def test_a_cluster_that_says_nothing_is_not_waited_for() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = full.getsockname()
        with socket.create_connection(place), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(place)
            began = time.monotonic()
            with pytest.raises(ClusterUnavailable, match="no answer in time"):
                require_master(f"spark://127.0.0.1:{place[1]}", timeout=0.2)
            assert time.monotonic() - began < 5


def test_one_of_several_masters_is_enough(nobody: str, somebody: str) -> None:
    require_master(f"spark://{somebody}")
    require_master(f"spark://{nobody},{somebody}")
    with pytest.raises(ClusterUnavailable, match="no answer from spark://"):
        require_master(f"spark://{nobody},{nobody}")


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "yarn", "k8s://https://127.0.0.1:1", "spark://", "nonsense",
     "spark://a:b", "spark://127.0.0.1:99999", "spark://127.0.0.1:1,", "spark://user@x/y:1:2"],
)  # fmt: skip
def test_what_is_no_address_is_left_to_spark(master: str) -> None:
    require_master(master)


@pytest.mark.parametrize(
    ("master", "local", "near"),
    [
        ("local[*]", True, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://[::1]:7077", False, True),
        ("spark://localhost:7077", False, True),
        ("spark://localhosts:7077", False, False),
        ("spark://10.0.0.1:7077", False, False),
        ("yarn", False, False),
    ],
)
def test_what_is_on_this_machine(master: str, local: bool, near: bool) -> None:
    assert (is_local(master), is_near(master)) == (local, near)


def test_the_command_says_it_in_one_line_without_java(tmp_path: Path, nobody: str) -> None:
    make_archive(tmp_path / "archive", [Told("a")])
    # A Java that is there, and would say so if it were started.
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "mist", "pipeline", "report", "volume",
         "--archive", "archive", "--master", f"spark://{nobody}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(PYTHONPATH=os.getcwd(), JAVA_HOME=str(tmp_path / "java")),
        check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        f"mist pipeline report volume: no answer from spark://{nobody}: Connection refused"
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no java at all", 0),
    ],
)
def test_the_version_of_java(text: str, version: int) -> None:
    assert parse_version(text) == version
