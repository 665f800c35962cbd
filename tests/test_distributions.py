"""The client can be installed alone, or beside the server, from the same modules."""

import ast
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import mist
from tests.import_graph import ImportGraph, import_graph
from tests.processes import environment, serving

ROOT = Path(mist.__file__).parents[1]
CLIENT = ROOT / "deploy" / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())

PUBLISH_AND_RECEIVE = """
import asyncio, sys
import mist.client
from mist.client import connect, sync

async def main():
    async with connect(sys.argv[1]) as client:
        async with client.subscribe(["a"]) as messages:
            await client.publish(["a", "b"], "17")
            async for message in messages:
                return message.text

print(asyncio.run(main()))
with sync.connect(sys.argv[1]) as client:
    client.publish(["a"], "18")
try:
    from mist import serve
except ImportError as error:
    print(error)
print(mist.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""


def build(project: Path, folder: Path, target: str, **variables: str) -> Path:
    """A distribution of a project, made as packaging tools make it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", target],
        cwd=project,
        env=environment(MIST_PURE="1", **variables),
        capture_output=True,
        check=True,
        timeout=120,
    )
    [made] = folder.iterdir()
    return made


def names(wheel: Path) -> set[str]:
    """The modules and other files of a wheel, without its metadata."""
    every = zipfile.ZipFile(wheel).namelist()
    return {name for name in every if ".dist-info/" not in name}


def metadata(wheel: Path) -> str:
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return archive.read(name).decode()


def graph() -> ImportGraph:
    return import_graph(ROOT / "mist")


def of_client() -> Iterator[str]:
    """The modules that a client needs, types included."""
    # `mist` names its version, and the server, only where they are asked for.
    found = {"mist", "mist.version"}
    found |= {name for name in graph().modules if f"{name}.".startswith("mist.client.")}
    waiting = list(found)
    while waiting:
        module = waiting.pop()
        edges = set[str]() if module == "mist" else set(graph().edges[module])
        parts = module.split(".")
        edges |= {".".join(parts[:length]) for length in range(1, len(parts))}
        waiting.extend(edges - found)
        found |= edges
    yield from found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CLIENT, tmp_path_factory.mktemp("client"), "wheel")


def test_it_contains_what_the_client_needs_and_nothing_else(wheel: Path) -> None:
    needed = {str(graph().modules[name].relative_to(ROOT)) for name in of_client()}
    assert names(wheel) == needed | {"mist/py.typed"}


def test_it_depends_on_what_it_imports() -> None:
    imported = set()
    for name in of_client():
        for node in ast.walk(ast.parse(graph().modules[name].read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    project = PROJECT["project"]
    # trio is imported only by a program that runs under it.
    declared = [*project["dependencies"], *project["optional-dependencies"]["trio"]]
    assert imported - set(sys.stdlib_module_names) - {"mist"} == {
        each.partition(">")[0] for each in declared
    }


def test_what_both_distributions_say_is_the_same() -> None:
    other = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = PROJECT["project"]
    assert own["version"] == other["version"] == mist.__version__
    assert own["requires-python"] == other["requires-python"]
    assert set(own["dependencies"]) < set(other["dependencies"])
    assert set(own["optional-dependencies"]["trio"]) < set(other["dependencies"])
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_alone_it_publishes_and_receives_and_loads_nothing_of_a_server(
    wheel: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    zipfile.ZipFile(wheel).extractall(alone)
    with serving(tmp_path / "data") as server:
        run = subprocess.run(
            [sys.executable, "-c", PUBLISH_AND_RECEIVE, server.urls[0]],
            env=environment(PYTHONPATH=str(alone)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.stderr == ""
    received, refused, where, loaded = run.stdout.splitlines()
    assert received == "17"
    assert refused == (
        "mist.serve is the server's, and only its client is installed: pip install mist-pubsub"
    )
    assert Path(where).parents[1] == alone
    assert not set(loaded.split()) & {"trio", "starlette", "structlog", "click", "bitarray"}


def test_beside_its_client_the_server_contains_the_rest(wheel: Path, tmp_path: Path) -> None:
    whole = build(ROOT, tmp_path / "whole", "wheel")
    rest = build(ROOT, tmp_path / "rest", "wheel", MIST_CLIENT_APART="1")
    assert names(rest) | names(wheel) == names(whole)
    assert not names(rest) & names(wheel)
    needs = f"Requires-Dist: mist-pubsub-client=={mist.__version__}"
    assert needs in metadata(rest)
    assert needs not in metadata(whole)


def test_its_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build(CLIENT, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    [source] = [path for path in tmp_path.iterdir() if path.name.startswith("mist_pubsub_client")]
    again = build(source, tmp_path / "again", "wheel")
    assert os.path.basename(again) == wheel.name
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
    for name in names(wheel):
        assert zipfile.ZipFile(again).read(name) == zipfile.ZipFile(wheel).read(name)
