"""Every tag that anyone is subscribed to at the other nodes, for `listall`.

Page by page, each with what all nodes have up to the end of the shortest page. What is found is
shared for a second: however many clients ask, and however often, the nodes are asked once.
"""

import heapq
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import attrs
import trio

from mist.engine.errors import EngineUnavailable, TooManyQuestions
from mist.engine.members import SHARED
from mist.errors import MistError
from mist.sessions.questions import TagPage, TagsAfter, decode_tags, encode_question

__all__ = ["OtherTags", "RealmTags"]

_STEP: Final = 2_000  # tags, up to 1 ms
_MOST: Final = 64 << 20  # characters; no reply has so many


@attrs.frozen
class OtherTags:
    """Tags, sorted, each once.

    Attributes:
        size: characters of all.
    """

    tags: Sequence[str] = ()
    size: int = 0


class RealmTags:
    """See the module.

    Args:
        ask: asks all nodes; answers by node. Raises `EngineUnavailable` and `TooManyQuestions`.
        node: the name of this one, whose own tags are left out.
    """

    def __init__(
        self, ask: Callable[[bytes], Awaitable[Mapping[str, bytes]]], node: Callable[[], str]
    ) -> None:
        self._ask = ask
        self._node = node
        self._collecting = trio.Lock()
        self._found: OtherTags | MistError = OtherTags()
        self._expires = -math.inf

    async def others(self) -> OtherTags:
        """The tags, sorted, at most some two seconds old. Those of nodes that don't answer are
        missing; a log line names these.

        Raises:
            EngineUnavailable, TooManyQuestions: no node can be asked.
        """
        async with self._collecting:
            if trio.current_time() >= self._expires:
                try:
                    self._found = await self._collect()
                except (EngineUnavailable, TooManyQuestions) as error:
                    self._found = error.as_value()
                self._expires = trio.current_time() + SHARED
            if isinstance(self._found, MistError):
                raise self._found.as_value()
            return self._found

    async def _collect(self) -> OtherTags:
        tags: list[str] = []
        size, after = 0, ""
        while size <= _MOST:
            pages = await self._pages_after(after)
            upto = min([page.tags[-1] for page in pages if page.more and page.tags], default=None)
            merged = heapq.merge(*[page.tags for page in pages])
            while some := list(islice(merged, _STEP)):
                new = [tag for tag in dict.fromkeys(some) if not tags or tag > tags[-1]]
                if upto is not None:
                    new = [tag for tag in new if tag <= upto]
                tags += new
                size += sum(map(len, new))
                await trio.lowlevel.checkpoint()
            if upto is None:
                break
            after = upto
        return OtherTags(tags, size)

    async def _pages_after(self, after: str) -> list[TagPage]:
        answers = await self._ask(encode_question(TagsAfter(after)))
        pages = [decode_tags(body) for node, body in answers.items() if node != self._node()]
        return [page for page in pages if page is not None]
