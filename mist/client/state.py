"""The client's end of the line: what outlives a connection, and hears of what happens on it.

It owns the link (`mist.client.supervisor`), and with it the requests that tasks wait for, the
subscriptions (`mist.client.subscribing`) and what became of publishes.
"""

from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from mist.client.address import Address
from mist.client.delivery import Delivery
from mist.client.dialect import Answer, Begun, Ended, Event, Forgotten, PublishFailed, Request
from mist.client.errors import AccessDenied, Unconfirmed, Unsupported
from mist.client.frames import SUPPORTED
from mist.client.options import Options, State
from mist.client.outgoing import Outgoing
from mist.client.position import Known
from mist.client.publishing import Publishing
from mist.client.subscribing import Subscribing
from mist.client.supervisor import ConnectionSupervisor
from mist.client.topics import Topics
from mist.commands import (
    Auth,
    Command,
    Echo,
    Escape,
    Failed,
    Ids,
    Last,
    Newest,
    Ping,
    Reply,
    Resume,
    Subscribe,
    Unsubscribe,
)
from mist.errors import ClientClosed, ClientError, ConnectError, ConnectionLost, HistoryOff
from mist.message import Message

__all__ = ["ClientState"]


@attrs.define(eq=False)
class _Call(Request):
    """A request that a task waits for."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: ClientError | None = None


class ClientState:
    """See the module. `run` is its only task.

    Attributes:
        lines: whether it speaks the line protocol; JSON frames otherwise.
        token: what a WebSocket's request presents.
        state: see `State`.
    """

    def __init__(
        self,
        address: Address,
        options: Options,
        publishing: Publishing,
        *,
        secret: str | None,
        token: str | None,
        echo: bool,
        buffer: int,
        on_state: Callable[[State], None] | None,
    ) -> None:
        self.lines = address.protocol == "tcp"
        self.token = token
        self.state = State.CONNECTING
        self._secret = secret
        self._echo = echo
        self._on_state = on_state
        self._publishing = publishing
        self._outgoing = Outgoing(buffer)
        self._link = ConnectionSupervisor(address, options, self._outgoing, self)
        self._known = Known()
        topics = Topics()
        self._delivery = Delivery(topics, self._known)
        self.subscribing = Subscribing(
            topics, self._known, self._outgoing.add, self._link.reset, counted=self.lines
        )
        self._failure: ClientError | None = None

    # what a program wants

    def check(self) -> None:
        """Raise why there will be no connection any more, where that is so."""
        if self._failure is not None:
            raise self._failure

    async def publish(self, line: bytes) -> None:
        """Queue a message, waiting for room. Cancelled, it was not queued."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check()
        while self._outgoing.full:
            await self._outgoing.wait_for_room()
            self.check()
        self._outgoing.add(line)

    async def call(self, command: Command) -> Reply:
        """Ask, and wait for the answer. Cancelled, it may have been asked."""
        if not self.lines and type(command) not in SUPPORTED:
            raise Unsupported(f"{type(command).__name__} is not for websockets")
        self.check()
        call = _Call(command)
        self._outgoing.add(call)
        try:
            await call.done.wait()
        except trio.Cancelled:
            self._outgoing.remove(lambda request: request is call)
            raise
        if call.error is not None:
            raise call.error
        if isinstance(call.reply, Failed):
            raise call.reply.error
        assert call.reply is not None
        return call.reply

    async def flush(self) -> None:
        """See `mist.client.Client.flush`."""
        try:
            await self.call(Ping())
        except ClientError as error:
            if self._publishing.doubtful:
                raise self._publishing.take_doubt() from error
            raise
        self._publishing.tell()

    # the link's owner

    def greeting(self) -> Sequence[Request]:
        commands: list[Command] = []
        if self.lines:
            if self._secret is not None:
                commands.append(Auth(self._secret))
            commands.append(Escape(on=True))
            if not self._echo:
                commands.append(Echo(on=False))
            commands += [Ids(on=True), Last()]
        else:
            commands.append(Ping())  # comes back only where the token was good
        return [*map(Request, commands)]

    def greeted(self, greeting: Sequence[Request]) -> None:
        for request in greeting:
            if isinstance(request.reply, Newest):
                self._known.history = True
            if not isinstance(request.reply, Failed):
                continue
            text = str(request.reply.error)
            if isinstance(request.command, Ids | Last) and _has_no_history(text):
                self._known.history = False
                continue
            if isinstance(request.command, Auth):
                raise AccessDenied("access denied: the secret is wrong")
            if text == "Unauthorized":
                raise AccessDenied("access denied: the server demands a secret")
            raise ConnectError(f"the server answered: {text}")

    def opening(self) -> Sequence[Request]:
        return self.subscribing.opening()

    def state_changed(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    def handle(self, event: Event) -> None:
        match event:
            case Message():
                self._delivery.deliver(event)
            case Answer(request, reply):
                request.reply = reply
                if isinstance(request, _Call):
                    request.done.set()
                else:
                    self.subscribing.settle(request, reply)
            case Begun():
                self.subscribing.begun(event)
            case Forgotten(request):
                self.subscribing.forgotten(request)
            case PublishFailed(text):
                self._publishing.refuse(text)
            case Ended(tags):
                self.subscribing.revoked(tags)

    async def relieve(self) -> None:
        await self._delivery.relieve()

    def broken(self, error: ClientError, unanswered: Sequence[Request], unconfirmed: int) -> None:
        self._publishing.doubt(unconfirmed)
        self.subscribing.broken()
        # The opening of the next connection says which subscriptions there are by then.
        self._outgoing.remove(lambda it: isinstance(it.command, Resume | Subscribe | Unsubscribe))
        _abort(unanswered, error)

    # life

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the connection until `close`; started when it is there for the first time.

        Raises:
            ConnectError, ConnectionLost: it could not be had even once. Later ends are told
                to whoever calls or reads.
        """
        try:
            await self._link.run(task_status=task_status)
        except ClientError as error:
            never = self.state is State.CONNECTING
            self._fail(error)
            if never:
                raise
        finally:
            self._fail(ClientClosed())

    async def drain(self, seconds: float) -> None:
        """Flush where there is anything to tell. Raises as `flush`, `Unconfirmed` in the end."""
        if not (self._publishing.troubled or self._waiting):
            return
        with trio.move_on_after(seconds) as scope:
            await self.flush()
        if scope.cancelled_caught:
            raise Unconfirmed(self._waiting + self._publishing.doubtful)

    @property
    def _waiting(self) -> int:
        return self._outgoing.messages + self._link.unconfirmed

    def close(self) -> None:
        """Say goodbye and end `run`. Everything that waits raises `ClientClosed`."""
        self._link.close()

    def _fail(self, error: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self.subscribing.fail(error)
        _abort(self._outgoing.remove(lambda it: True), error)
        self._outgoing.wake()
        self.state_changed(State.CLOSED)


def _has_no_history(text: str) -> bool:
    # The second is what a server says that is older than the question.
    return text == HistoryOff.message or text.startswith("Unknown command")


def _abort(requests: Iterable[Request], error: ClientError) -> None:
    for request in requests:
        if isinstance(request, _Call):
            lost = not isinstance(error, ConnectionLost | ConnectError | ClientClosed)
            request.error = ConnectionLost() if lost else error
            request.done.set()
