"""The members of a realm of `memory://`; see `mist.engine.memory`."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import attrs

from mist.engine.members import (
    ANSWERED,
    FORGOTTEN,
    MAX_QUESTIONS,
    OPEN,
    SHARED,
    BeatReply,
    Member,
    Members,
    Question,
    TooManyQuestions,
    check_answer,
    check_question,
    check_state,
)

__all__ = ["Membership", "MemoryMembers"]


@attrs.define(eq=False)
class _Lease:
    fence: int
    node: str
    ends: float


@attrs.define(eq=False)
class _Asked:
    time: float
    body: bytes
    is_closed: bool = False
    answers: dict[str, bytes] = attrs.field(factory=dict)

    def is_open(self, now: float) -> bool:
        return not self.is_closed and now < self.time + OPEN


@attrs.define(eq=False)
class Membership:
    """What the nodes of a realm share; times are Unix seconds."""

    beats: dict[str, tuple[float, bytes]] = attrs.field(factory=dict)
    leases: dict[str, _Lease] = attrs.field(factory=dict)
    asked: dict[int, _Asked] = attrs.field(factory=dict)
    offset: int = 0  # of the log's last record
    last_fence: int = 0
    last_question: int = 0


class MemoryMembers(Members):
    """See `Members`.

    Args:
        turn: a checkpoint, which returns what is shared, or raises `EngineUnavailable`.
        clock: Unix seconds.
    """

    def __init__(
        self, turn: Callable[[], Awaitable[Membership]], clock: Callable[[], float]
    ) -> None:
        self._turn = turn
        self._clock = clock

    async def beat(self, node: str, state: bytes) -> BeatReply:
        check_state(state)
        shared = await self._turn()
        now = self._clock()
        shared.beats[node] = now, state
        questions = [
            Question(number, each.body)
            for number, each in shared.asked.items()
            if each.is_open(now)
        ]
        return BeatReply(now, shared.offset, questions)

    async def all(self) -> Sequence[Member]:
        shared = await self._turn()
        now = self._clock()
        for node in [node for node, (time, _) in shared.beats.items() if now - time > FORGOTTEN]:
            del shared.beats[node]
        return [
            Member(node, state, max(now - time, 0.0))
            for node, (time, state) in sorted(shared.beats.items())
        ]

    async def leave(self, node: str) -> None:
        shared = await self._turn()
        shared.beats.pop(node, None)

    async def take(self, name: str, node: str, seconds: float) -> int | None:
        shared = await self._turn()
        now = self._clock()
        held = shared.leases.get(name)
        if held is None or (held.node != node and now >= held.ends):
            shared.last_fence += 1
            held = shared.leases[name] = _Lease(shared.last_fence, node, now)
        if held.node != node:
            return None
        held.ends = now + seconds
        return held.fence

    async def give_up(self, name: str, node: str) -> None:
        shared = await self._turn()
        held = shared.leases.get(name)
        if held is not None and held.node == node:
            del shared.leases[name]

    async def holds(self, name: str, fence: int) -> bool:
        shared = await self._turn()
        held = shared.leases.get(name)
        return held is not None and held.fence == fence and self._clock() < held.ends

    async def ask(self, body: bytes, most: int = MAX_QUESTIONS) -> int:
        check_question(body)
        shared = await self._turn()
        now = self._clock()
        for number in [
            each for each, asked in shared.asked.items() if now >= asked.time + ANSWERED
        ]:
            del shared.asked[number]
        for number, asked in shared.asked.items():
            if asked.body == body and asked.is_open(now) and now < asked.time + SHARED:
                return number
        if sum([asked.is_open(now) for asked in shared.asked.values()]) >= most:
            raise TooManyQuestions
        shared.last_question += 1
        shared.asked[shared.last_question] = _Asked(now, body)
        return shared.last_question

    async def close(self, number: int) -> None:
        shared = await self._turn()
        asked = shared.asked.get(number)
        if asked is not None:
            asked.is_closed = True

    async def answer(self, number: int, node: str, body: bytes) -> None:
        check_answer(body)
        shared = await self._turn()
        asked = shared.asked.get(number)
        if asked is not None:
            asked.answers[node] = body

    async def answers(self, number: int, known: Collection[str] = ()) -> Mapping[str, bytes]:
        shared = await self._turn()
        asked = shared.asked.get(number)
        answers = {} if asked is None else asked.answers
        return {node: body for node, body in answers.items() if node not in known}
