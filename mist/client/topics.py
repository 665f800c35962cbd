"""Who listens to what: tag sets the server is to know of, and the local subscriptions to them.

Outlives connections. Local subscriptions share a tag set where they can, and what has to be
said to the server goes out through `send`.

Where the server has a history, a lost connection loses no message:

* A new subscription asks for the last message that matches (`-1`) and throws it away. What
  that is for is the answer: the place in the history where its live messages begin.
* Each subscription remembers the highest id it was given, takes none twice, and so is right
  whatever is brought again. Those that are live share a place too: a message goes to all of
  them in one order, so an id that arrived for one says that the others miss none below it.
* On a fresh connection all that were begun are resumed as one, from the lowest place of any.
  Those that asked for old messages and had not got all of them yet have a lower place than
  the rest, who drop what they have seen.
* What arrives on the line between `last` and the first message of a replay is live, belongs
  to others, and comes again in the replay, so it must not be taken for its beginning: see
  `Topics._hold`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs
import trio

from mist.client.dialect import Begun, Request
from mist.client.errors import HistoryOff, HistoryUnavailable, Revoked, remote_error
from mist.client.subscription import Stage, Subscription
from mist.commands import Failed, Reply, Resume, Since, Subscribe, Unsubscribe
from mist.errors import ClientClosed, ClientError, RemoteError
from mist.message import Message, TagSet, format_tags

__all__ = ["Topic", "Topics"]

_CACHED: Final = 4096  # tag sets whose listeners are remembered
_PATIENCE: Final = 0.5  # seconds that reading waits for a reader that has yet to catch up
_MOST: Final = 1_000  # tag sets resumed at once, as many as a server takes
_MOST_BYTES: Final = 65_536  # of their tag lists; a server's frame is 128 KiB at most

_LIVE_ONLY: Final = Since(last=1)  # this very object: somebody may want the last one, too


@attrs.define(eq=False)
class Topic:
    """A tag set the server is to know of, and the local subscriptions that share it.

    Attributes:
        asked: how often it was subscribed to on this connection.
    """

    tags: TagSet
    subscriptions: list[Subscription] = attrs.field(factory=list)
    asked: int = 0


@attrs.define(eq=False)
class _Asking(Request):
    """A subscribe or resume, and whom it is for.

    Attributes:
        begun: the newest id when it began; None before that, and where there is no history.
    """

    subscriptions: list[Subscription] = attrs.field(factory=list)
    begun: int | None = None

    @property
    def live_only(self) -> bool:
        """Whether it brings nothing that was, so that anybody can join it."""
        return isinstance(self.command, Subscribe) or (
            isinstance(self.command, Resume) and self.command.since is _LIVE_ONLY
        )


class Topics:
    """See the module.

    Args:
        send: queues a request on the connection that there is.
        reset: gives that connection up, to be made again after a while.
        counted: whether the server counts a subscription that is made twice.

    Attributes:
        history: whether the server has one; None where that is yet to be found out.
    """

    def __init__(
        self,
        send: Callable[[Request], None],
        reset: Callable[[ClientError], None],
        *,
        counted: bool,
    ) -> None:
        self.history: bool | None = None
        self._send = send
        self._reset = reset
        self._counted = counted
        self._online = False  # a connection takes requests
        self._epoch: str | None = None
        self._newest = 0  # no subscription that is live misses anything up to this id
        self._topics: dict[TagSet, Topic] = {}
        self._targets: dict[TagSet, Sequence[Subscription]] = {}
        self._crowded: set[Subscription] = set()

    # what the program wants

    def join(self, subscription: Subscription) -> None:
        """Have a subscription's tag set subscribed to. It is `settled` when that is so."""
        topic = self._topics.get(subscription.tags)
        if topic is None:
            topic = self._topics[subscription.tags] = Topic(subscription.tags)
        others = list(topic.subscriptions)
        topic.subscriptions.append(subscription)
        self._targets.clear()
        if not self._online:
            return
        if subscription.since is None:
            for other in others:
                if other.stage is Stage.LIVE:
                    subscription.stage = Stage.LIVE
                    subscription.caught_up = True
                    subscription.seen = self._newest if self.history else None
                    subscription.settled.set()
                    return
                request = other.request
                if isinstance(request, _Asking) and request.live_only and request.begun is None:
                    subscription.request = request
                    request.subscriptions.append(subscription)
                    return
        self._send(self._ask([subscription], subscription.since or _LIVE_ONLY))

    def leave(self, subscription: Subscription) -> None:
        """End a subscription, and the server's with the last of its tags."""
        # Without an await, so that cancellation can't leave half of it undone. Nobody waits
        # for the answer: an unsubscribe can't fail.
        subscription.end()
        topic = self._topics.get(subscription.tags)
        if topic is None or subscription not in topic.subscriptions:
            return
        self._remove(topic, subscription)
        if topic.subscriptions:
            return
        del self._topics[topic.tags]
        self._unsubscribe(topic)

    def unsubscribe(self, tags: TagSet) -> None:
        """End all subscriptions of exactly these tags."""
        topic = self._topics.get(tags)
        if topic is not None:
            self._drop(topic, None, ClientClosed("unsubscribed"))
            self._unsubscribe(topic)

    def _unsubscribe(self, topic: Topic) -> None:
        if self._online:
            for _ in range(topic.asked):
                self._send(Request(Unsubscribe(topic.tags)))
        topic.asked = 0

    def _drop(self, topic: Topic, error: ClientError | None, fresh: ClientError) -> None:
        """End all of a topic; those that are not settled yet because of `fresh`."""
        del self._topics[topic.tags]
        for subscription in list(topic.subscriptions):
            self._remove(topic, subscription)
            subscription.end(error if subscription.settled.is_set() else fresh)

    def _remove(self, topic: Topic, subscription: Subscription) -> None:
        topic.subscriptions.remove(subscription)
        self._targets.clear()
        if isinstance(subscription.request, _Asking):
            subscription.request.subscriptions.remove(subscription)
            subscription.request = None

    # what becomes of the connection

    def opening(self) -> list[Request]:
        """What has to be asked on a fresh connection, the old subscriptions first."""
        self._online = True
        everyone = [each for topic in self._topics.values() for each in topic.subscriptions]
        resumed: list[Subscription] = []
        if self.history is not False and self._epoch is not None:
            resumed = [each for each in everyone if each.seen is not None]
        requests = [self._resume(chunk) for chunk in _chunks(resumed)]
        fresh: dict[TagSet, list[Subscription]] = {}
        for each in everyone:
            if each.request is not None:
                continue
            if each.since is not None and self.history is not False and not _was_live(each):
                requests.append(self._ask([each], each.since))
            elif each.since is None or each.settled.is_set():
                fresh.setdefault(each.tags, []).append(each)
            else:
                self._refuse(each, HistoryOff())
        return [*requests, *(self._ask(each, _LIVE_ONLY) for each in fresh.values())]

    def _resume(self, subscriptions: list[Subscription]) -> Request:
        lowest = min(each.seen or 0 for each in subscriptions)
        return self._ask(subscriptions, Since(after=lowest, epoch=self._epoch))

    def _ask(self, subscriptions: list[Subscription], since: Since) -> Request:
        tag_sets = list(dict.fromkeys(each.tags for each in subscriptions))
        request = _Asking(Resume(tag_sets, since), subscriptions=list(subscriptions))
        if self.history is False and since is _LIVE_ONLY:
            request.command = Subscribe(tag_sets[0])
        for tags in tag_sets:
            topic = self._topics[tags]
            topic.asked = topic.asked + 1 if self._counted else 1
        for each in subscriptions:
            each.request = request
        return request

    def broken(self) -> None:
        """The connection is gone."""
        self._online = False
        self._targets.clear()
        for topic in self._topics.values():
            topic.asked = 0
            for each in topic.subscriptions:
                if each.stage is Stage.LIVE and each.seen is not None:
                    each.seen = max(each.seen, self._newest)
                each.stage = Stage.ABSENT
                each.held.clear()
                each.request = None

    def fail(self, error: ClientError) -> None:
        """There will be no connection any more."""
        for topic in list(self._topics.values()):
            self._drop(topic, None if isinstance(error, ClientClosed) else error, error)

    # what the server says

    def begun(self, event: Begun) -> None:
        """From here on comes what was asked for."""
        request = event.request
        if not isinstance(request, _Asking) or not isinstance(request.command, Resume):
            return
        since = request.command.since
        assert since is not None
        alone = not any(
            each.stage is not Stage.ABSENT
            for topic in self._topics.values()
            for each in topic.subscriptions
        )
        self.history = True
        if self._epoch != event.epoch:
            self._epoch = event.epoch
            self._newest = 0
        request.begun = event.id
        self._targets.clear()
        for each in request.subscriptions:
            if each.seen is not None:
                each.seen = min(each.seen, event.id) if since.epoch == event.epoch else 0
            elif since is _LIVE_ONLY:
                each.seen = event.id
            elif since.after is not None:
                known = since.epoch in (None, event.epoch) and since.after <= event.id
                each.seen = since.after if known else 0
            if each.settled.is_set():
                each.reconnected(whole=since is not _LIVE_ONLY)
            sure = not self._counted or since is _LIVE_ONLY or (alone and each.settled.is_set())
            each.stage = Stage.REPLAYED if sure else Stage.HELD
            if not self._counted:
                each.settled.set()

    def forgotten(self, request: Request) -> None:
        """Part of what was asked for is not in the history any more."""
        if isinstance(request, _Asking) and isinstance(request.command, Resume):
            for each in request.subscriptions:
                if request.command.since is not _LIVE_ONLY:
                    each.forgotten(reconnected=each.reconnects > 0)
                    self._release(each)

    def settle(self, request: Request, reply: Reply) -> None:
        """A subscribe was answered, or all of a replay has come."""
        if not isinstance(request, _Asking):
            return
        if isinstance(reply, Failed):
            self._failed(request, str(reply.error))
            return
        self._targets.clear()
        subscriptions, request.subscriptions = request.subscriptions, []
        resumed = isinstance(request.command, Resume)
        if request.begun is not None:
            self._newest = max(self._newest, request.begun)
        elif resumed:
            self.history = False  # a server that is too old for the question
        for each in subscriptions:
            for message in each.held:
                each.deliver(message)
            each.held.clear()
            each.stage = Stage.LIVE
            each.caught_up = True
            each.request = None
            if request.begun is not None:
                each.seen = each.seen or 0
            else:
                each.seen = None
                if each.settled.is_set():
                    each.reconnected()
            each.settled.set()
        if self._counted:
            self._ask_once({each.tags for each in subscriptions})

    def _ask_once(self, tag_sets: Iterable[TagSet]) -> None:
        for tags in tag_sets:
            topic = self._topics.get(tags)
            if topic is not None and topic.asked > 1:
                topic.asked -= 1
                self._send(Request(Unsubscribe(tags)))

    def _failed(self, request: _Asking, text: str) -> None:
        error = remote_error(text)
        subscriptions, request.subscriptions = request.subscriptions, []
        by_tags: dict[TagSet, list[Subscription]] = {}
        for each in subscriptions:
            each.request = None
            each.stage = Stage.ABSENT
            by_tags.setdefault(each.tags, []).append(each)
        if self._counted:
            for tags in by_tags:
                self._topics[tags].asked -= 1
        if isinstance(error, HistoryUnavailable) and any(
            each.settled.is_set() for each in subscriptions
        ):
            self._reset(error)
            return
        if isinstance(error, HistoryOff) and isinstance(request.command, Resume):
            self.history = False
            self._epoch = None
            for group in by_tags.values():
                self._without_history(group)
            return
        if len(by_tags) > 1:  # all or none: which of them is it?
            for group in by_tags.values():
                self._send(self._resume(group))
            return
        for each in subscriptions:
            self._refuse(each, error)

    def _without_history(self, group: list[Subscription]) -> None:
        remaining = []
        for each in group:
            if each.since is None or each.settled.is_set():
                remaining.append(each)
            else:
                self._refuse(each, HistoryOff())
        if remaining:
            self._send(self._ask(remaining, _LIVE_ONLY))

    def _refuse(self, subscription: Subscription, error: RemoteError) -> None:
        topic = self._topics[subscription.tags]
        self._remove(topic, subscription)
        settled = subscription.settled.is_set()
        subscription.end(Revoked(subscription.tags) if settled else error)
        if not topic.subscriptions:
            del self._topics[topic.tags]

    def revoked(self, tags: TagSet) -> None:
        """The server ended a subscription."""
        topic = self._topics.get(tags)
        if topic is not None:
            self._drop(topic, Revoked(tags), Revoked(tags))

    # messages

    def deliver(self, message: Message) -> None:
        """A message arrived."""
        targets = self._targets.get(message.tags)
        if targets is None:
            if len(self._targets) >= _CACHED:
                self._targets.clear()
            targets = self._targets[message.tags] = [
                subscription
                for topic in self._topics.values()
                if topic.tags <= message.tags
                for subscription in topic.subscriptions
                if subscription.stage is not Stage.ABSENT
            ]
        if message.id is not None:
            if message.id > self._newest:
                self._newest = message.id
            if self.history is False:
                self.history = None  # there is one after all: ask next time
        for subscription in targets:
            if subscription.stage is Stage.HELD:
                self._hold(subscription, message)
                continue
            subscription.deliver(message)
            if subscription.crowded:
                self._crowded.add(subscription)

    def _hold(self, subscription: Subscription, message: Message) -> None:
        """Take a message where it is not certain yet that the replay has begun.

        Live messages may stand before the replay, with ids above the one that `last` told;
        the replay brings those again. So it has surely begun where an id is not above that
        one, or not above the last that was held; else all that is held belongs to it.
        """
        request, held = subscription.request, subscription.held
        assert isinstance(request, _Asking)
        id_ = message.id or 0
        if id_ > (request.begun or 0) and (not held or id_ > (held[-1].id or 0)):
            held.append(message)
            return
        self._release(subscription)
        subscription.deliver(message)

    def _release(self, subscription: Subscription) -> None:
        subscription.held.clear()
        if subscription.stage is Stage.HELD:
            subscription.stage = Stage.REPLAYED
        subscription.settled.set()

    async def relieve(self) -> None:
        """Let readers catch up, for a bounded while; with a history, as long as they read."""
        # Whoever yields once a message would lose most of a burst to a reading loop that
        # yields once in thousands. Meanwhile the server's outbox holds the rest. The wait is
        # bounded, and not repeated for a reader that doesn't use it, so that one stalled
        # subscription costs the others a moment, once.
        await trio.lowlevel.checkpoint()
        crowded, self._crowded = self._crowded, set()
        while crowded:
            before = {each: each.taken for each in crowded}
            with trio.move_on_after(_PATIENCE):
                for each in crowded:
                    await each.relieved()
            crowded = {each for each in crowded if each.crowded}
            waiting = {each for each in crowded if self.history and each.taken > before[each]}
            for each in crowded - waiting:
                each.give_up()
            crowded = waiting


def _was_live(subscription: Subscription) -> bool:
    """Whether it had all that it asked for at first, on a server with a history or without."""
    return subscription.settled.is_set() and (
        subscription.seen is not None or subscription.caught_up
    )


def _chunks(subscriptions: list[Subscription]) -> Iterable[list[Subscription]]:
    """As few groups as a server takes, each tag set whole in one of them."""
    chunk: list[Subscription] = []
    known: set[TagSet] = set()
    size = 0
    for each in sorted(subscriptions, key=lambda it: format_tags(it.tags)):
        if each.tags not in known:
            size += len(format_tags(each.tags).encode())
            if chunk and (len(known) >= _MOST or size > _MOST_BYTES):
                yield chunk
                chunk, known, size = [], set(), 0
            known.add(each.tags)
        chunk.append(each)
    if chunk:
        yield chunk
