"""The nodes of an engine, as each of them knows the others.

A node says with each heartbeat what it is and how it does (`NodeState`). One that is not heard of
for a while is listed as silent, and forgotten later.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
import trio

from mist.broker.broker import Broker
from mist.engine.beats import SILENT, Beats
from mist.engine.checkpointing import LEAST, Checkpointer
from mist.engine.contract import Forked
from mist.engine.eraser import Erase, Eraser
from mist.engine.errors import EngineUnavailable
from mist.engine.members import Member
from mist.engine.node import Node
from mist.errors import HistoryUnavailable
from mist.history.erasure import Erased, Erasure
from mist.sessions.known_nodes import KnownNode, NodeState
from mist.sessions.node_sequencer import NodeSequencer
from mist.sessions.questions import Seal, answer_question, encode_question, is_to_seal
from mist.sessions.queue_members import QueueMembers
from mist.sessions.realm_tags import RealmTags
from mist.sessions.session_table import SessionTable

__all__ = ["Nodes"]

_LOOK: Final = 0.25  # seconds
_WAIT: Final = 1.0  # seconds for which a session's command waits for the engine
_REMEMBERED: Final = 100  # erasures


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeState).decode


class Nodes:
    """See the module.

    Args:
        node, sequencer: this server's.
        broker, sessions: of which other nodes ask.
        describe: this server as it is now; the offset is filled in.
        erase, note_erasure: see `Eraser`.
        seal_soon: called where a node asks all to seal; see `ask_to_seal`.
        checkpoint_bytes: see `mist.engine.checkpointing.LEAST`.

    Attributes:
        tags: those that clients of the other nodes are subscribed to.
        queue_members: those of queue groups.
    """

    def __init__(
        self,
        node: Node,
        sequencer: NodeSequencer,
        broker: Broker,
        sessions: SessionTable,
        describe: Callable[[], NodeState],
        *,
        erase: Erase | None = None,
        note_erasure: Callable[[int], Awaitable[None]] | None = None,
        seal_soon: Callable[[], None] | None = None,
        checkpoint_bytes: int = LEAST,
    ) -> None:
        self._node = node
        self._sequencer = sequencer
        self._eraser = Eraser(node, erase, note_erasure)
        self._said: OrderedDict[int, str] = OrderedDict()  # erasures: the epoch by offset
        self._seal_soon = seal_soon
        self._checkpointer = Checkpointer(node, least=checkpoint_bytes)
        self._broker = broker
        self._sessions = sessions
        self._describe = describe
        self._beats = Beats(
            node.engine.members,
            lambda: node.name,
            lambda: _encode(self._state()),
            self._answer,
            sequencer.note_beat,
        )
        self.tags = RealmTags(self._ask, lambda: self._beats.node)
        self.queue_members = QueueMembers(sequencer.shares, sequencer.say, self.living)

    @property
    def name(self) -> str:
        """The name under which this node has entered the engine."""
        return self._beats.node

    @property
    def known(self) -> int:
        """How many nodes there were at the last look, this one among them."""
        return self._beats.size

    @property
    def lost(self) -> int:
        """Ids of messages that this node had, and the engine has lost, since the start."""
        return self._node.lost

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Beat, and see to the engine's log, until cancelled; see `Beats` and `Checkpointer`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._beats.run)
            nursery.start_soon(self._checkpointer.run)
            nursery.start_soon(self._eraser.run)
            nursery.start_soon(self.queue_members.run)
            task_status.started()

    def _state(self) -> NodeState:
        return msgspec.structs.replace(
            self._describe(),
            offset=self._node.mirror.offset,
            erasing=self._eraser.pending,
            member=self._sequencer.shares.node,
        )

    async def _answer(self, question: bytes) -> bytes | None:
        if is_to_seal(question) and self._seal_soon is not None:
            self._seal_soon()
        return await answer_question(self._broker, self._sessions, self._beats.node, question)

    async def all(self) -> list[KnownNode]:
        """All nodes, sorted by name; this one as it is now, the others at most a second old.

        Raises:
            EngineUnavailable: it doesn't answer.
        """
        known = [self._know(each) for each in await self._beats.members()]
        this = KnownNode(self._beats.node, self._state(), 0.0, is_self=True)
        nodes = [this, *[each for each in known if not each.is_self]]
        return sorted(nodes, key=lambda each: (each.state.name, each.id))

    async def living(self) -> list[str]:
        """The nodes that are not silent, by the names that they have in `QueueShares`.

        Raises:
            EngineUnavailable: the engine doesn't answer.
        """
        return [each.state.member for each in await self.all() if not each.is_silent]

    def _know(self, member: Member) -> KnownNode:
        try:
            state = _decode(member.state)
        except msgspec.MsgspecError:
            state = NodeState(name=member.node)
        is_self = member.node == self._beats.node
        return KnownNode(member.node, state, member.age, is_self, member.age > SILENT)

    async def count_sessions(self) -> tuple[int, int]:
        """Sessions now, and since the start, of all nodes that are not silent.

        Of this one alone where the engine doesn't answer.
        """
        nodes = [KnownNode(self._beats.node, self._describe(), 0.0, is_self=True)]
        with trio.move_on_after(_WAIT), suppress(EngineUnavailable):
            nodes = await self.all()
        heard = [each.state for each in nodes if not each.is_silent]
        return sum([each.sessions for each in heard]), sum([each.lifetime for each in heard])

    async def erase(self, erasure: Erasure, *, after: int, seconds: float | None) -> Erased:
        """Erase messages at all nodes and in the engine.

        Nodes that are silent are not waited for: they erase once they are back.

        Args:
            after, seconds: as for `History.erase`.

        Returns:
            What was erased of this node's mirror. With `after` while not all is done.

        Raises:
            HistoryUnavailable, EngineUnavailable: not all is done. Ask again.
        """
        offset = after if after and self._has(after) else await self._say(erasure)
        with trio.move_on_after(math.inf if seconds is None else seconds):
            erased = await self._eraser.finished(offset, lambda: self._check(offset))
            await self._until_erased(offset)
            try:
                await self._purge(offset)
            except Forked as error:
                raise HistoryUnavailable("the engine has begun another epoch") from error
            return erased
        return Erased(after=offset)

    async def _say(self, erasure: Erasure) -> int:
        """Have all nodes told to erase; the offset of the record that says so."""
        epoch = self._node.standing.epoch  # before: where another one begins, it is said again
        offset = await self._sequencer.erase(erasure)
        self._said[offset] = epoch
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return offset

    def _has(self, offset: int) -> bool:
        """Whether the log still has what was said with a record, as far as this node knows."""
        epoch = self._said.get(offset)
        return epoch is None or self._node.has(epoch, offset)

    def _check(self, offset: int) -> None:
        """Check that the log still has what was said with a record.

        Raises:
            HistoryUnavailable: no other node will hear of it, and what was erased here is back.
        """
        if not self._has(offset):
            raise HistoryUnavailable("the engine has lost what it was told to erase")

    async def _until_erased(self, offset: int) -> None:
        while True:
            self._check(offset)
            # Not those known from a moment ago: one may have come since.
            members = map(self._know, await self._node.engine.members.all())
            states = [each.state for each in members if not each.is_silent]
            if all(each.offset >= offset and not 0 < each.erasing <= offset for each in states):
                return
            await trio.sleep(_LOOK)

    async def _purge(self, offset: int) -> None:
        """Have the engine keep nothing of what was before an erasure."""
        engine = self._node.engine
        while (standing := await engine.standing()).oldest <= offset:
            self._check(offset)
            checkpoint = standing.checkpoint
            if checkpoint is not None and checkpoint.offset >= offset:
                await engine.trim(offset)
            elif not await self._checkpointer.step(erased=offset):
                await trio.sleep(_LOOK)
        self._check(offset)

    async def _ask(self, question: bytes) -> Mapping[str, bytes]:
        return (await self._beats.ask(question)).answers

    async def ask_to_seal(self) -> None:
        """Ask all nodes to seal what they have. Whether they have done so is not known then.

        Raises:
            EngineUnavailable, TooManyQuestions: see `Beats.ask`.
        """
        await self._beats.ask(encode_question(Seal()))

    async def accounted(self) -> int | None:
        """The minute up to which the usage accounting of all nodes is in the archive.

        Silent nodes count until they are forgotten. None where no node has an archive.

        Raises:
            EngineUnavailable: it doesn't answer.
        """
        minutes = [each.state.accounts for each in await self.all()]
        return min([each for each in minutes if each], default=None)

    async def ask(
        self, question: bytes, *, often: bool = False
    ) -> tuple[Mapping[str, bytes], list[KnownNode]]:
        """Ask all nodes; see `Beats.ask`.

        Returns:
            Answers by node, and the nodes that have not answered.

        Raises:
            EngineUnavailable, TooManyQuestions: see there.
        """
        answers = await self._beats.ask(question, often=often)
        return answers.answers, [self._know(each) for each in answers.missing]
