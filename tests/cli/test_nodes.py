"""`mist nodes`, as a process."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mist.version import __version__
from tests.processes import mist, serving

LISTEN = ("--listen", "http://127.0.0.1:0")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--engine", "memory://", "--node", "eu-1", "--advertise", "https://eu-1.example")
    folder = tmp_path_factory.mktemp("node")
    with serving(folder, *options, "--tokens", "memory://", listen=LISTEN) as node:
        yield node.urls[0]


def test_nodes_are_a_table(url: str) -> None:
    run = mist("nodes", "--server", url)
    assert (run.returncode, run.stderr) == (0, "")
    head, line = run.stdout.splitlines()
    assert head.split()[:4] == ["NODE", "STATUS", "VERSION", "UP"]
    assert line.split()[:3] == ["eu-1*", "ready", __version__]
    assert line.rstrip().endswith("https://eu-1.example")


def test_the_node_that_seals_is_marked(tmp_path: Path) -> None:
    options = ("--engine", "memory://", "--tokens", "memory://", "--node", "one")
    archive = ("--archive", str(tmp_path / "archive"))
    with serving(tmp_path / "d", *options, *archive, listen=LISTEN) as node:
        give_up = time.monotonic() + 10
        while "ready, seals" not in (run := mist("nodes", "--server", node.urls[0])).stdout:
            assert time.monotonic() < give_up, run.stdout


def test_nodes_are_json_for_scripts(url: str) -> None:
    run = mist("nodes", "--json", MIST_URL=url)
    assert (run.returncode, run.stderr) == (0, "")
    [node] = json.loads(run.stdout)["nodes"]
    assert (node["name"], node["status"], node["here"]) == ("eu-1", "ready", True)


def test_a_server_that_is_named_by_another_way_is_told_so(url: str) -> None:
    run = mist("nodes", MIST_SERVER="tcp://127.0.0.1:1445")
    text = "--server: not an HTTP listener; try http://127.0.0.1:8080"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"mist nodes: {text}\n")
    assert mist("nodes", MIST_SERVER="tcp://127.0.0.1:1445", MIST_URL=url).returncode == 0
    assert mist("nodes", MIST_SERVER=url).returncode == 0


def test_a_server_without_an_engine_says_that_it_is_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "d", listen=LISTEN, MIST_SECRET="geheim") as server:
        run = mist("nodes", "--server", server.urls[0], MIST_SECRET="geheim")
        assert run.returncode == 0
        assert run.stderr == "This server has no engine, and is the only node.\n"
        assert len(run.stdout.splitlines()) == 2
        refused = mist("nodes", "--server", server.urls[0], MIST_SECRET="wrong-one")
    assert refused.returncode == 1
    assert "answers 401" in refused.stderr
    assert "wrong-one" not in refused.stderr


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("http://127.0.0.1:1", 3, "can't reach 127.0.0.1:1: Connection refused"),
        ("tcp://127.0.0.1:1445", 2, "--server: not an HTTP listener; try http://127.0.0.1:8080"),
        ("http://u:geheim@127.0.0.1", 2, "--server: host, port and path only"),
        ("http://[", 2, "--server: not an HTTP listener; try http://127.0.0.1:8080"),
    ],
)
def test_what_is_no_server_is_told_in_one_line(url: str, code: int, text: str) -> None:
    run = mist("nodes", "--server", url)
    assert (run.returncode, run.stdout, run.stderr) == (code, "", f"mist nodes: {text}\n")
