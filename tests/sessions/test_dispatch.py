"""Command dispatch: every command is handled, for those who have the right, and runs of changes."""

from collections.abc import Iterator
from enum import Enum
from typing import get_args

import attrs
import pytest
import trio
import trio.testing

from mist.attributes import Attributes
from mist.auth.opening import open_registry
from mist.auth.registry import Registry
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import (
    AddTags,
    Auth,
    Bye,
    Command,
    Echo,
    Escape,
    Fetch,
    Hangup,
    Ids,
    Invalid,
    Last,
    ListSubscriptions,
    ListTags,
    ListTokens,
    Pause,
    Ping,
    Publish,
    PublishOnce,
    Refused,
    Register,
    RegistryChange,
    RemoveTags,
    Resume,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    ShowAttributes,
    ShowTags,
    ShowToken,
    Since,
    Store,
    Subscribe,
    SubscribeNamed,
    TokenCommand,
    Unregister,
    Unsubscribe,
    UnsubscribeNamed,
    UnwatchPresence,
    WatchPresence,
    Who,
)
from mist.commands.base import BaseCommand
from mist.errors import (
    EmptyTag,
    HistoryOff,
    NotAllowed,
    NotSubscribed,
    PresenceOff,
    TokenNotFound,
    TooManyRequests,
    TooManySubscriptions,
    Unauthorized,
)
from mist.history.opening import open_history
from mist.message import TagSet
from mist.protocols import Protocol
from mist.protocols.line.forms import PLAIN
from mist.replies import (
    Connections,
    Done,
    Failed,
    Reply,
    SortedTags,
    Subscriptions,
    Tags,
    TokenAttributes,
    Tokens,
    TokenShown,
)
from mist.sessions.authenticating import Credential
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub, HubLimits
from mist.sessions.receiving import CommandSession
from mist.sessions.sequencer import Sequencer
from mist.terms import Terms
from mist.turns import Account, Turns
from mist.wire import Batch

A = frozenset("a")
TOKEN = "token"


class Right(Enum):
    NONE = 0
    AUTHENTICATED = 1
    ADMINISTERS = 2


@attrs.frozen
class Case:
    """A command, the right that it needs, and its reply without a history, or the reply's type."""

    command: Command
    right: Right
    reply: Reply | type[Reply] | None = None
    ends: bool = False


def failed(error: type[Exception]) -> Failed:
    return Failed(error())


