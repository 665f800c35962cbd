r"""Topics: guble's protocol, in the messages of a WebSocket.

    < #connected You are connected to the server.\n{"ApplicationId": "…", "UserId": "marvin", …}
    > + /foo 0
    < #fetch-start /foo 1
    < /foo/bar,1,,,,1420110000\n\nhello
    < #fetch-done /foo
    < #subscribed-to /foo

A path is a topic, which is a tag (`mist.addresses`), and stands for all below it. `commands` parses
messages, `forms` writes deliveries. Where the original leaves it open, this was decided:

* *Where a start or a max is missing, the topic is subscribed to*; with both, stored messages are
  replayed, and no more. A max of 0 replays nothing, and so does a start beyond the newest message.
* *More may be published during a replay.* That is a fetch of its own, with a start and an end,
  before the subscription; and so is what a client was too slow for, which with a history is always
  replayed. A message that matches several topics is counted for the first of those subscribed to,
  and comes once.
* *A topic that can't be subscribed to is an `!error-subscribed-to`*, also when its token loses
  it later; `!error-server-internal` is said where the history can't be read.
* *`#send` is said when a message is durable*, where there is a history, and when it is queued for
  everybody else. `sequenceId` is a number; 0 without a history, and in an `!error-send`.
* *`-` is answered whether there was something to cancel or not.*
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from mist.commands import (
    Bye,
    Command,
    Fetch,
    Hangup,
    Invalid,
    Ping,
    Publish,
    Resume,
    Store,
    Unsubscribe,
)
from mist.errors import HistoryUnavailable, MistError, NotGranted
from mist.message import Envelope, Limits, TagSet
from mist.protocols import Protocol
from mist.protocols.client_frames import Binary, Broken, Closed, FrameReader, Pinged, Text
from mist.protocols.rfc6455 import pong_frame
from mist.protocols.topics.commands import Sending, parse_message
from mist.protocols.topics.forms import (
    APPLICATION,
    HEADERS,
    MESSAGE_ID,
    USER,
    TopicForm,
    json_line,
    notification,
    rfc3339,
)
from mist.replies import Behind, CaughtUp, Done, Failed, Fetched, Reply, Resumed, Revoked, Stored
from mist.wire import Batch

__all__ = ["TopicProtocol"]

_QUOTED = 255  # characters of a message's id or path that its publisher is told again


class TopicProtocol(Protocol):
    """One client's side of the protocol.

    Args:
        limits: of messages and tags.
        form: of its deliveries.
        user: who it is, asked whenever others are to see it.
        application: the session's client id.
        clock: Unix seconds.
        stores: whether there is a history, that is whether what is published gets an id.

    Attributes:
        close_reply: the answer to the peer's close frame, once that came.
    """

    keeps_up: ClassVar[bool] = True

    def __init__(
        self,
        limits: Limits,
        form: TopicForm,
        *,
        user: Callable[[], str],
        application: str,
        clock: Callable[[], float],
        stores: bool,
    ) -> None:
        self.form = form
        self._user = user
        self.close_reply = b""
        self._application = application
        self._clock = clock
        self._stores = stores
        self._limits = limits
        self._frames = FrameReader(limits.frame)
        self._fetching: Sequence[str] = ()  # paths of which messages are coming from the history
        self._subscribing = ""  # the path that a `Resume` is bringing, unless it was lost again

    @property
    def user(self) -> str:
        """Who it is, for others to see and no more than that."""
        return self._user()

    def greeting(self) -> bytes:
        fields = {
            "ApplicationId": self._application,
            "UserId": self.user,
            "Time": rfc3339(self._clock()),
        }
        data = json_line(fields, spaced=True)
        return notification("#connected You are connected to the server.", data)

    # reading

    def receive(self, data: bytes) -> Iterator[Command]:
        for event in self._frames.receive(data):
            match event:
                case Text(data=message) | Binary(data=message):
                    yield from self._message(message)
                case Pinged():
                    yield Ping(ref=event)
                case Closed(answer=answer):
                    self.close_reply = answer
                    yield Bye()
                case Broken(code=code, reason=reason):
                    yield Hangup(reason, code)

    def _message(self, message: bytes) -> Iterator[Command]:
        found = parse_message(message, self._limits)
        if not isinstance(found, Sending):
            yield found
            return
        found.time = self._clock()
        if found.error is not None:
            yield Invalid(found.error, ref=found)
        elif self._stores:
            yield Store(self._batch(found), ref=found)
        else:
            yield Publish(self._batch(found), ref=found)
            yield Ping(ref=found)  # what answers it comes behind a refusal, if there is one

    def _batch(self, sending: Sending) -> Batch:
        meta = {USER: self.user.encode(), APPLICATION: self._application.encode()}
        if sending.message_id:
            meta[MESSAGE_ID] = sending.message_id.encode()
        if sending.headers:
            meta[HEADERS] = sending.headers
        batch = Batch.of(frozenset({sending.path}), sending.body)
        batch.envelope = Envelope(time=sending.time, meta=meta)
        return batch

    # writing

    def reply(self, command: Command, reply: Reply) -> bytes:
        ref = command.ref
        if isinstance(ref, Pinged):
            return pong_frame(ref.payload)
        if isinstance(ref, Sending):
            return self._sent(ref, reply)
        match command, reply:
            case Invalid(error=error), _:
                return notification(f"!error-bad-request {error}")
            case _, Failed(error):
                return _failed(str(ref), error)
            case Resume(), Resumed(count=count):
                self._subscribing = str(ref)
                return self._start([(str(ref), count or 0)])
            case Resume(), Done():
                return notification(f"#subscribed-to {ref}")
            case Resume(), CaughtUp():
                path, self._subscribing = self._subscribing, ""
                return self._done() + (notification(f"#subscribed-to {path}") if path else b"")
            case Fetch(), Fetched(count=count):
                return notification(f"#fetch-start {ref} {count}")
            case Fetch(), CaughtUp():
                return notification(f"#fetch-done {ref}")
            case Unsubscribe(), Done():
                return notification(f"#canceled {ref}")
            case _:
                raise AssertionError(f"no notification for {reply!r}")

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Revoked(tags=tags):
                path = _path(tags)
                if path == self._subscribing:
                    self._subscribing = ""
                return _failed(path, NotGranted())
            case Behind(counts=counts):
                return self._start([(_path(tags), count) for tags, count in counts])
            case CaughtUp():
                return self._done()
            case _:  # a gap: ids tell
                return b""

    def _start(self, counts: Sequence[tuple[str, int]]) -> bytes:
        self._fetching = [path for path, _ in counts]
        return b"".join(notification(f"#fetch-start {path} {count}") for path, count in counts)

    def _done(self) -> bytes:
        fetching, self._fetching = self._fetching, ()
        return b"".join(notification(f"#fetch-done {path}") for path in fetching)

    def _sent(self, sending: Sending, reply: Reply) -> bytes:
        match reply:
            case Stored(id_):
                return _told(sending, "#send", id_)
            case Failed(error):
                if sending.failed:
                    return b""
                sending.failed = True
                return _told(sending, "!error-send", 0, _text(error))
            case _:  # the fence behind it
                return b"" if sending.failed else _told(sending, "#send", 0)


def _told(sending: Sending, name: str, sequence_id: int, text: str = "") -> bytes:
    message_id = sending.message_id[:_QUOTED]
    fields = {
        "sequenceId": sequence_id,
        "path": sending.path[:_QUOTED],
        "publisherMessageId": message_id,
        "messagePublishingTime": int(sending.time),
    }
    return notification(" ".join(filter(None, (name, message_id, text))), json_line(fields))


def _failed(path: str, error: MistError) -> bytes:
    if isinstance(error, HistoryUnavailable):
        return notification(f"!error-server-internal {_text(error)}")
    return notification(f"!error-subscribed-to {path} {_text(error)}")


def _text(error: MistError) -> str:
    # What it says beyond its message is for the operator.
    return error.message if isinstance(error, HistoryUnavailable) else str(error)


def _path(tags: TagSet) -> str:
    """The topic of a subscription, which has no other tag here."""
    return next(iter(tags))
