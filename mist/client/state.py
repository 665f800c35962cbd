"""Client state: everything that outlives a connection.

It owns the connection supervisor and handles its events. It holds the requests that tasks wait
for, the subscriptions (`mist.client.subscriber`) and what became of published messages
(`mist.client.publisher`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from mist.client.address import Address
from mist.client.dialect import (
    Event,
    HistoryGap,
    PresenceRevoked,
    PresenceTold,
    PublishFailed,
    ReplayStarted,
    ReplayUnplaced,
    Request,
    Response,
    SubscriptionRevoked,
)
from mist.client.errors import AccessDenied, Unconfirmed, Unsupported
from mist.client.fanout import Fanout
from mist.client.frames import SUPPORTED
from mist.client.home import Home
from mist.client.options import Options, State
from mist.client.position import ServerHistory
from mist.client.postponed import Postponed
from mist.client.presence import PresenceTable
from mist.client.publisher import Publisher
from mist.client.send_buffer import SendBuffer
from mist.client.subscriber import Subscriber
from mist.client.subscription_table import SubscriptionTable
from mist.client.supervisor import ConnectionSupervisor
from mist.commands import (
    Auth,
    Command,
    Echo,
    Escape,
    Ids,
    Last,
    Ping,
    Resume,
    Subscribe,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
)
from mist.errors import ClientClosed, ClientError, ConnectError, ConnectionLost, HistoryOff
from mist.message import Message
from mist.replies import Failed, Newest, Reply

__all__ = ["ClientState"]

_SUBSCRIBE_COMMANDS: Final = (Resume, Subscribe, Unsubscribe, WatchPresence, UnwatchPresence)


@attrs.define(eq=False)
class _Call(Request):
    """A request that a task waits for."""

    done: anyio.Event = attrs.field(factory=anyio.Event)
    error: ClientError | None = None


class ClientState:
    """State of one client. `run` is its only task.

    Attributes:
        home: the event loop that it is at home in.
        subscriber: its subscriptions.
        presence: what it watches of presence.
        lines: whether it speaks the line protocol; otherwise JSON frames.
        token: the token that a WebSocket handshake presents.
        state: of its connection.
    """

    def __init__(
        self,
        address: Address,
        options: Options,
        publisher: Publisher,
        *,
        secret: str | None,
        token: str | None,
        echo: bool,
        buffer: int,
        on_state: Callable[[State], None] | None,
    ) -> None:
        self.home = Home()
        self.lines = address.protocol == "tcp"
        self.token = token
        self.state = State.CONNECTING
        self._secret = secret
        self._echo = echo
        self._on_state = on_state
        self._publisher = publisher
        self._send_buffer = SendBuffer(buffer)
        self._supervisor = ConnectionSupervisor(address, options, self._send_buffer, self)
        self._history = ServerHistory()
        table = SubscriptionTable()
        self._fanout = Fanout(table, self._history)
        send = self._send_buffer.add
        self._postponed = Postponed(send)
        self.subscriber = Subscriber(
            table, self._history, send, self._postponed, self._supervisor.reset, counted=self.lines
        )
        self.presence = PresenceTable(send, self._postponed)
        self._failure: ClientError | None = None

    # calls of the program

    def check(self) -> None:
        """Raise why the client can't be used: it has ended, or is at home elsewhere."""
        self.home.check()
        if self._failure is not None:
            raise self._failure

    async def publish(self, line: bytes) -> None:
        """Queue a message; wait for room (backpressure). Cancelled, it was not queued."""
        self.check()
        await self.home.checkpoint_if_cancelled()
        while self._send_buffer.full:
            await self._send_buffer.wait_for_room()
            self.check()
        self._send_buffer.add(line)

    async def call(self, command: Command) -> Reply:
        """Send a request and wait for its reply. Cancelled, it may have been handled."""
        if not self.lines and type(command) not in SUPPORTED:
            raise Unsupported(f"{type(command).__name__} is not for websockets")
        self.check()
        call = _Call(command)
        self._send_buffer.add(call)
        try:
            await call.done.wait()
        except anyio.get_cancelled_exc_class():
            self._send_buffer.remove(lambda request: request is call)
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
            if self._publisher.unconfirmed:
                raise self._publisher.take_unconfirmed() from error
            raise
        self._publisher.raise_failures()

    # the supervisor's handler

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
            commands.append(Ping())  # answered only where the token was accepted
        return [*map(Request, commands)]

    def greeted(self, greeting: Sequence[Request]) -> None:
        for request in greeting:
            if isinstance(request.reply, Newest):
                self._history.available = True
            if not isinstance(request.reply, Failed):
                continue
            text = str(request.reply.error)
            if isinstance(request.command, Ids | Last) and _has_no_history(text):
                self._history.available = False
                continue
            if isinstance(request.command, Auth):
                raise AccessDenied("access denied: the secret is wrong")
            if text == "Unauthorized":
                raise AccessDenied("access denied: the server demands a secret")
            raise ConnectError(f"the server answered: {text}")

    def resubscribe(self) -> Sequence[Request]:
        return [*self.subscriber.resubscribe(), *self.presence.resubscribe()]

    def state_changed(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    def handle(self, event: Event) -> None:
        match event:
            case Message():
                self._fanout.deliver(event)
            case Response(request, reply):
                request.reply = reply
                if isinstance(request, _Call):
                    request.done.set()
                elif isinstance(request.command, WatchPresence | UnwatchPresence):
                    self.presence.settle(request.command, reply)
                else:
                    self.subscriber.settle(request, reply)
            case ReplayStarted():
                self.subscriber.replay_started(event)
            case ReplayUnplaced(request, text):
                self.subscriber.replay_unplaced(request, text)
            case HistoryGap(request):
                self.subscriber.history_gap(request)
            case PublishFailed(text):
                self._publisher.add_refusal(text)
            case SubscriptionRevoked(tags):
                self.subscriber.revoked(tags)
            case PresenceTold():
                self.presence.told(event)
            case PresenceRevoked(tags):
                self.presence.ended(tags)

    async def ask_again(self) -> None:
        await self._postponed.run()

    async def apply_backpressure(self) -> None:
        await self._fanout.apply_backpressure()

    def disconnected(
        self, error: ClientError, unanswered: Sequence[Request], unconfirmed: int
    ) -> None:
        self._publisher.add_unconfirmed(unconfirmed)
        self.subscriber.disconnected()
        self.presence.disconnected()
        self._postponed.clear()
        # The next connection begins with the subscriptions that there are by then.
        self._send_buffer.remove(lambda it: isinstance(it.command, _SUBSCRIBE_COMMANDS))
        _abort(unanswered, error)

    # lifecycle

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the connection up until `close`; started when it is connected the first time.

        Raises:
            ConnectError, ConnectionLost: the first connection failed. Later failures are raised
                by calls and by reading subscriptions.
        """
        try:
            await self._supervisor.run(task_status=task_status)
        except ClientError as error:
            never_connected = self.state is State.CONNECTING
            self._fail(error)
            if never_connected:
                raise
        finally:
            self._fail(ClientClosed())

    async def drain(self, seconds: float) -> None:
        """Flush if there is anything to flush or report.

        Raises:
            RemoteError, ConnectionLost: as `flush`.
            Unconfirmed: it took longer than `seconds`.
        """
        if self.home.forked:
            return  # it is the parent's
        if not (self._publisher.has_failures or self._in_flight):
            return
        with anyio.move_on_after(seconds) as scope:
            await self.flush()
        if scope.cancelled_caught:
            raise Unconfirmed(self._in_flight + self._publisher.unconfirmed)

    @property
    def _in_flight(self) -> int:
        return self._send_buffer.messages + self._supervisor.unconfirmed

    def close(self) -> None:
        """Close the connection and end `run`. Everything that waits raises `ClientClosed`."""
        self._supervisor.close()

    def _fail(self, error: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self.subscriber.fail(error)
        self.presence.fail(error)
        _abort(self._send_buffer.remove(lambda it: True), error)
        self._send_buffer.wake()
        self.state_changed(State.CLOSED)


def _has_no_history(text: str) -> bool:
    # The second is the answer of a server that is older than these commands.
    return text == HistoryOff.message or text.startswith("Unknown command")


def _abort(requests: Iterable[Request], error: ClientError) -> None:
    for request in requests:
        if isinstance(request, _Call):
            lost = not isinstance(error, ConnectionLost | ConnectError | ClientClosed)
            request.error = ConnectionLost() if lost else error
            request.done.set()
