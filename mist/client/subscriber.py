"""Subscribing: subscribe, unsubscribe, and resume (recovery) after a reconnect.

It outlives connections. Local subscriptions share a server subscription where they can;
requests to the server go out through `send`.

Where the server has a history, a lost connection loses no message:

* A new subscription asks for the last message that matches (`-1`) and drops it. What it wants
  is the reply: the position in the history at which its live messages begin.
* Each subscription remembers the highest id it was given and takes no message twice, so a
  replay may overlap. Live subscriptions share a position too: the server sends in one order,
  so an id that arrived for one says that the others miss nothing below it.
* On a new connection all subscriptions with a position are resumed as one, from the lowest of
  their positions. A replay that was cut short is behind the others, which drop what they have
  seen.
"""

from collections.abc import Callable, Iterable

from mist.client.dialect import ReplayStarted, Request
from mist.client.errors import (
    HistoryOff,
    Revoked,
    Temporary,
    remote_error,
)
from mist.client.position import ServerHistory
from mist.client.postponed import Postponed, passes_by_itself
from mist.client.subscribe_request import LIVE_ONLY, SubscribeRequest, chunked
from mist.client.subscription import Stage, Subscription
from mist.client.subscription_table import SubscriptionTable, TableEntry
from mist.commands import Resume, Since, Subscribe, Unsubscribe
from mist.errors import ClientClosed, ClientError, RemoteError
from mist.message import TagSet
from mist.replies import Failed, Reply

__all__ = ["Subscriber"]


