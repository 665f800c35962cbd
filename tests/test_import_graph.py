"""The import graph: every import counts, wherever it stands, and circles are found."""

from pathlib import Path

import pytest

from tests.import_graph import ImportGraph, cycles, import_graph, place_of, upward

FILES = {
    "__init__.py": "",
    "errors.py": "import os\n",
    "low/__init__.py": "from app.errors import Error\n",
    "low/member.py": "from app import low\nfrom app.low import other\n",
    "low/other.py": "def open_it():\n    from app.low.member import Member\n",
    "high.py": "from typing import TYPE_CHECKING\n\n"
    "import app.errors\nfrom app.low import other\n\n"
    "if TYPE_CHECKING:\n    from app.errors import Error\n    from app.low.member import Member\n",
}


@pytest.fixture
def graph(tmp_path: Path) -> ImportGraph:
    for name, text in FILES.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return import_graph(tmp_path / "app")


def test_every_import_is_an_edge(graph: ImportGraph) -> None:
    assert graph.edges == {
        "app": set(),
        "app.errors": set(),
        "app.low": {"app.errors"},
        "app.low.member": {"app.low", "app.low.other"},
        "app.low.other": {"app.low.member"},
        "app.high": {"app.errors", "app.low.other", "app.low.member"},
    }


def test_an_edge_is_for_types_only_where_every_import_is(graph: ImportGraph) -> None:
    assert {module: found for module, found in graph.type_only.items() if found} == {
        "app.high": {"app.low.member"}
    }


def test_places_are_what_stands_directly_in_the_package(graph: ImportGraph) -> None:
    assert [place_of(name) for name in ("app", "app.high", "app.low.other")] == [
        "__init__",
        "high",
        "low",
    ]
    assert graph.places == {
        "__init__": set(),
        "errors": set(),
        "low": {"errors"},
        "high": {"errors", "low"},
    }


def test_a_circle_by_way_of_a_function_is_found(graph: ImportGraph) -> None:
    assert cycles(graph.edges) == [["app.low.member", "app.low.other"]]


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({}, []),
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"a"}}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b", "c"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
        ({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": {"c", "e"}, "e": set()}, [["b", "c", "d"]]),
    ],
)
def test_circles_are_sets_of_nodes_that_reach_each_other(
    edges: dict[str, set[str]], found: list[list[str]]
) -> None:
    assert cycles(edges) == found


def test_upward_is_what_is_against_the_order_or_outside_of_it(graph: ImportGraph) -> None:
    assert upward(graph.places, ["__init__", "errors", "low", "high"]) == []
    assert upward(graph.places, ["__init__", "low", "errors", "high"]) == [("low", "errors")]
    assert upward(graph.places, ["__init__", ["low", "errors"], "high"]) == []
    assert upward(graph.places, ["__init__", "errors", "high"]) == [
        ("high", "low"),
        ("low", "errors"),
    ]
