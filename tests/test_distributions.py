"""A release has the client, benchmarks and Spark jobs in distributions of their own.

The client can be installed alone, the others beside the server, and all are from the same modules.
"""

import ast
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mist
from mist.cli import main
from mist.cli.lazy import LazyGroup
from tests.import_graph import ImportGraph, import_graph
from tests.processes import environment, serving

ROOT = Path(mist.__file__).parents[1]
SERVER = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PARTS: dict[str, Any] = {
    path.parent.name: tomllib.loads(path.read_text())
    for path in sorted(ROOT.glob("deploy/*/pyproject.toml"))
}
PROJECT = PARTS["client"]
# Sources of compiled modules, and what is npm's alone.
NOT_INSTALLED = {
    *("mist/broker/_projection.pyx", "mist/index/_narrow.pyx"),
    *("mist/static/README.md", "mist/static/package.json"),
}
# What a part imports where it is needed only, by the extra of mist-pubsub that has it.
OPTIONAL = {"bench": ["postgres", "redis", "spark"], "spark": ["delta"]}

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


def of_mist() -> set[str]:
    """All files of `mist/`, but for what tools leave there."""
    every = (path for path in (ROOT / "mist").rglob("*") if path.is_file())
    left = (".so", ".pyc")
    return {str(path.relative_to(ROOT)) for path in every if path.suffix not in left}


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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of a release, by the part's name and as `server`; not compiled."""
    folder = tmp_path_factory.mktemp("wheels")
    made = {name: build(ROOT / "deploy" / name, folder / name, "wheel") for name in PARTS}
    return {**made, "server": build(ROOT, folder / "server", "wheel", MIST_PARTS_APART="1")}