CASES = [
    Case(Ping(), Right.NONE, Done()),
    Case(Auth("no secret is set"), Right.NONE, Done()),
    Case(Hangup("bad"), Right.NONE, ends=True),
    Case(Bye(), Right.NONE, ends=True),
    Case(Pause(), Right.NONE),
    Case(Publish(Batch.of(A, b"x")), Right.AUTHENTICATED),
    Case(PublishOnce(A, b"x"), Right.AUTHENTICATED, Done()),
    Case(Store(Batch.of(A, b"x")), Right.AUTHENTICATED, failed(HistoryOff)),
    Case(Subscribe(A), Right.AUTHENTICATED, Done()),
    Case(Unsubscribe(A), Right.AUTHENTICATED, Done()),
    Case(SubscribeNamed(A, b"1", PLAIN), Right.AUTHENTICATED, Done()),
    Case(UnsubscribeNamed(b"1"), Right.AUTHENTICATED, failed(NotSubscribed)),
    Case(Resume([A], None), Right.AUTHENTICATED, Done()),
    Case(Fetch(A, Since(last=1)), Right.AUTHENTICATED, failed(HistoryOff)),
    Case(Last(), Right.AUTHENTICATED, failed(HistoryOff)),
    Case(Ids(True), Right.AUTHENTICATED, failed(HistoryOff)),
    Case(Echo(False), Right.AUTHENTICATED, Done()),
    Case(Escape(True), Right.AUTHENTICATED, Done()),
    Case(ListSubscriptions(), Right.AUTHENTICATED, Subscriptions([])),
    Case(ListTags(), Right.AUTHENTICATED, SortedTags([])),
    Case(Who(), Right.AUTHENTICATED, Connections(1, 1)),
    Case(WatchPresence(A), Right.AUTHENTICATED, failed(PresenceOff)),
    Case(UnwatchPresence(A), Right.AUTHENTICATED, Done()),
    Case(Invalid(EmptyTag()), Right.AUTHENTICATED, failed(EmptyTag)),
    Case(Refused(Who(), TooManyRequests()), Right.AUTHENTICATED, failed(TooManyRequests)),
    Case(Register("new", A), Right.ADMINISTERS, Done()),
    Case(Unregister(TOKEN), Right.ADMINISTERS, Done()),
    Case(Revoke(TOKEN), Right.ADMINISTERS, Done()),
    Case(AddTags(TOKEN, frozenset("b")), Right.ADMINISTERS, Done()),
    Case(RemoveTags(TOKEN, frozenset("b")), Right.ADMINISTERS, Done()),
    Case(RevokeIssued("jti", "t1"), Right.ADMINISTERS, Done()),
    Case(SetAttributes(TOKEN, Attributes(user="u")), Right.ADMINISTERS, Done()),
    Case(SetTerms(TOKEN, Terms(name="door")), Right.ADMINISTERS, Done()),
    Case(ShowToken(TOKEN), Right.ADMINISTERS, TokenShown),
    Case(ListTokens(), Right.ADMINISTERS, Tokens),
    Case(ShowTags(TOKEN), Right.ADMINISTERS, Tags(A)),
    Case(ShowAttributes(TOKEN), Right.ADMINISTERS, TokenAttributes(Attributes())),
]


class Scripted(Protocol):
    """Receives the commands that it is given, and keeps the replies instead of writing them."""

    def __init__(self) -> None:
        self.form = PLAIN
        self.incoming: list[Command] = []
        self.replies: list[Reply] = []

    def receive(self, data: bytes) -> Iterator[Command]:
        while self.incoming:
            yield self.incoming.pop(0)

    def reply(self, command: Command, reply: Reply) -> bytes:
        match reply:  # lists, which are read once
            case Subscriptions(tag_lists):
                reply = Subscriptions(list(tag_lists))
            case SortedTags(tags):
                reply = SortedTags(list(tags))
        self.replies.append(reply)
        return b""


async def make_hub(secret: bytes | None = None) -> Hub:
    registry = await open_registry("memory://")
    await registry.execute([Register(TOKEN, A)])
    return Hub(registry, secret=secret, hub_limits=HubLimits(failed_auth_delay=0.0))


def make_session(hub: Hub, **options: object) -> tuple[CommandSession, Scripted]:
    protocol = Scripted()
    session = CommandSession(hub, protocol, transport="tcp", **options)  # type: ignore[arg-type]
    hub.sessions.attach(session)
    return session, protocol


async def handle(session: CommandSession, protocol: Scripted, *given: Command) -> list[Reply]:
    """What is replied to commands that come in one read."""
    protocol.incoming += given
    await session.receive(b"")
    replies, protocol.replies = protocol.replies, []
    return replies


def same(one: Reply, other: Reply | type[Reply]) -> bool:
    if isinstance(other, type):
        return type(one) is other
    if isinstance(one, Failed) and isinstance(other, Failed):
        return type(one.error) is type(other.error)
    return one == other


