"""Heartbeats: a node says four times a second that it is there, and what it says of itself.

With each heartbeat it hears the questions of other nodes, which it answers beside the next ones. So
an answer takes a quarter of a second, and costs an engine nothing while nobody asks. Where the
engine doesn't answer, heartbeats go on: it is the follower that tells of that.

    beats = Beats(engine.members, node.name, describe, answer)
    await nursery.start(beats.run)
    members = await beats.members()
    answers = await beats.ask(b"question")
"""

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.members import (
    BEAT,
    MAX_QUESTIONS,
    SHARED,
    BeatReply,
    Member,
    Members,
    Question,
    TooManyQuestions,
    check_question,
)
from mist.errors import MistError
from mist.outage import Outage

__all__ = ["SILENT", "Answers", "Beats"]

log = logging.getLogger("mist.engine")

SILENT: Final = 2.0
"""Seconds without a heartbeat after which a node is taken for dead or cut off."""

_LISTED: Final = 16  # heartbeats from one look at the members to the next
_FRESH: Final = 1.0  # seconds for which a list of members is kept
_WAIT: Final = 1.0  # seconds for which answers are waited for, and a list of members
_LOOK: Final = 0.05  # seconds between two looks at the answers
_LEAVE: Final = 1.0  # seconds that it may take to leave
_AT_ONCE: Final = 4  # questions that are answered at the same time
_OFTEN: Final = MAX_QUESTIONS // 2  # open ones above which none is asked that is asked often


@attrs.frozen
class Answers:
    """Answers to a question.

    Attributes:
        answers: by node.
        missing: nodes that have not answered in time.
    """

    answers: Mapping[str, bytes]
    missing: Sequence[Member]


@attrs.define(eq=False)
class _Asked:
    """A question of this node's, which callers share.

    Attributes:
        expires: until when, by trio's clock.
        outcome: once it is done.
    """

    expires: float
    done: trio.Event = attrs.field(factory=trio.Event)
    outcome: Answers | MistError | None = None


