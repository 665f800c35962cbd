"""Nodes keep the hashes of what is in them, and give their memory back."""

import sys

from mist.index.nodes import Node


def test_a_node_keeps_hashes_which_a_dict_of_strings_does_not() -> None:
    names = [f"t{n}" for n in range(1_000)]
    node: Node[int] = Node()
    plain = {}
    for name in names:
        node[name] = plain[name] = (name,)
    bare = sys.getsizeof(Node[int]()) - sys.getsizeof({"a": 1})  # objects and smallest tables
    assert sys.getsizeof(node) - sys.getsizeof(plain) > 8 * len(names) + bare


def test_an_empty_node_gives_its_table_back_and_keeps_hashes_again() -> None:
    node: Node[int] = Node()
    fresh = sys.getsizeof(node)
    names = [None, *(f"t{n}" for n in range(1_000))]
    full = set()
    for last_first in (False, True):
        for name in names:
            node[name] = (str(name),)
        full.add(sys.getsizeof(node))
        for name in reversed(names) if last_first else names:
            node.let_go(name)
        assert sys.getsizeof(node) == fresh
    assert len(full) == 1
    assert node.holds_nothing()


def test_a_node_without_children_is_there_all_the_same() -> None:
    node: Node[int] = Node()
    assert not node
    assert node.get(None) is None
    node[None] = ("a",)
    assert not node.holds_nothing()
