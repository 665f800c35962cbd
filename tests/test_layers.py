"""The layers hold: imports point down, and the core does no I/O."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mist

ROOT = Path(mist.__file__).parent

# From the bottom up. What stands on one line may import each other; a layer imports only
# itself and those before it.
LAYERS = [
    ["errors", "version"],
    ["addresses", "audience"],
    ["message"],
    ["wire"],
    ["commands", "index", "replies"],
    ["protocols"],
    ["change"],
    ["broker"],
    ["sqlite"],
    ["auth", "history"],
    ["archive"],
    ["sessions"],
    ["bus"],
    ["config"],
    ["listening", "transports"],
    ["http"],
    ["collector", "server"],
    ["client"],
    ["pipeline"],
    ["bench", "logs"],
    ["cli"],
    ["__main__", "__init__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# These stand high because of who uses them, but use no more than what is named here.
CEILINGS = {"client": "change", "config": "history", "pipeline": "archive"}
CORE = {"errors", "addresses", "audience", "message", "wire", "commands", "index"}
CORE |= {"protocols", "broker"}
IO = {"trio", "socket", "threading", "time", "asyncio", "sqlite3", "os", "select", "trio_websocket"}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every module imported, those for type checking only left out."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    assert part in RANK, f"{part} has no place in the layers"
    for name in imports(path):
        if name.startswith("mist."):
            target = name.split(".")[1]
            highest = RANK[CEILINGS.get(part, part)]
            assert target == part or RANK[target] <= highest, f"{part} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_does_no_io(path: Path) -> None:
    if part_of(path) in CORE:
        names = imports(path)
        assert not {name.split(".")[0] for name in names} & IO
        assert "mist.change" not in names  # which is trio by another name


def test_every_layer_that_exists_is_seen() -> None:
    assert {part_of(path) for path in MODULES} >= CORE | {"auth", "sessions", "server"}


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