class Beats:
    """See the module.

    Attributes:
        node: the name at the last heartbeat.

    Args:
        members: of the engine.
        name: the name under which the node has entered, which is another one once it enters anew.
        describe: what the node says of itself now.
        answer: answers a question; None where it is one that the node does not understand. What
            it raises is contained.
        heard: called with what each heartbeat tells.
    """

    def __init__(
        self,
        members: Members,
        name: Callable[[], str],
        describe: Callable[[], bytes],
        answer: Callable[[bytes], Awaitable[bytes | None]],
        heard: Callable[[BeatReply], None],
    ) -> None:
        self.node = name()
        self._name = name
        self._members = members
        self._describe = describe
        self._answer = answer
        self._heard = heard
        self._open: set[int] = set()  # questions that were open at the last heartbeat
        self._answering = trio.CapacityLimiter(_AT_ONCE)
        self._listing = trio.Lock()
        self._listed: Sequence[Member] | EngineUnavailable = ()
        self._listed_at = -math.inf
        self._size = 1
        self._asked: dict[bytes, _Asked] = {}
        self._outage = Outage(log, "the nodes can't be asked", "the nodes can be asked again")
        self._nursery: trio.Nursery | None = None

    @property
    def size(self) -> int:
        """How many members there were when they were last listed, this one among them."""
        return self._size

    # this node

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Beat until cancelled, and leave then. Started once the first heartbeat has ended."""
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    await self._beat_on(self._nursery, task_status)
                finally:
                    self._nursery = None
        finally:
            with trio.move_on_after(_LEAVE, shield=True), suppress(EngineUnavailable):
                await self._members.leave(self.node)

    async def _beat_on(self, nursery: trio.Nursery, task_status: trio.TaskStatus[None]) -> None:
        due = trio.current_time()
        for number in itertools.count():
            with suppress(EngineUnavailable):
                await self._beat(nursery)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            if number % _LISTED == 0:
                nursery.start_soon(self._look)
            due = max(due + BEAT, trio.current_time())
            await trio.sleep_until(due)

    async def _beat(self, nursery: trio.Nursery) -> None:
        name = self._name()
        reply = await self._members.beat(name, self._describe())
        self._heard(reply)
        for question in reply.questions:
            if question.number not in self._open:
                nursery.start_soon(self._take_up, question)
        self._open = {each.number for each in reply.questions}
        if name != self.node:
            # Or else it would be listed twice, and the one that is gone asked for its vote.
            await self._members.leave(self.node)
            self.node = name

    async def _look(self) -> None:
        # For `size`; and so that those that are gone are forgotten though nobody asks for a list.
        with suppress(EngineUnavailable):
            await self.members()

    async def _take_up(self, question: Question) -> None:
        async with self._answering:
            try:
                answer = await self._answer(question.body)
                if answer is not None:
                    await self._members.answer(question.number, self.node, answer)
            except EngineUnavailable:
                return
            except Exception:
                # Another node's question must not end this one.
                log.exception("a question of another node can't be answered")

    # the others

    async def members(self, most: float = _FRESH) -> Sequence[Member]:
        """All members, as of a moment ago. Callers share what the engine answers.

        Args:
            most: seconds ago.

        Raises:
            EngineUnavailable: it doesn't answer, within a second.
        """
        since = trio.current_time() - most
        async with self._listing:
            if self._listed_at <= since:
                began = trio.current_time()
                self._listed = await self._list()
                self._listed_at = began
            if isinstance(self._listed, EngineUnavailable):
                raise self._listed.as_value()
            return self._listed

    async def _list(self) -> Sequence[Member] | EngineUnavailable:
        # An engine that stands still would keep each caller for as long as any call may take.
        with trio.move_on_after(_WAIT):
            try:
                found = await self._members.all()
            except EngineUnavailable as error:
                return error.as_value()
            self._size = max(len(found), 1)
            return found
        return EngineUnavailable("no answer from the engine")

    async def ask(self, body: bytes, *, often: bool = False) -> Answers:
        """Ask all members, this one among them, and wait for a second at most.

        Who asks the same within a second gets the same answers: a flood of callers costs each node
        one answer a second.

        Args:
            body: see `Members.ask`.
            often: whether it is one of many that hardly anybody else asks: it makes room for others
                as soon as it is answered, and leaves them half of all room meanwhile.

        Raises:
            EngineUnavailable: it doesn't answer.
            TooManyQuestions, ValueError: see there.
        """
        check_question(body)
        now = trio.current_time()
        for each in [each for each, asked in self._asked.items() if asked.expires <= now]:
            del self._asked[each]
        asked = self._asked.get(body)
        if asked is None:
            if self._nursery is None:
                raise EngineUnavailable("the node is stopping")
            asked = self._asked[body] = _Asked(now + SHARED)
            # Not in the task of the first caller, which may be cancelled while others wait.
            self._nursery.start_soon(self._settle, body, asked, often)
        await asked.done.wait()
        if isinstance(asked.outcome, MistError):
            raise asked.outcome.as_value()
        assert asked.outcome is not None
        return asked.outcome

    async def _settle(self, body: bytes, asked: _Asked, often: bool) -> None:
        asked.outcome = EngineUnavailable("the node is stopping")
        try:
            asked.outcome = await self._collect(body, often)
        except (EngineUnavailable, TooManyQuestions) as error:
            # Here, and not where it is heard; and once, since presence asks again each second.
            self._outage.note(str(error))
            asked.outcome = error.as_value()
        except Exception:
            # A mistake in asking costs the callers their answer, and not the server its life.
            log.exception("the nodes can't be asked")
            asked.outcome = EngineUnavailable()
        else:
            self._outage.end()
        finally:
            asked.done.set()

    async def _collect(self, body: bytes, often: bool) -> Answers:
        answers: dict[str, bytes] = {}
        until = trio.current_time() + _WAIT
        members: Sequence[Member] | None = None
        with trio.CancelScope(deadline=until):
            number = await self._members.ask(body, _OFTEN if often else MAX_QUESTIONS)
            members = await self.members(0.0)
        if members is None:
            raise EngineUnavailable("no answer from the engine")
        await self._answer_own(number, body, answers)
        missing = [each for each in members if each.node not in answers]
        with trio.CancelScope(deadline=until):
            # One that is silent is not waited for; if it answers all the same, it is not missing.
            while any(each.age <= SILENT for each in missing):
                await trio.sleep(_LOOK)
                answers.update(await self._members.answers(number, answers.keys()))
                missing = [each for each in members if each.node not in answers]
        if often and self._nursery is not None:
            self._nursery.start_soon(self._close, number)
        if missing:
            log.warning(
                "some nodes have not answered", extra={"nodes": [each.node for each in missing]}
            )
        return Answers(answers, missing)

    async def _answer_own(self, number: int, body: bytes, answers: dict[str, bytes]) -> None:
        """Answer this node's own question at once: it is not missing, however busy it is."""
        self._open.add(number)
        answer = await self._answer(body)
        if answer is None:
            return
        answers[self.node] = answer
        if self._nursery is not None:
            # Others that ask the same have the same number.
            self._nursery.start_soon(self._hand_in, number, answer)

    async def _close(self, number: int) -> None:
        with suppress(EngineUnavailable):
            await self._members.close(number)

    async def _hand_in(self, number: int, answer: bytes) -> None:
        with suppress(EngineUnavailable):
            await self._members.answer(number, self.node, answer)
