"""The contract of an engine's members: which nodes are there, leases, questions to all nodes.

    members = engine.members
    reply = await members.beat(node, state)              # every `BEAT` seconds
    fence = await members.take("archive", node, 3.0)     # a lease; None where another node has it
    number = await members.ask(body)                     # in `reply.questions` of each node
    await members.answer(number, node, body)
    answers = await members.answers(number)

All times are the engine's: it alone says how old a beat is, and when a lease ends. The clocks of
nodes do not matter.

What a member keeps is small and short-lived. It is not part of the log, and may be lost without
harm: nodes beat again, take leases again, and a question without answers is asked again.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from mist.engine.errors import TooManyQuestions

__all__ = [
    "ANSWERED",
    "BEAT",
    "FORGOTTEN",
    "MAX_ANSWER",
    "MAX_QUESTION",
    "MAX_QUESTIONS",
    "MAX_STATE",
    "OPEN",
    "SHARED",
    "BeatReply",
    "Member",
    "Members",
    "Question",
    "TooManyQuestions",
    "check_answer",
    "check_question",
    "check_state",
]

BEAT: Final = 0.25
"""Seconds from one heartbeat of a node to the next."""

FORGOTTEN: Final = 10.0
"""Seconds without a beat after which a node is not a member any more."""

SHARED: Final = 1.0
"""Seconds for which the same question is not asked twice: later callers get the same number."""

OPEN: Final = 2.0
"""Seconds for which nodes hear of a question."""

ANSWERED: Final = 10.0
"""Seconds for which answers are kept at least."""

MAX_STATE: Final = 8 * 1024
"""Bytes of a node's state at most."""

MAX_QUESTION: Final = 8 * 1024
"""Bytes of a question at most."""

MAX_QUESTIONS: Final = 64
"""Questions that may be open at a time."""

MAX_ANSWER: Final = 512 * 1024
"""Bytes of one node's answer at most."""


@attrs.frozen
class Member:
    """A node that has beaten lately.

    Attributes:
        node: the name under which it has entered the engine.
        state: what it says of itself.
        age: seconds since its last beat, by the engine's clock; not negative.
    """

    node: str
    state: bytes = attrs.field(repr=False)
    age: float


@attrs.frozen
class Question:
    """A question that all nodes are asked.

    Attributes:
        number: names it; ascends.
        body: what is asked.
    """

    number: int
    body: bytes


@attrs.frozen
class BeatReply:
    """What a node learns with its heartbeat.

    Attributes:
        time: of the engine's clock; Unix seconds.
        offset: of the last record of the log then; 0 where there is none.
        questions: those that are open, in ascending order; which the node has answered, too.
    """

    time: float
    offset: int
    questions: Sequence[Question]


def check_state(state: bytes) -> None:
    """Check that a beat may have this state.

    Raises:
        ValueError: it is too large.
    """
    if len(state) > MAX_STATE:
        raise ValueError("a state of more bytes than a beat may have")


def check_question(body: bytes) -> None:
    """Check that a question may have this body.

    Raises:
        ValueError: it is too large.
    """
    if len(body) > MAX_QUESTION:
        raise ValueError("more bytes than a question may have")


def check_answer(body: bytes) -> None:
    """Check that an answer may have this body.

    Raises:
        ValueError: it is too large.
    """
    if len(body) > MAX_ANSWER:
        raise ValueError("more bytes than an answer may have")


class Members(ABC):
    """See the module. Every method may be called by any number of tasks at once.

    Every method raises `EngineUnavailable` once the engine has not answered for so long as it was
    opened with; none waits for longer. All may be repeated. Cancelled, what was asked may have been
    done or not.
    """

    # heartbeats

    @abstractmethod
    async def beat(self, node: str, state: bytes) -> BeatReply:
        """Say that a node is there, and what it says of itself.

        Args:
            state: at most `MAX_STATE` bytes; replaces that of the last beat.

        Raises:
            ValueError: the state is too large.
        """

    @abstractmethod
    async def all(self) -> Sequence[Member]:
        """The nodes that have beaten in the last `FORGOTTEN` seconds, sorted by name.

        Those that have not are forgotten.
        """

    @abstractmethod
    async def leave(self, node: str) -> None:
        """Forget a node, at once. Its leases remain until they end; give them up before."""

    # leases

    @abstractmethod
    async def take(self, name: str, node: str, seconds: float) -> int | None:
        """Take a lease, or prolong it: it ends so many seconds from now.

        At any time one node at most holds the lease of a name, by the engine's clock. A holder that
        was stopped may still take itself for it: what must not be done under a lease that has
        ended is checked where it is done, see `holds`. `mist.engine.leases` does the rest.

        Returns:
            The fence: a number that ascends with every change of the holder and stays the same
            while the lease is prolonged. None where another node holds the lease.
        """

    @abstractmethod
    async def give_up(self, name: str, node: str) -> None:
        """End a lease at once, if the node holds it."""

    @abstractmethod
    async def holds(self, name: str, fence: int) -> bool:
        """Whether the lease was taken under this fence, and has not ended."""

    # questions

    @abstractmethod
    async def ask(self, body: bytes, most: int = MAX_QUESTIONS) -> int:
        """Ask all nodes a question: each hears of it with its next beat.

        The same question asked again within `SHARED` seconds, at whichever node, is not asked
        twice. So what many callers ask at once costs every node one answer.

        Args:
            body: at most `MAX_QUESTION` bytes.
            most: questions that may be open with it.

        Returns:
            The number of the question.

        Raises:
            TooManyQuestions: so many are open.
            ValueError: the body is too large.
        """

    @abstractmethod
    async def close(self, number: int) -> None:
        """Have nodes hear of a question no more, and let it count as open no more.

        Its answers are kept. Nothing happens where it isn't open.
        """

    @abstractmethod
    async def answer(self, number: int, node: str, body: bytes) -> None:
        """Answer a question.

        Args:
            body: at most `MAX_ANSWER` bytes; replaces an earlier answer of the node.

        Raises:
            ValueError: the body is too large.
        """

    @abstractmethod
    async def answers(self, number: int, known: Collection[str] = ()) -> Mapping[str, bytes]:
        """The answers to a question so far, by node. None once they are forgotten.

        Args:
            known: nodes whose answers are not wanted any more.
        """
