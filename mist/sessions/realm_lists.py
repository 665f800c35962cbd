"""Lists for operators over all nodes: the pages of each, merged.

Every node is asked for the page that begins behind the same place, and the entries of all are
merged by their keys, and by node where these are equal. So the pages of a walk are those of one
list, without a repeat, as long as the same nodes answer.
"""

import heapq

import attrs

from mist.sessions.finding import ALL, ConnectionQuery
from mist.sessions.inspection import Entry, Kind, Page, is_ascending
from mist.sessions.known_nodes import KnownNode
from mist.sessions.nodes import Nodes
from mist.sessions.questions import FindConnections, ListAfter, decode_list, encode_question

__all__ = ["RealmPage", "list_realm_page"]


@attrs.frozen
class RealmPage:
    """A page of a list over all nodes.

    Attributes:
        entries: with the nodes that have them, by id.
        count: of all nodes that have answered.
        more: whether more come behind.
        missing: nodes that have not answered.
    """

    entries: list[tuple[str, Entry]]
    count: int
    more: bool
    missing: list[KnownNode]


async def list_realm_page(
    nodes: Nodes,
    kind: Kind,
    after: tuple[int, str, str] | None,
    limit: int,
    query: ConnectionQuery = ALL,
) -> RealmPage:
    """A page of a list over all nodes.

    Args:
        query: which connections. Nodes of earlier versions know no other than all.
        after: number and text of the key behind which it begins, and the node that has it.
        limit: most entries of it.

    Raises:
        EngineUnavailable, TooManyQuestions: no node can be asked.
    """
    question = FindConnections(query, after, limit)
    plain = ListAfter(kind, after, limit)
    answers, missing = await nodes.ask(encode_question(plain if query == ALL else question))
    ascending = is_ascending(kind, query)
    pages: dict[str, Page] = {}
    for node, answer in answers.items():
        page = decode_list(answer)
        if page is not None:
            pages[node] = page
    lists = [
        [(_key(ascending, node, entry), entry) for entry in page.entries]
        for node, page in pages.items()
    ]
    merged = heapq.merge(*lists, key=_first)
    # Behind the end of a page that is not a node's last, there may be more of that node before what
    # others have.
    ends = [
        _key(ascending, node, page.entries[-1])
        for node, page in pages.items()
        if page.more and page.entries
    ]
    upto = min(ends, default=None)
    entries = [(key[2], entry) for key, entry in merged if upto is None or key <= upto]
    return RealmPage(
        entries[:limit],
        sum([page.count for page in pages.values()]),
        upto is not None or len(entries) > limit,
        missing,
    )


def _key(ascending: bool, node: str, entry: Entry) -> tuple[int, str, str]:
    """Of which the first entry has the lowest."""
    return (entry.number if ascending else -entry.number, entry.text, node)


def _first(keyed: tuple[tuple[int, str, str], Entry]) -> tuple[int, str, str]:
    return keyed[0]
