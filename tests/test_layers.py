"""The layers hold: imports point down, never in a circle, and the core does no I/O.

Imports for type checking count like any other, and so do those inside functions.
"""

import ast
import subprocess
import sys
import textwrap
import tomllib
from itertools import zip_longest
from pathlib import Path

import pytest

import mist
from tests.import_graph import ImportGraph, cycles, import_graph, place_of, upward

ROOT = Path(mist.__file__).parent

# From the bottom up, one place a line: it imports only itself and the lines before it. What is
# used high up but needs little stands as low as it can (client, config, pipeline), so that it goes
# on to need little.
LAYERS = [
    "version",
    "errors",
    "addresses",
    "fields",
    "attributes",
    "terms",
    "token_info",
    "audience",
    "message",
    "wire",
    "commands",
    "long_list",
    "replies",
    "origins",
    "index",
    "protocols",
    "change",
    "outage",
    "deadlines",
    "schedule",
    "token_bucket",
    "turn_queue",
    "fair_limiter",
    "turns",
    "newcomers",
    "telemetry",
    "client",
    "broker",
    "sqlite",
    "auth",
    "history",
    "engine",
    "config",
    "certificate_validity",
    "certificate",
    "archive",
    "pipeline",
    "sessions",
    "bus",
    "systemd",
    "control",
    "listening",
    "transports",
    "http",
    "allocator",
    "collector",
    "descriptors",
    "logs",
    "server",
    "reloading",
    "backup",
    "serving",
    "bench",
    "cli",
    "__main__",
    "__init__",
]
# The same in a picture: the first place of each group, and what its row is called.
GROUPS = {
    "version": "vocabulary",
    "index": "bytes, index",
    "change": "tools",
    "broker": "who gets it",
    "sqlite": "what is kept",
    "sessions": "peers",
    "systemd": "endpoints",
    "allocator": "the process",
    "bench": "commands",
}
WIDTH = 64
CORE = {
    "version",
    "errors",
    "addresses",
    "fields",
    "attributes",
    "terms",
    "token_info",
    "audience",
    "message",
    "wire",
    "commands",
    "long_list",
    "replies",
    "origins",
    "deadlines",
    "token_bucket",
    "index",
    "protocols",
    "broker",
}
IO = {"trio", "socket", "threading", "time", "asyncio", "sqlite3", "os", "select", "trio_websocket"}


def graph() -> ImportGraph:
    """Of all of mist."""
    return import_graph(ROOT)


def imports(path: Path) -> set[str]:
    """The top-level names of all that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_every_place_has_one_layer() -> None:
    assert len(LAYERS) == len(set(LAYERS))
    assert set(LAYERS) == set(graph().places)


def picture() -> str:
    """The layers from the top down, a group in a row; a star marks the core."""
    names = [place + "*" * (place in CORE) for place in LAYERS]
    starts = [LAYERS.index(first) for first in GROUPS]
    lines = []
    for group, start, end in zip(GROUPS.values(), starts, [*starts[1:], len(LAYERS)], strict=True):
        cells = textwrap.wrap("  ".join(names[start:end]), WIDTH)
        rows = zip_longest([group], cells, fillvalue="")
        lines.append("\n".join([f"│ {name:<12} │ {cell:<{WIDTH}} │" for name, cell in rows]))
    between = f"\n├{14 * '─'}┼{(WIDTH + 2) * '─'}┤\n"
    top = f"┌{14 * '─'}┬{(WIDTH + 2) * '─'}┐\n"
    bottom = f"\n└{14 * '─'}┴{(WIDTH + 2) * '─'}┘\n"
    return top + between.join(lines[::-1]) + bottom


def test_the_picture_in_the_documentation_shows_these_layers() -> None:
    page = (ROOT.parent / "docs" / "source.md").read_text()
    assert picture() in page, f"paste:\n{picture()}"


def test_imports_point_down() -> None:
    against = set(upward(graph().places, LAYERS))
    assert [
        f"{module} imports {other}"
        for module, imported in graph().edges.items()
        for other in imported
        if (place_of(module), place_of(other)) in against
    ] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(graph().edges) == []


def test_the_core_does_no_io() -> None:
    core = [module for module in graph().modules if place_of(module) in CORE]
    assert len(core) > 30
    doing = {module: found for module in core if (found := imports(graph().modules[module]) & IO)}
    assert doing == {}
    assert {place_of(each) for module in core for each in graph().edges[module]} <= CORE


def test_every_layer_that_exists_is_seen() -> None:
    assert set(graph().places) >= CORE | {"auth", "sessions", "server"}


def test_the_package_itself_costs_nothing_to_import() -> None:
    code = "import sys, mist; print(sorted(name for name in sys.modules if 'mist' in name))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "['mist']\n"


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert mist.__version__ == project["version"]


def test_every_public_name_is_there() -> None:
    for name in mist.__all__:
        assert name in dir(mist)
        assert getattr(mist, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'surely_not'"):
        _ = mist.surely_not
