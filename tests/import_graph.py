"""The import graph of mist: which module imports which, counting imports for types.

    python -m tests.import_graph                  its size, and what is wrong with it, in numbers
    python -m tests.import_graph --root OTHER     of another checkout
    python -m tests.import_graph --edges          and every edge between places

Every import counts wherever it stands: in a function, or for type checking only. A *place* is a
module or package directly in `mist`, and `mist` itself is the place `__init__`.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path

import attrs

__all__ = ["ImportGraph", "cycles", "import_graph", "place_of", "upward"]

Edges = Mapping[str, Set[str]]


@attrs.frozen
class ImportGraph:
    """Who imports whom.

    Attributes:
        modules: each module by its dotted name, with its file.
        edges: from a module to the modules of the package that it imports.
        type_only: those edges for which every import is for type checking only.
    """

    modules: Mapping[str, Path]
    edges: Edges
    type_only: Edges

    @property
    def places(self) -> Edges:
        """The edges between places."""
        found: dict[str, set[str]] = {place_of(module): set() for module in self.modules}
        for module, imported in self.edges.items():
            found[place_of(module)] |= {place_of(each) for each in imported} - {place_of(module)}
        return found


def place_of(module: str) -> str:
    """The place that a module belongs to: `auth` for `mist.auth.grant`."""
    return [*module.split("."), "__init__"][1]


@cache
def import_graph(package: Path) -> ImportGraph:
    """The import graph of a package, read once in a process.

    Args:
        package: its folder.
    """
    modules: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges: dict[str, set[str]] = {}
    type_only: dict[str, set[str]] = {}
    for module, path in modules.items():
        running: set[str] = set()
        every: set[str] = set()
        for statement, typing in _statements(ast.parse(path.read_text())):
            imported = set(_imported(statement, modules)) - {module}
            every |= imported
            if not typing:
                running |= imported
        edges[module] = every
        type_only[module] = every - running
    return ImportGraph(modules, edges, type_only)


def _statements(block: ast.AST, typing: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements within, and whether each is for type checking only.

    Expressions, of which there are many more, are passed over: they hold no statements.
    """
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        checked = typing or (
            name == "body"
            and isinstance(block, ast.If)
            and "TYPE_CHECKING" in ast.unparse(block.test)
        )
        for each in getattr(block, name, ()):
            if isinstance(each, ast.stmt):
                yield each, checked
            yield from _statements(each, checked)


def _imported(node: ast.stmt, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that one statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"relative import: {ast.unparse(node)}"
        assert node.module is not None
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            if name in modules:
                yield name
            elif node.module in modules:
                yield node.module


def cycles(edges: Edges) -> list[list[str]]:
    """The sets of nodes that can all reach each other, of two nodes or more, each sorted.

    Tarjan's algorithm (1972), recursive: as deep as the longest way through the graph.
    """
    found: list[list[str]] = []
    number: dict[str, int] = {}  # in the order visited
    lowest: dict[str, int] = {}  # the lowest number on the path that is reached from here
    path: list[str] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = path.index(node)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for node in edges:
        if node not in number:
            visit(node)
    return sorted(found)


def upward(places: Edges, layers: Sequence[Sequence[str] | str]) -> list[tuple[str, str]]:
    """The edges to a higher layer, or to or from a place that is in none.

    Args:
        layers: places from the bottom up; those in one sequence may import each other.
    """
    rank = {
        place: height
        for height, layer in enumerate(layers)
        for place in ([layer] if isinstance(layer, str) else layer)
    }
    return sorted(
        (place, other)
        for place, imported in places.items()
        for other in imported
        if place not in rank or other not in rank or rank[other] > rank[place]
    )


def _layers_of(root: Path) -> list[Sequence[str] | str]:
    """What a checkout's own test says of its layers."""
    tree = ast.parse((root / "tests" / "test_layers.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            layers: list[Sequence[str] | str] = ast.literal_eval(node.value)
            return layers
    raise SystemExit(f"{root}/tests/test_layers.py names no LAYERS")


def _depth(places: Edges) -> int:
    """How many places stand on the longest way down; those of a cycle count as one."""
    component = {place: place for place in places}
    for cycle in cycles(places):
        component |= dict.fromkeys(cycle, cycle[0])
    down: dict[str, set[str]] = defaultdict(set)
    for place, imported in places.items():
        down[component[place]] |= {component[each] for each in imported} - {component[place]}
    depths: dict[str, int] = {}

    def depth(place: str) -> int:
        if place not in depths:
            depths[place] = 1 + max(map(depth, down[place]), default=0)
        return depths[place]

    return max(map(depth, list(down)), default=0)


def _count(edges: Edges) -> int:
    return sum(map(len, edges.values()))


def main() -> None:
    """Print the numbers of a checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.import_graph", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--edges", action="store_true", help="list the edges between places")
    options = parser.parse_args()
    graph = import_graph(options.root / "mist")
    places = graph.places
    up = upward(places, _layers_of(options.root))
    module_cycles, place_cycles = cycles(graph.edges), cycles(places)
    print(f"places                   {len(places):5}")
    print(f"modules                  {len(graph.modules):5}")
    print(f"edges between modules    {_count(graph.edges):5}")
    print(f"  for types only         {_count(graph.type_only):5}")
    print(f"edges between places     {_count(places):5}")
    print(f"  upward                 {len(up):5}")
    print(f"depth in places          {_depth(places):5}")
    print(f"cycles of places         {len(place_cycles):5}")
    print(f"cycles of modules        {len(module_cycles):5}")
    print(f"  modules in a cycle     {sum(map(len, module_cycles)):5}")
    for place, other in up:
        print(f"upward: {place} -> {other}")
    for cycle in (*place_cycles, *module_cycles):
        print(f"cycle: {' '.join(cycle)}")
    if options.edges:
        for place, imported in sorted(places.items()):
            print(f"{place} -> {' '.join(sorted(imported))}")


if __name__ == "__main__":
    main()