@pytest.fixture(scope="module")
def wheel(wheels: dict[str, Path]) -> Path:
    return wheels["client"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` makes."""
    return build(ROOT, tmp_path_factory.mktemp("whole"), "wheel")


def test_it_contains_what_the_client_needs_and_nothing_else(wheel: Path) -> None:
    needed = {str(graph().modules[name].relative_to(ROOT)) for name in of_client()}
    assert names(wheel) == needed | {"mist/py.typed"}


@cache
def imported(path: Path) -> set[str]:
    """The top-level names of all that a file imports, but for those of Python itself."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names)


def test_it_depends_on_what_it_imports() -> None:
    needed = set[str]().union(*(imported(graph().modules[name]) for name in of_client()))
    project = PROJECT["project"]
    # trio is imported only by a program that runs under it.
    declared = [*project["dependencies"], *project["optional-dependencies"]["trio"]]
    assert needed - {"mist"} == {each.partition(">")[0] for each in declared}


def test_the_client_needs_nothing_that_the_server_does_not() -> None:
    own = PROJECT["project"]
    assert set(own["dependencies"]) < set(SERVER["dependencies"])
    assert set(own["optional-dependencies"]["trio"]) < set(SERVER["dependencies"])


@pytest.mark.parametrize("name", PARTS)
def test_what_all_distributions_say_is_the_same(name: str) -> None:
    own = PARTS[name]["project"]
    assert own["name"] == f"mist-pubsub-{name}"
    assert own["version"] == SERVER["version"] == mist.__version__
    assert own["requires-python"] == SERVER["requires-python"]
    assert (ROOT / "deploy" / name / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


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


def test_wheels_of_a_release_share_no_file_and_are_all_of_mist_together(
    wheels: dict[str, Path], whole: Path
) -> None:
    every = [name for each in wheels.values() for name in names(each)]
    assert len(every) == len(set(every))
    assert set(every) == names(whole) == of_mist() - NOT_INSTALLED


def test_only_a_release_depends_on_its_parts_in_the_same_version(
    wheels: dict[str, Path], whole: Path
) -> None:
    parts = {line for line in requirements(wheels["server"]) if line.startswith("mist-pubsub")}
    version = mist.__version__
    assert parts == {
        f"mist-pubsub-client=={version}",
        f"mist-pubsub-bench=={version}; extra == 'bench'",
        f"mist-pubsub-spark=={version}; extra == 'delta'",
        f"mist-pubsub-spark=={version}; extra == 'spark'",
    }
    assert set(requirements(whole)) == set(requirements(wheels["server"])) - parts
    assert "Provides-Extra: bench\n" in metadata(whole)
    assert requirements(wheels["spark"]) == [f"mist-pubsub=={version}"]
    assert requirements(wheels["bench"]) == [
        f"mist-pubsub-spark=={version}",
        f"mist-pubsub=={version}",
    ]


def requirements(wheel: Path) -> list[str]:
    """What a wheel depends on, as its metadata says."""
    lines = metadata(wheel).splitlines()
    return [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]


def comes_with(wheels: dict[str, Path], name: str) -> set[str]:
    """A wheel, and those of this release that it always depends on."""
    found = {name}
    waiting = [name]
    while waiting:
        for line in requirements(wheels[waiting.pop()]):
            needed, _, condition = line.partition(";")
            other = needed.partition("==")[0].removeprefix("mist-pubsub").lstrip("-") or "server"
            if needed.startswith("mist-pubsub") and not condition and other not in found:
                found.add(other)
                waiting.append(other)
    return found


@pytest.mark.parametrize("name", ["server", *PARTS])
def test_a_wheel_imports_no_module_that_does_not_come_with_it(
    wheels: dict[str, Path], name: str
) -> None:
    there = set[str]().union(*(names(wheels[each]) for each in comes_with(wheels, name)))
    files = {module: str(path.relative_to(ROOT)) for module, path in graph().modules.items()}
    own = names(wheels[name])
    assert [
        f"{module} imports {other}"
        for module, imported in graph().edges.items()
        # `mist` names what is the server's only where it is asked for.
        if module != "mist" and files[module] in own
        for other in imported
        if files[other] not in there
    ] == []


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_part_imports_nothing_else_than_what_the_server_or_an_extra_depends_on(name: str) -> None:
    modules = [
        path
        for path in graph().modules.values()
        for each in PARTS[name]["tool"]["mist"]["modules"]
        if path.is_relative_to(ROOT / "mist" / each)
    ]
    assert modules
    declared = set(SERVER["dependencies"]).union(*map(optional, OPTIONAL[name]))
    known = {re.split(r"[\[>=]", each)[0].replace("-", "_") for each in declared}
    known.add("py4j")  # how PySpark speaks with Java, in one version only
    assert set[str]().union(*map(imported, modules)) - {"mist"} <= known


def optional(extra: str) -> set[str]:
    """What an extra of the server depends on, with the extras in it."""
    found = set[str]()
    for each in SERVER["optional-dependencies"][extra]:
        inner = re.fullmatch(r"mist-pubsub\[(\w+)\]", each)
        found |= optional(inner[1]) if inner else {each}
    return found


@pytest.mark.parametrize("name", PARTS)
def test_each_command_in_a_part_is_known_with_its_extra(wheels: dict[str, Path], name: str) -> None:
    assert isinstance(main, LazyGroup)
    own = names(wheels[name])
    homes = {
        command: graph().modules[place.partition(":")[0]].relative_to(ROOT)
        for command, (place, _) in main.lazy_commands.items()
    }
    commands = {command for command, home in homes.items() if str(home) in own}
    extras = PARTS[name]["tool"]["mist"].get("extras", [])
    assert commands == {command for command, extra in main.extras.items() if extra in extras}


@pytest.fixture
def alone(wheels: dict[str, Path], tmp_path: Path) -> Path:
    """A virtual environment with the server of a release, and what it always depends on."""
    folder = tmp_path / "alone"
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # What it depends on, from where this runs, and where a mist may be installed as well: that
    # stands behind the one of here, and is nothing to pip.
    others = {sysconfig.get_path(each) for each in ("purelib", "platlib")}
    (packages / "others.pth").write_text("".join(f"{each}\n" for each in others))
    install(folder, wheels, "--ignore-installed", "--no-deps", wheels["server"], wheels["client"])
    return folder


def install(folder: Path, wheels: dict[str, Path], *what: str | Path) -> None:
    """`pip install` into a virtual environment, from the wheels of this release alone."""
    pip = [sys.executable, "-m", "pip", "--python", folder, "--disable-pip-version-check"]
    links = [f"--find-links={each.parent}" for each in wheels.values()]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", "--no-index", *links, *what],
        env=clean(),
        check=True,
        timeout=120,
    )


def clean(**variables: str) -> dict[str, str]:
    """An environment that names no other mist than the installed one."""
    return {key: text for key, text in environment(**variables).items() if key != "PYTHONPATH"}


def run_installed(
    folder: Path, *arguments: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [folder / "bin" / "mist", *arguments],
        cwd=folder,
        env=clean(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "extra", "missing"),
    [("bench", "bench", {"bench", "spark"}), ("pipeline", "spark", {"spark"})],
)
def test_a_command_whose_part_is_missing_says_what_installs_it(
    wheels: dict[str, Path], alone: Path, command: str, extra: str, missing: set[str]
) -> None:
    advice = f"mist: {command} is missing; pip install 'mist-pubsub[{extra}]'\n"
    for arguments in ([], ["--help"], ["match", "--json"]):
        done = run_installed(alone, command, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", advice)
    # As it says, and with nothing to download but what is missing.
    install(alone, wheels, shlex.split(advice)[-1])
    assert {path.name for path in alone.glob("lib/*/site-packages/mist_pubsub_*.dist-info")} == {
        f"mist_pubsub_{each}-{mist.__version__}.dist-info" for each in {"client", *missing}
    }
    done = run_installed(alone, command, "match", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: mist {command} match" in done.stdout


def test_without_parts_there_are_help_and_completion(alone: Path) -> None:
    assert " bench " in run_installed(alone, "--help").stdout

    def complete(line: str) -> str:
        done = run_installed(
            alone,
            _MIST_COMPLETE="bash_complete",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert complete("mist b") == "plain,backup\nplain,bench\n"
    assert complete("mist bench ") == complete("mist pipeline report ") == "\n"  # nothing
    assert "plain,--help" in complete("mist bench --")


@pytest.mark.parametrize("name", PARTS)
def test_a_source_distribution_makes_the_same_wheel(
    wheels: dict[str, Path], name: str, tmp_path: Path
) -> None:
    archive = build(ROOT / "deploy" / name, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as opened:
        assert [each.name for each in opened if not each.isfile()] == []  # links lead nowhere
        opened.extractall(tmp_path, filter="data")
    again = build(tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "again", "wheel")
    assert again.name == wheels[name].name
    one, other = zipfile.ZipFile(again), zipfile.ZipFile(wheels[name])
    assert one.namelist() == other.namelist()
    for each in one.infolist():
        assert one.read(each) == other.read(each.filename)
        assert each.external_attr == other.getinfo(each.filename).external_attr