def test_the_cases_are_all_the_commands_and_so_is_the_union() -> None:
    def below(kind: type) -> set[type]:
        found = set(kind.__subclasses__())
        return found.union(*map(below, found))

    # Each is there twice where attrs has made it anew, with slots.
    defined = {each for each in below(BaseCommand) if "__slots__" in vars(each)} - {TokenCommand}
    assert {type(case.command) for case in CASES} == defined
    assert set(get_args(Command)) == defined


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.command).__name__)
async def test_a_service_that_is_authenticated_may_send_every_command(case: Case) -> None:
    session, protocol = make_session(await make_hub())
    replies = await handle(session, protocol, case.command)
    expected = [] if case.reply is None else [case.reply]
    assert len(replies) == len(expected)
    assert all(map(same, replies, expected))
    assert (session.ended is not None) == case.ends


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.command).__name__)
async def test_a_token_may_not_administer(case: Case) -> None:
    hub = await make_hub()
    session, protocol = make_session(hub, credential=Credential.TOKEN, auth_timeout=5.0)
    record = hub.registry.lookup(TOKEN)
    assert record is not None
    session.adopt(record)
    replies = await handle(session, protocol, case.command)
    refused = any(same(each, failed(NotAllowed)) for each in replies)
    # Nor publish: it has no right to. A `Publish` is told so in its protocol's own way.
    expected = case.right is Right.ADMINISTERS or isinstance(case.command, PublishOnce)
    assert refused == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.command).__name__)
async def test_an_unauthenticated_peer_is_refused_all_but_what_needs_no_right(case: Case) -> None:
    session, protocol = make_session(await make_hub(b"s3cret"), auth_timeout=5.0)
    command = Auth("s3cret") if isinstance(case.command, Auth) else case.command
    replies = await handle(session, protocol, command)
    if case.right is Right.NONE:
        assert not any(isinstance(each, Failed) for each in replies)
    else:
        assert [type(each.error) for each in replies if isinstance(each, Failed)] == [Unauthorized]
        assert session.ended is not None
        assert session.ended.code == 4401
    assert session.unauthenticated == (not isinstance(case.command, Auth))


