"""Presence at the other nodes: what of it is watched here, as of some two seconds ago.

Once a second, while anything is watched, all nodes are asked at which tag sets something has
changed, and then who is there. A node that doesn't answer is taken as it was. One that is silent
(it has died, or is cut off) has nobody any more, so those who were there leave after a while,
unless they have come back elsewhere. Where the engine doesn't answer, all are taken as they were.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

import trio

from mist.broker.presence import NOBODY, Seen
from mist.change import Change
from mist.engine.contract import EngineUnavailable
from mist.engine.members import BEAT, MAX_QUESTION, TooManyQuestions
from mist.message import TagSet
from mist.sessions.presence_questions import ask_at, ask_since, read_at, read_since
from mist.sessions.presence_rooms import RoomKey

__all__ = ["RealmPresence"]

log = logging.getLogger("mist.presence")

_ROUND: Final = 1.0  # seconds
_WAIT: Final = 1.5  # seconds for which a session waits to hear of the other nodes
_AT_ONCE: Final = 4  # questions; other things are asked, too
_APART: Final = BEAT
"""Seconds from one question to the next, at least: all nodes together may ask only so much, and
others hear of it with their next heartbeat anyway."""

_NEVER: Final = 0, NOBODY
_number: Final = itemgetter(0)

_Ask = Callable[[bytes], Awaitable[Mapping[str, bytes]]]


class RealmPresence:
    """See the module.

    Args:
        ask: asks all nodes; answers by node. Raises `EngineUnavailable` and `TooManyQuestions`.
        living: names of the nodes that are not silent. Raises `EngineUnavailable`.
        node: the name of this one, of which nothing is kept here.
        keys: what is watched.
        concerned: what of that a change of tags under presence concerns.
        changed: called with what may be another than before.
    """

    def __init__(
        self,
        ask: _Ask,
        living: Callable[[], Awaitable[Collection[str]]],
        node: Callable[[], str],
        *,
        keys: Callable[[], Sequence[RoomKey]],
        concerned: Callable[[TagSet], Iterable[RoomKey]],
        changed: Callable[[Iterable[RoomKey]], None],
    ) -> None:
        self._ask = ask
        self._living = living
        self._node = node
        self._keys = keys
        self._concerned = concerned
        self._changed = changed
        # By node, with the number of the question.
        self._seen: dict[RoomKey, dict[str, tuple[int, Seen]]] = {}
        self._versions: dict[str, int] = {}
        self._missed: set[str] = set()  # nodes that have not answered who is there
        self._wanted: dict[RoomKey, None] = {}  # to be asked for
        self._asked = Change()
        self._learned = Change()
        self._numbers = itertools.count(1)
        self._beginning = trio.Lock()  # of a question
        self._next = 0.0  # when another one may begin

    # what presence asks

    def seen(self, key: RoomKey) -> Iterable[Seen]:
        """Who is there, of each other node."""
        return [seen for _, seen in self._seen.get(key, {}).values()]

    def forget(self, key: RoomKey) -> None:
        """It is watched no more."""
        self._seen.pop(key, None)
        self._wanted.pop(key, None)

    async def learn(self, keys: Iterable[RoomKey]) -> None:
        """Have it known who is there, as far as that becomes known within a moment."""
        missing = [key for key in keys if key not in self._seen]
        if not missing:
            return
        self._wanted.update(dict.fromkeys(missing))
        self._asked.notify()
        with trio.move_on_after(_WAIT):
            while any(key not in self._seen for key in missing):
                await self._learned.wait()

    # what the nodes are asked

    async def run(self) -> None:
        """Ask them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            for _ in range(_AT_ONCE):
                nursery.start_soon(self._learn_on)

    async def _follow(self) -> None:
        while True:
            await trio.sleep(_ROUND)
            if not self._keys():
                self._versions.clear()
                continue
            try:
                await self._round()
            except (EngineUnavailable, TooManyQuestions):
                continue  # which is logged where it was asked
            except Exception:
                log.exception("the other nodes' presence can't be followed")

    async def _round(self) -> None:
        living = await self._living()
        # Or else what they would have said were asked for again only once it changes.
        for node in self._missed:
            self._versions.pop(node, None)
        self._missed.clear()
        answers = await self._ask(ask_since(self._versions))
        # One that has answered lives, however silent it is.
        self._bury(living | answers.keys())
        stale: dict[RoomKey, None] = {}
        for node, answer in answers.items():
            found = read_since(answer)
            if found is None or node == self._node():
                continue
            self._versions[node], changed = found
            if changed is None:
                stale.update(dict.fromkeys(self._keys()))
            for tags in changed or ():
                stale.update(dict.fromkeys(self._concerned(tags)))
        if stale:
            self._wanted.update(stale)
            self._asked.notify()

    def _bury(self, living: Collection[str]) -> None:
        """Forget who was at nodes that are gone."""
        self._versions = {
            node: version for node, version in self._versions.items() if node in living
        }
        for key, by_node in self._seen.items():
            gone = [node for node in by_node if node not in living]
            for node in gone:
                del by_node[node]
            if gone:
                self._changed([key])

    async def _learn_on(self) -> None:
        while True:
            number, batch, body = await self._next_question()
            try:
                answers = await self._ask(body)
            except (EngineUnavailable, TooManyQuestions):
                self._wanted.update(dict.fromkeys(batch))
                await trio.sleep(_ROUND)
                continue
            self._take(number, batch, answers)

    async def _next_question(self) -> tuple[int, list[RoomKey], bytes]:
        """The number of the next question, which rooms it is about, and its body."""
        async with self._beginning:
            await trio.sleep_until(self._next)
            while not self._wanted:
                await self._asked.wait()
            self._next = trio.current_time() + _APART
            batch = list(itertools.islice(self._wanted, 1_000))
            number = next(self._numbers)
            body, count = ask_at(f"{self._node()}-{number}", batch, MAX_QUESTION)
            for key in batch[:count]:
                del self._wanted[key]
            return number, batch[:count], body

    def _take(self, number: int, batch: Sequence[RoomKey], answers: Mapping[str, bytes]) -> None:
        watched = set(self._keys())
        self._missed |= self._versions.keys() - answers.keys()
        for node, answer in answers.items():
            if node == self._node():
                continue
            there = read_at(answer)
            for key, seen in zip(batch, there, strict=False):
                if key in watched:
                    # A question that was asked later may have been answered before.
                    by_node = self._seen.setdefault(key, {})
                    by_node[node] = max(by_node.get(node, _NEVER), (number, seen), key=_number)
            if there:  # what didn't fit into its answer is asked for again
                rest = [key for key in batch[len(there) :] if key in watched]
                self._wanted.update(dict.fromkeys(rest))
        for key in batch:
            if key in watched:
                self._seen.setdefault(key, {})
        self._changed(batch)
        self._learned.notify()
