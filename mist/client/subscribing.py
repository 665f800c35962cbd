"""What the server is asked for, so that each subscription gets what it is to get.

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
"""

from collections.abc import Callable, Iterable

from mist.client.asking import LIVE_ONLY, Asking, in_chunks
from mist.client.dialect import Begun, Request
from mist.client.errors import HistoryOff, HistoryUnavailable, Revoked, remote_error
from mist.client.position import Known
from mist.client.subscription import Stage, Subscription
from mist.client.topics import Topic, Topics
from mist.commands import Failed, Reply, Resume, Since, Subscribe, Unsubscribe
from mist.errors import ClientClosed, ClientError, RemoteError
from mist.message import TagSet

__all__ = ["Subscribing"]


class Subscribing:
    """See the module.

    Args:
        topics: who listens to what.
        known: the server's history, as far as it is known.
        send: queues a request on the connection that there is.
        reset: gives that connection up, to be made again after a while.
        counted: whether the server counts a subscription that is made twice.
    """

    def __init__(
        self,
        topics: Topics,
        known: Known,
        send: Callable[[Request], None],
        reset: Callable[[ClientError], None],
        *,
        counted: bool,
    ) -> None:
        self._topics = topics
        self._known = known
        self._send = send
        self._reset = reset
        self._counted = counted
        self._online = False  # a connection takes requests

    # what the program wants

    def join(self, subscription: Subscription) -> None:
        """Have a subscription's tag set subscribed to. It is `settled` when that is so."""
        topic = self._topics.add(subscription)
        if not self._online:
            return
        if subscription.since is None:
            for other in topic.subscriptions[:-1]:
                if other.stage is Stage.LIVE:
                    subscription.stage = Stage.LIVE
                    subscription.caught_up = True
                    subscription.seen = self._known.newest if self._known.history else None
                    subscription.settled.set()
                    return
                request = other.request
                if isinstance(request, Asking) and request.live_only and request.begun is None:
                    subscription.request = request
                    request.subscriptions.append(subscription)
                    return
        self._send(self._ask([subscription], subscription.since or LIVE_ONLY))

    def leave(self, subscription: Subscription) -> None:
        """End a subscription, and the server's with the last of its tags."""
        # Without an await, so that cancellation can't leave half of it undone. Nobody waits
        # for the answer: an unsubscribe can't fail.
        subscription.end()
        ended = self._topics.remove(subscription)
        if ended is not None:
            self._unsubscribe(ended)

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
        for subscription in list(topic.subscriptions):
            self._topics.remove(subscription)
            subscription.end(error if subscription.settled.is_set() else fresh)

    # what becomes of the connection

    def opening(self) -> list[Request]:
        """What has to be asked on a fresh connection, the old subscriptions first."""
        self._online = True
        everyone = self._topics.everyone()
        resumed: list[Subscription] = []
        if self._known.history is not False and self._known.epoch is not None:
            resumed = [each for each in everyone if each.seen is not None]
        requests = [self._resume(chunk) for chunk in in_chunks(resumed)]
        fresh: dict[TagSet, list[Subscription]] = {}
        for each in everyone:
            if each.request is not None:
                continue
            if each.since is not None and self._known.history is not False and not _was_live(each):
                requests.append(self._ask([each], each.since))
            elif each.since is None or each.settled.is_set():
                fresh.setdefault(each.tags, []).append(each)
            else:
                self._refuse(each, HistoryOff())
        return [*requests, *(self._ask(each, LIVE_ONLY) for each in fresh.values())]

    def _resume(self, subscriptions: list[Subscription]) -> Request:
        lowest = min(each.seen or 0 for each in subscriptions)
        return self._ask(subscriptions, Since(after=lowest, epoch=self._known.epoch))

    def _ask(self, subscriptions: list[Subscription], since: Since) -> Request:
        tag_sets = list(dict.fromkeys(each.tags for each in subscriptions))
        request = Asking(Resume(tag_sets, since), subscriptions=list(subscriptions))
        if self._known.history is False and since is LIVE_ONLY:
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
        for topic in self._topics:
            topic.asked = 0
        for each in self._topics.everyone():
            if each.stage is Stage.LIVE and each.seen is not None:
                each.seen = max(each.seen, self._known.newest)
            each.stage = Stage.ABSENT
            each.held.clear()
            each.request = None
        self._known.newest = 0  # the next server's log may have been put back to an earlier state

    def fail(self, error: ClientError) -> None:
        """There will be no connection any more."""
        for topic in self._topics:
            self._drop(topic, None if isinstance(error, ClientClosed) else error, error)

    # what the server says

    def begun(self, event: Begun) -> None:
        """From here on comes what was asked for."""
        request = event.request
        if not isinstance(request, Asking) or not isinstance(request.command, Resume):
            return
        since = request.command.since
        assert since is not None
        alone = all(each.stage is Stage.ABSENT for each in self._topics.everyone())
        self._known.begun(event.epoch)
        request.begun = event.id
        for each in request.subscriptions:
            if since is LIVE_ONLY:
                each.seen = event.id
            elif each.seen is not None:
                each.seen = min(each.seen, event.id) if since.epoch == event.epoch else 0
            elif since.after is not None:
                known = since.epoch in (None, event.epoch) and since.after <= event.id
                each.seen = since.after if known else 0
            if each.settled.is_set():
                each.reconnected(whole=since is not LIVE_ONLY)
            if not self._counted:
                each.stage = Stage.REPLAYED
                each.settled.set()
            elif since is not LIVE_ONLY:
                each.stage = Stage.REPLAYED if alone and each.settled.is_set() else Stage.HELD
            # Else it stays away until the fence: of what comes before, others' messages might
            # be for it too, with some between them that the server does not send for it yet.

    def forgotten(self, request: Request | None) -> None:
        """Something is missing here that the history has forgotten."""
        if isinstance(request, Asking) and not request.live_only:
            for each in request.subscriptions:
                each.forgotten(reconnected=each.reconnects > 0)
                each.release()
            return
        # What only asks where live begins misses nothing, so it is another's. Whose is not
        # said: theirs who are being brought what was, if any are, else it may be anybody's.
        present = [each for each in self._topics.everyone() if each.stage is not Stage.ABSENT]
        reading = [
            each for each in present if each.stage is not Stage.LIVE and not _asks_live(each)
        ]
        for each in reading or present:
            each.forgotten(reconnected=False)

    def settle(self, request: Request, reply: Reply) -> None:
        """A subscribe was answered, or all of a replay has come."""
        if not isinstance(request, Asking):
            return
        if isinstance(reply, Failed):
            self._failed(request, str(reply.error))
            return
        subscriptions, request.subscriptions = request.subscriptions, []
        resumed = isinstance(request.command, Resume)
        if request.begun is not None:
            self._known.reached(request.begun)
        elif resumed:
            self._known.history = False  # a server that is too old for the question
        for each in subscriptions:
            for message in each.held:
                each.deliver(message)
            each.held.clear()
            each.stage = Stage.LIVE
            each.caught_up = True
            each.request = None
            if request.begun is not None:
                each.seen = self._known.newest if request.live_only else each.seen or 0
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

    def _failed(self, request: Asking, text: str) -> None:
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
            self._known.off()
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
            self._send(self._ask(remaining, LIVE_ONLY))

    def _refuse(self, subscription: Subscription, error: RemoteError) -> None:
        self._topics.remove(subscription)
        settled = subscription.settled.is_set()
        subscription.end(Revoked(subscription.tags) if settled else error)

    def revoked(self, tags: TagSet) -> None:
        """The server ended a subscription."""
        topic = self._topics.get(tags)
        if topic is not None:
            self._drop(topic, Revoked(tags), Revoked(tags))


def _asks_live(subscription: Subscription) -> bool:
    return isinstance(subscription.request, Asking) and subscription.request.live_only


def _was_live(subscription: Subscription) -> bool:
    """Whether it had all that it asked for at first, on a server with a history or without."""
    return subscription.settled.is_set() and (
        subscription.seen is not None or subscription.caught_up
    )