class CountedRuns:
    """A token registry that notes how many changes it is given at once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.runs: list[int] = []

    async def execute(self, changes: list[RegistryChange]) -> object:
        self.runs.append(len(changes))
        return await self._registry.execute(changes)

    async def sync(self) -> None:
        await self._registry.sync()

    def tags(self, token: str) -> TagSet:
        return self._registry.tags(token)


async def test_a_run_of_changes_is_made_at_once_and_each_is_answered() -> None:
    hub = await make_hub()
    registry = CountedRuns(hub.registry)
    hub.registry = registry  # type: ignore[assignment]
    session, protocol = make_session(hub)
    replies = await handle(
        session,
        protocol,
        Register("one", A),
        AddTags("unknown", A),
        AddTags("one", frozenset("b")),
        Publish(Batch.of(A, b"behind them")),
        ShowTags("one"),
        Register("two", A),
    )
    assert registry.runs == [3, 1]
    assert all(
        map(same, replies, [Done(), failed(TokenNotFound), Done(), Tags(frozenset("ab")), Done()])
    )
    assert len(replies) == 5


async def test_many_commands_let_others_run_in_between(nursery: trio.Nursery) -> None:
    hub = await make_hub()
    await nursery.start(hub.turns.run)
    session, protocol = make_session(hub)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await handle(session, protocol, *[Ping() for _ in range(20_000)])
        nursery.cancel_scope.cancel()
    assert turns >= 3


async def test_a_session_may_have_so_many_named_subscriptions() -> None:
    hub = await make_hub()
    hub.hub_limits = HubLimits(named_subscriptions=2)
    session, protocol = make_session(hub)
    asked = [SubscribeNamed(A, name, PLAIN, "") for name in (b"1", b"2", b"2", b"3")]
    replies = await handle(session, protocol, *asked, Subscribe(A))
    assert all(map(same, replies, [Done(), Done(), Done(), failed(TooManySubscriptions), Done()]))


async def test_a_pause_gives_a_turn_and_waits_for_nothing_that_was_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = await make_hub()
    history = await open_history("memory://")
    hub.sequencer = await Sequencer.over(hub.broker, history)  # and nobody runs it
    session, protocol = make_session(hub)
    rests = 0

    async def rest(self: FlushScheduler, account: Account, *, late: bool = False) -> None:
        nonlocal rests
        rests += 1

    monkeypatch.setattr(FlushScheduler, "rest", rest)
    monkeypatch.setattr(Turns, "spent", lambda self, began: True)
    with trio.fail_after(5):
        await handle(session, protocol, Publish(Batch.of(A, b"x")), Pause(), Pause())
    assert rests == 3  # behind each of the three
    assert session.ended is None
    with trio.move_on_after(0.01) as waited:
        await handle(session, protocol, Ping())
    assert waited.cancelled_caught


async def test_only_who_has_published_waits_for_others_to_share_a_flush() -> None:
    hub = await make_hub()
    session, protocol = make_session(hub)
    protocol.incoming += [Subscribe(A), Ping()]
    assert not await session.receive(b"")
    # Its own outbox is the only one that has a message, but others may publish to it, too.
    protocol.incoming.append(Publish(Batch.of(A, b"x")))
    assert await session.receive(b"")


@pytest.mark.parametrize(
    "command", [Auth(TOKEN), ShowToken(TOKEN), ListTokens(), ShowTags(TOKEN), ShowAttributes(TOKEN)]
)
async def test_what_was_published_does_not_wait_for_what_a_command_waits_for(
    command: Command, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await make_hub()
    credential = Credential.TOKEN if isinstance(command, Auth) else Credential.SECRET
    session, protocol = make_session(hub, credential=credential)
    subscriber = Outbox(PLAIN, OutboxLimits(), hub.broker.ready)
    written: list[int] = []
    subscriber.flush = lambda: written.append(subscriber.queued)
    hub.broker.subscribe(subscriber, A)

    async def wait(*about: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(hub.credentials, "prepare", wait)
    monkeypatch.setattr(hub.registry, "sync", wait)
    nursery.start_soon(handle, session, protocol, Publish(Batch.of(A, b"x")), command)
    await trio.testing.wait_all_tasks_blocked()
    assert written == [1]


async def test_all_turns_of_a_session_are_late_until_it_is_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[bool] = []

    async def wait(self: Turns, account: Account, **how: bool) -> None:
        late.append(how.get("late", False))
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Turns, "over", property(lambda self: True))
    monkeypatch.setattr(Turns, "spent", lambda self, began: True)
    monkeypatch.setattr(Turns, "wait", wait)
    session, protocol = make_session(await make_hub())
    # A list of tags, and a batch of many tag lists, are worked on in turns, too.
    batch = Batch.of_runs([(b"a,%d" % n, b"publish a,%d x\n" % n, 1) for n in range(1_000)])
    given = Subscribe(A), Ping(), Publish(batch), ListTags()
    await handle(session, protocol, *given)
    assert len(late) >= 10
    assert all(late)
    late.clear()
    await handle(session, protocol, *given)
    assert len(late) >= 10
    assert not any(late)


async def test_others_have_their_turns_between_short_publishes_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests = 0

    async def rest(self: FlushScheduler, account: Account, *, late: bool = False) -> None:
        nonlocal rests
        rests += 1

    async def begin(*_: object, **__: object) -> float:
        return -1.0

    session, protocol = make_session(await make_hub())
    monkeypatch.setattr(FlushScheduler, "rest", rest)
    # The chunk has begun long ago, and each publish just now.
    monkeypatch.setattr(Turns, "begin", begin)
    monkeypatch.setattr(Turns, "spent", lambda self, began: began < 0)
    await handle(session, protocol, *[Publish(Batch.of(A, b"x")) for _ in range(10)])
    assert rests == 10


async def test_a_long_run_of_changes_is_made_some_at_a_time() -> None:
    hub = await make_hub()
    registry = CountedRuns(hub.registry)
    hub.registry = registry  # type: ignore[assignment]
    session, protocol = make_session(hub)
    replies = await handle(session, protocol, *[Register(f"t{n}", A) for n in range(1_200)])
    assert registry.runs == [500, 500, 200]
    assert len(replies) == 1_200
    assert all(same(each, Done()) for each in replies)
