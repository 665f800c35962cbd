"""Queue groups whose members are at several nodes: which messages are for the members of this one.

Each node says how many members its queue groups have. All hear that at the same place among the
messages, so all know the same of each message: the sizes, added up, and the message's id choose one
node. There the queue group chooses a member, as it does on a single server.

    shares = QueueShares("node")
    share = shares.open("workers", "order")
    key = QueueKey("workers", "order", site="")
    shares.count(key, 2)                        # `take` gives what is to be told
    shares.apply("node", {key: 2})              # as all nodes hear it
    shares.apply("other", {key: 3})
    share.is_here(17, site=None)                # of two in five messages

A message goes to one node at most. It is lost where that one dies first, as what a NATS server has
written to a client that dies.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

__all__ = ["QueueKey", "QueueShare", "QueueShares", "Watcher"]

_SPREAD: Final = 0x9E3779B97F4A7C15  # the golden ratio: spreads what follows each other evenly
_BITS: Final = (1 << 64) - 1

Watcher = Callable[[str, Collection[str], str, int], None]
"""Called as `watcher(tags, nodes, node, place)`: those nodes have members now, since one has said
something at a place in the log."""


def _nothing() -> None:
    pass


class QueueKey(NamedTuple):
    """What members have in common.

    Attributes:
        queue: the name of the queue group.
        tags: its tag list, in canonical form.
        site: that they are bound to; empty where they are bound to none.
    """

    queue: str
    tags: str
    site: str


class QueueShare:
    """A queue group, over all nodes. Made by `QueueShares`.

    Attributes:
        queue, tags: see `QueueKey`.
        is_open: whether there is a queue group here that asks it.
        on_left: called once no member here is counted any more; None where nobody asks.
    """

    __slots__ = ("_node", "_ranges", "_sizes", "is_open", "on_left", "queue", "tags")

    def __init__(self, queue: str, tags: str, node: str) -> None:
        self.queue = queue
        self.tags = tags
        self.is_open = False
        self.on_left: Callable[[], None] | None = None
        self._node = node
        self._sizes: dict[str, dict[str, int]] = {}  # by node and site
        self._ranges: dict[str | None, tuple[int, int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    @property
    def nodes(self) -> Collection[str]:
        """Those that have members, as all have heard."""
        return self._sizes.keys()

    @property
    def counts_here(self) -> bool:
        """Whether any member here is counted, so that messages may be for it."""
        return self._node in self._sizes

    def is_here(self, id_: int, site: str | None) -> bool:
        """Whether a message is for a member at this node. O(1) behind the first one.

        Args:
            id_: of the message.
            site: whose members it is for; empty is those that are bound to none, None is all.
        """
        begin, end, total = self._ranges.get(site) or self._range(site)
        return begin < end and begin <= ((id_ * _SPREAD & _BITS) >> 32) % total < end

    def _range(self, site: str | None) -> tuple[int, int, int]:
        begin = end = total = 0
        for node in sorted(self._sizes):
            sizes = self._sizes[node]
            size = sum(sizes.values()) if site is None else sizes.get(site, 0)
            if node == self._node:
                begin, end = total, total + size
            total += size
        found = begin, end, total
        if total:  # or else publishers could fill memory with sites that nobody has
            self._ranges[site] = found
        return found

    def put(self, node: str, site: str, size: int) -> None:
        """From the next message on, so many members are at a node."""
        sizes = self._sizes.setdefault(node, {})
        if size:
            sizes[site] = size
        else:
            sizes.pop(site, None)
            if not sizes:
                del self._sizes[node]
        self._ranges.clear()


class QueueShares:
    """See the module.

    Attributes:
        place: of the record that is applied, in the log.
        node: names this server for as long as it runs; no other has had the name.
        version: of what members are here; ascends with each change.
        on_changed: called at each change of it.

    Args:
        node: as above.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.place = 0
        self.version = 0
        self.on_changed: Callable[[], None] = _nothing
        self._shares: dict[tuple[str, str], QueueShare] = {}
        self._counted: dict[str, dict[QueueKey, int]] = {}  # by node, as all nodes have heard
        self._here: dict[QueueKey, int] = {}  # members now
        self._unsaid: dict[QueueKey, None] = {}  # the oldest first
        self._leaving = False
        self._loading = False
        self._watchers: dict[str, Watcher] = {}  # by queue

    def watch(self, queue: str, watcher: Watcher) -> None:
        """Have it told when a queue group of that name has its first member, or none any more.

        Not of what `load` changes.
        """
        self._watchers[queue] = watcher

    def holders(self, key: QueueKey) -> Collection[str]:
        """The nodes that have members, as all have heard."""
        share = self._shares.get((key.queue, key.tags))
        return () if share is None else share.nodes

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes that have members, as all have heard."""
        return self._counted.keys()

    def open(self, queue: str, tags: str) -> QueueShare:
        """The share of a queue group that there is here from now on.

        Args:
            queue, tags: see `QueueKey`.
        """
        share = self._of(queue, tags)
        share.is_open = True
        return share

    def close(self, share: QueueShare) -> None:
        """There is no queue group here any more."""
        share.is_open = False
        share.on_left = None
        self._tidy(share)

    def _of(self, queue: str, tags: str) -> QueueShare:
        share = self._shares.get((queue, tags))
        if share is None:
            share = self._shares[queue, tags] = QueueShare(queue, tags, self.node)
        return share

    # what this node has to say

    def count(self, key: QueueKey, change: int) -> None:
        """Members have come here, or go, or are about to."""
        size = self._here.get(key, 0) + change
        if size:
            self._here[key] = size
        else:
            self._here.pop(key, None)
        self._unsaid[key] = None
        self._changed()

    def leave_all(self) -> None:
        """All members here are about to go, and none comes any more: the server stops."""
        self._leaving = True
        self._unsaid.update(dict.fromkeys(self._counted.get(self.node, ())))
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_changed()

    @property
    def unsaid(self) -> int:
        """How many keys there are of which other nodes have not heard."""
        return len(self._unsaid)

    def take(self, most: int) -> list[tuple[str, str, str, int]]:
        """What other nodes have not heard, so many at most; to be told to all, and to this one.

        What has waited for longest comes first.

        Returns:
            Keys, each with the number of members. None where there is nothing to tell.
        """
        taken = list(islice(self._unsaid, most))
        for key in taken:
            del self._unsaid[key]
        return [(*key, 0 if self._leaving else self._here.get(key, 0)) for key in taken]

    def put_back(self, sizes: Iterable[tuple[str, str, str, int]]) -> None:
        """What was taken could not be told: it comes first again."""
        self._unsaid = dict.fromkeys([QueueKey(*key) for *key, _ in sizes]) | self._unsaid

    # what all nodes have heard

    def apply(self, node: str, sizes: Mapping[QueueKey, int]) -> None:
        """All nodes have heard how many members are at one of them, from the next message on."""
        counted = self._counted.setdefault(node, {})
        for key, size in sizes.items():
            if size:
                counted[key] = size
            else:
                counted.pop(key, None)
            self._put(node, key, size)
        if not counted:
            del self._counted[node]

    def apply_left(self, node: str) -> None:
        """All nodes have heard that one has gone. If it is this one, it says that it hasn't."""
        for key in self._counted.pop(node, {}):
            self._put(node, key, 0)
        if node == self.node and self._here and not self._leaving:
            self._unsaid.update(dict.fromkeys(self._here))
            self._changed()

    def load(self, counted: Mapping[str, Mapping[QueueKey, int]]) -> None:
        """Begin with what all nodes have heard up to some place.

        What this node has said behind that place, it has to say again.
        """
        self._loading = True
        for node, sizes in list(self._counted.items()):
            for key in sizes:
                self._put(node, key, 0)
        self._counted = {node: dict(sizes) for node, sizes in counted.items()}
        for node, sizes in self._counted.items():
            for key, size in sizes.items():
                self._put(node, key, size)
        self._loading = False
        here = {} if self._leaving else self._here
        said = self._counted.get(self.node, {})
        self._unsaid.update(dict.fromkeys([key for key, _ in here.items() ^ said.items()]))
        self._changed()

    def _put(self, node: str, key: QueueKey, size: int) -> None:
        share = self._of(key.queue, key.tags)
        before = bool(share)
        share.put(node, key.site, size)
        if key.queue in self._watchers and before != bool(share) and not self._loading:
            self._watchers[key.queue](key.tags, share.nodes, node, self.place)
        if node == self.node and share.on_left is not None and not share.counts_here:
            on_left, share.on_left = share.on_left, None
            on_left()
        self._tidy(share)

    def _tidy(self, share: QueueShare) -> None:
        if not share and not share.is_open:
            self._shares.pop((share.queue, share.tags), None)