class Subscriber:
    """Keeps the server's subscriptions equal to the local ones.

    Args:
        table: the local subscriptions.
        history: what is known of the server's history.
        send: queues a request for the current connection.
        postponed: takes what the server refused for the moment.
        reset: gives that connection up; a new one is made after the backoff.
        counted: whether the server counts subscriptions that are made twice.
    """

    def __init__(
        self,
        table: SubscriptionTable,
        history: ServerHistory,
        send: Callable[[Request], None],
        postponed: Postponed,
        reset: Callable[[ClientError], None],
        *,
        counted: bool,
    ) -> None:
        self._table = table
        self._history = history
        self._send = send
        self._postponed = postponed
        self._reset = reset
        self._counted = counted
        self._online = False  # a connection takes requests

    # calls of the program

    def add(self, subscription: Subscription) -> None:
        """Add a subscription, and subscribe on the server where needed. See its `settled`."""
        entry = self._table.add(subscription)
        if not self._online:
            return
        if subscription.since is None:
            for other in entry.subscriptions[:-1]:
                if other.stage is Stage.LIVE:
                    subscription.stage = Stage.LIVE
                    subscription.caught_up = True
                    subscription.seen = self._history.newest if self._history.available else None
                    subscription.epoch = self._history.epoch
                    if subscription.seen is not None:
                        subscription.note_place(subscription.seen)
                    subscription.settled.set()
                    return
                request = other.request
                if (
                    isinstance(request, SubscribeRequest)
                    and request.live_only
                    and request.log_end is None
                ):
                    subscription.request = request
                    request.subscriptions.append(subscription)
                    return
        self._send(self._request([subscription], subscription.since or LIVE_ONLY))

    def remove(self, subscription: Subscription) -> None:
        """End a subscription, and the server's with the last one of its tag set."""
        # Without an await, so that cancellation can't leave half of it undone. Nobody waits
        # for the reply.
        subscription.end()
        removed = self._table.remove(subscription)
        if removed is not None:
            self._unsubscribe(removed)

    def unsubscribe(self, tags: TagSet) -> None:
        """End all subscriptions of exactly these tags."""
        entry = self._table.get(tags)
        if entry is not None:
            self._end_all(entry, None, ClientClosed("unsubscribed"))
            self._unsubscribe(entry)

    def _unsubscribe(self, entry: TableEntry) -> None:
        if self._online:
            for _ in range(entry.server_count):
                self._send(Request(Unsubscribe(entry.tags)))
        entry.server_count = 0

    def _end_all(
        self, entry: TableEntry, error: ClientError | None, unsettled: ClientError
    ) -> None:
        """End an entry's subscriptions with `error`; those not settled yet with `unsettled`."""
        for subscription in list(entry.subscriptions):
            self._table.remove(subscription)
            subscription.end(error if subscription.settled.is_set() else unsettled)

    # the connection

    def resubscribe(self) -> list[Request]:
        """The requests for a new connection, resumed subscriptions first."""
        self._online = True
        subscriptions = self._table.subscriptions()
        resumed: list[Subscription] = []
        if self._history.available is not False and self._history.epoch is not None:
            resumed = [each for each in subscriptions if each.seen is not None]
        by_epoch: dict[str | None, list[Subscription]] = {}
        for each in resumed:
            by_epoch.setdefault(each.epoch or self._history.epoch, []).append(each)
        groups = by_epoch.values()
        requests = [self._resume(chunk) for group in groups for chunk in chunked(group)]
        fresh: dict[TagSet, list[Subscription]] = {}
        for each in subscriptions:
            if each.request is not None:
                continue
            since, available = each.since, self._history.available is not False
            if since is not None and available and not _was_live(each):
                requests.append(self._request([each], since))
            elif since is None or each.settled.is_set():
                fresh.setdefault(each.tags, []).append(each)
            else:
                self._refuse(each, HistoryOff())
        return [*requests, *(self._request(each, LIVE_ONLY) for each in fresh.values())]

    def _resume(self, subscriptions: list[Subscription]) -> Request:
        lowest = min(each.seen or 0 for each in subscriptions)
        epoch = subscriptions[0].epoch or self._history.epoch
        return self._request(subscriptions, Since(after=lowest, epoch=epoch))

    def _request(self, subscriptions: list[Subscription], since: Since) -> Request:
        tag_sets = list(dict.fromkeys(each.tags for each in subscriptions))
        request = SubscribeRequest(Resume(tag_sets, since), subscriptions=list(subscriptions))
        if self._history.available is False and since is LIVE_ONLY:
            request.command = Subscribe(tag_sets[0])
        for tags in tag_sets:
            entry = self._table[tags]
            entry.server_count = entry.server_count + 1 if self._counted else 1
        for each in subscriptions:
            each.request = request
        return request

    def disconnected(self) -> None:
        """The connection is gone."""
        self._online = False
        for entry in self._table:
            entry.server_count = 0
        for each in self._table.subscriptions():
            if each.stage is Stage.LIVE and each.seen is not None:
                each.seen = max(each.seen, self._history.newest)
            each.move_back()
            each.stage = Stage.INACTIVE
            each.pending.clear()
            each.request = None
        # The next server's log may have been restored to an earlier state.
        self._history.newest = 0

    def fail(self, error: ClientError) -> None:
        """There will be no further connection."""
        for entry in self._table:
            self._end_all(entry, None if isinstance(error, ClientClosed) else error, error)

    # what the server says

    def replay_started(self, event: ReplayStarted) -> None:
        """The replay that a request asked for starts here."""
        request = event.request
        if not isinstance(request, SubscribeRequest) or not isinstance(request.command, Resume):
            return
        since = request.command.since
        assert since is not None
        alone = all(each.stage is Stage.INACTIVE for each in self._table.subscriptions())
        self._history.set_epoch(event.epoch)
        request.log_end = event.id
        for each in request.subscriptions:
            complete = since is not LIVE_ONLY
            if since is LIVE_ONLY:
                each.move_to(event.id, event.epoch)
                each.keep_place()  # no gap belongs to it
            elif each.seen is not None:
                same = since.epoch == event.epoch
                # Of another log the server has judged the lowest position, and no other: what
                # came behind it may be lost there, and comes again where it is not.
                complete = same or each.seen <= (since.after or 0)
                each.move_to(min(each.seen, event.id) if same else 0, event.epoch)
            elif since.after is not None:
                valid = since.epoch in (None, event.epoch) and since.after <= event.id
                each.move_to(since.after if valid else 0, event.epoch)
            else:
                # The last N are others than those of a replay of which nothing came before a cut.
                end = event.epoch, event.id
                complete = each.log_end in (None, end)
                each.epoch, each.log_end = event.epoch, end
            if each.settled.is_set():
                each.mark_reconnected(complete=complete)
            if not self._counted:
                each.stage = Stage.REPLAYING
                each.settled.set()
            elif since is not LIVE_ONLY:
                each.stage = Stage.REPLAYING if alone and each.settled.is_set() else Stage.PENDING
            # Otherwise it stays inactive until the fence: messages for other subscriptions may
            # match it too, with some between them that the server does not send for it yet.

    def replay_unplaced(self, request: Request, text: str) -> None:
        """Where the replay that a request asked for starts is not known."""
        if isinstance(request, SubscribeRequest):
            request.unplaced = text

    def history_gap(self, request: Request | None) -> None:
        """The history no longer has some of the messages that would come next."""
        if isinstance(request, SubscribeRequest) and not request.live_only:
            if request.unplaced:
                return  # it fails; where it is made again, that one tells
            for each in request.subscriptions:
                each.mark_history_gap(reconnected=each.reconnects > 0)
                each.start_replay()
            return
        # A live-only request misses nothing, so the gap belongs to another one, and the server
        # doesn't say which: to those that are being replayed, if any, or else to any of them.
        active = [each for each in self._table.subscriptions() if each.stage is not Stage.INACTIVE]
        replaying = [
            each for each in active if each.stage is not Stage.LIVE and not _asks_live(each)
        ]
        for each in replaying or active:
            each.mark_history_gap(reconnected=False)

    def settle(self, request: Request, reply: Reply) -> None:
        """A request was answered, or a replay is complete."""
        if not isinstance(request, SubscribeRequest):
            command = request.command
            if isinstance(command, Unsubscribe) and passes_by_itself(reply):
                self._postponed.add(command, lambda: self._table.get(command.tags) is None)
            return
        if isinstance(reply, Failed):
            self._failed(request, str(reply.error))
            return
        if request.unplaced and not request.live_only:
            # Of what was replayed nothing was delivered: what was live could not be told from it.
            for tags in dict.fromkeys(each.tags for each in request.subscriptions):
                self._send(Request(Unsubscribe(tags)))
            self._failed(request, request.unplaced)
            return
        subscriptions, request.subscriptions = request.subscriptions, []
        if request.log_end is not None:
            self._history.advance(request.log_end)
        elif isinstance(request.command, Resume) and not request.unplaced:
            self._history.available = False  # a server that does not know the command
        for each in subscriptions:
            for message in each.pending:
                each.deliver(message)
            each.pending.clear()
            each.keep_place()
            each.stage = Stage.LIVE
            each.caught_up = True
            each.request = None
            if request.log_end is not None:
                each.seen = self._history.newest if request.live_only else each.seen or 0
                each.note_place(each.seen)
            else:
                each.seen = None
                if each.settled.is_set():
                    each.mark_reconnected()
            each.settled.set()
        if self._counted:
            self._remove_duplicates({each.tags for each in subscriptions})

    def _remove_duplicates(self, tag_sets: Iterable[TagSet]) -> None:
        for tags in tag_sets:
            entry = self._table.get(tags)
            if entry is not None and entry.server_count > 1:
                entry.server_count -= 1
                self._send(Request(Unsubscribe(tags)))

    def _failed(self, request: SubscribeRequest, text: str) -> None:
        error = remote_error(text)
        subscriptions, request.subscriptions = request.subscriptions, []
        by_tags: dict[TagSet, list[Subscription]] = {}
        for each in subscriptions:
            each.request = None
            each.move_back()
            each.stage = Stage.INACTIVE
            by_tags.setdefault(each.tags, []).append(each)
        if self._counted:
            for tags in by_tags:
                self._table[tags].server_count -= 1
        if isinstance(error, Temporary) and any(each.settled.is_set() for each in subscriptions):
            self._reset(error)
            return
        if isinstance(error, HistoryOff) and isinstance(request.command, Resume):
            self._history.disable()
            for group in by_tags.values():
                self._subscribe_without_history(group)
            return
        asked = request.command.alternatives if isinstance(request.command, Resume) else ()
        if len(asked) > 1:  # all or none were accepted: ask one by one which it is
            for group in by_tags.values():
                self._send(self._resume(group))
            return
        for each in subscriptions:
            self._refuse(each, error)

    def _subscribe_without_history(self, group: list[Subscription]) -> None:
        remaining = []
        for each in group:
            if each.since is None or each.settled.is_set():
                remaining.append(each)
            else:
                self._refuse(each, HistoryOff())
        if remaining:
            self._send(self._request(remaining, LIVE_ONLY))

    def _refuse(self, subscription: Subscription, error: RemoteError) -> None:
        self._table.remove(subscription)
        settled = subscription.settled.is_set()
        subscription.end(Revoked(subscription.tags) if settled else error)

    def revoked(self, tags: TagSet) -> None:
        """The server ended a subscription."""
        entry = self._table.get(tags)
        if entry is not None:
            self._end_all(entry, Revoked(tags), Revoked(tags))


def _asks_live(subscription: Subscription) -> bool:
    return isinstance(subscription.request, SubscribeRequest) and subscription.request.live_only


def _was_live(subscription: Subscription) -> bool:
    """Whether it once had all that it first asked for, from a history or without one."""
    return subscription.settled.is_set() and (
        subscription.seen is not None or subscription.caught_up
    )
