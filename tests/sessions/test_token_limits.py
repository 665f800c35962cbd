"""Limits of a token: what all its sessions do together, and what that costs the others."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from mist.attributes import Attributes
from mist.auth import Enroll
from mist.auth.issued import IssuedRecord
from mist.auth.limits import check_limits, limit_of
from mist.auth.opening import open_registry
from mist.commands import Command, SetAttributes
from mist.errors import InvalidAudience, TooManyRequests
from mist.protocols.json import JsonProtocol
from mist.replies import Failed, Reply
from mist.sessions import token_limits
from mist.sessions.authenticating import Credential
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession

TAGS = frozenset({"a", ">a"})
PUBLISH = b'{"command":"publish","tags":["a"],"data":"x"}\n'


@pytest.fixture
async def hub(nursery: trio.Nursery) -> AsyncIterator[Hub]:
    async with await open_registry("memory://") as registry:
        hub = Hub(registry)
        await nursery.start(hub.turns.run)
        yield hub
        nursery.cancel_scope.cancel()


def session_of(hub: Hub, token: str | None) -> CommandSession:
    """A session of a token; one that has yet to authenticate, where there is none."""
    session = CommandSession(
        hub,
        JsonProtocol(hub.limits, unauthenticated=True),
        transport="ws",
        credential=Credential.TOKEN,
        auth_timeout=5.0,
    )
    if token is not None:
        record = hub.registry.lookup(token)
        assert record is not None
        session.adopt(record)
    return session


async def limited(hub: Hub, token: str, **limits: str) -> CommandSession:
    await hub.registry.execute([Enroll(token, TAGS, Attributes(others=limits))])
    return session_of(hub, token)


def refused(session: CommandSession) -> int:
    """How many refusals its peer reads next."""
    wire = session.outbox.peek() if session.outbox.size else b""
    session.outbox.sent(session.outbox.size)
    return bytes(wire).count(b"Too many requests")


async def test_a_session_without_limits_has_none(hub: Hub) -> None:
    session = await limited(hub, "t", plan="pro", rate_card="a")
    assert session.allowance is None
    assert hub.token_limits._recent == {}


async def test_the_rate_is_that_of_all_sessions_together(
    hub: Hub, autojump_clock: MockClock
) -> None:
    one = await limited(hub, "t", rate="5")
    two = session_of(hub, "t")
    for session in (one, two) * 10:
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published == 10  # two seconds' worth
    assert refused(one) + refused(two) == 10
    assert hub.token_limits.refusals == {"rate": 10}
    await trio.sleep(1.0)
    for _ in range(20):
        await two.receive(PUBLISH)
    assert hub.broker.statistics().published == 15
    assert one.ended is two.ended is None


async def test_what_comes_in_one_read_counts_at_once_and_is_owed(
    hub: Hub, autojump_clock: MockClock
) -> None:
    session = await limited(hub, "t", rate="5")
    await session.receive(PUBLISH * 60)
    before = hub.broker.statistics().published
    assert 10 <= before <= 60
    await session.receive(PUBLISH)
    assert hub.broker.statistics().published == before
    await trio.sleep(before / 5 - 2.0 + 0.3)
    await session.receive(PUBLISH)
    assert hub.broker.statistics().published == before + 1


async def test_who_comes_when_it_was_told_to_is_not_refused(
    hub: Hub, autojump_clock: MockClock
) -> None:
    session = await limited(hub, "t", bytes="1000")
    sent = PUBLISH.replace(b"x", b"x" * 3_000)
    told: list[float] = []

    def reply(command: Command, reply: Reply) -> bytes:
        assert isinstance(reply, Failed)
        assert isinstance(reply.error, TooManyRequests)
        told.append(reply.error.retry_after)
        return b""

    session.protocol.reply = reply  # type: ignore[method-assign]
    for published in range(1, 4):
        await session.receive(sent)
        assert hub.broker.statistics().published == published
        await session.receive(sent)  # at once, which is too soon
        assert len(told) == published
        await trio.sleep(told[-1] + 0.01)


async def test_a_request_that_is_refused_owes_nothing(hub: Hub, autojump_clock: MockClock) -> None:
    await hub.registry.execute([Enroll("t", TAGS, Attributes(others={"bytes": "1000"}))])
    record = hub.registry.lookup("t")
    assert record is not None
    for _ in range(3):
        assert hub.token_limits.request(record, 3_000) == 0.0
        waits = [hub.token_limits.request(record, 3_000) for _ in range(5)]
        assert max(waits) == min(waits) <= 3.0
        await trio.sleep(waits[0] + 0.01)


async def test_who_reconnects_has_no_full_bucket(hub: Hub, autojump_clock: MockClock) -> None:
    session = await limited(hub, "t", rate="5")
    for _ in range(10):
        await session.receive(PUBLISH)
    for _ in range(20):
        await session.aclose()
        session = session_of(hub, "t")
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published == 10


async def test_what_stands_behind_the_credential_in_one_read_is_limited(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await limited(hub, "t", rate="1")
    for _ in range(5):
        session = session_of(hub, None)
        await session.receive(b'{"command":"auth","data":"t"}\n' + b'{"command":"list"}\n' * 10)
    assert hub.token_limits.refusals["rate"] == 48


async def test_a_change_of_the_limits_is_in_effect_at_once(
    hub: Hub, autojump_clock: MockClock
) -> None:
    session = await limited(hub, "t", rate="1")
    for _ in range(5):
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published == 2
    await hub.registry.execute([SetAttributes("t", Attributes(others={"rate": "1000"}))])
    await trio.sleep(0.01)
    await session.receive(PUBLISH * 3)
    await hub.registry.execute([SetAttributes("t", Attributes(), frozenset({"rate"}))])
    assert session.allowance is None
    for _ in range(50):
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published == 55
    await hub.registry.execute([SetAttributes("t", Attributes(others={"rate": "0.5"}))])
    for _ in range(5):
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published < 60


async def test_who_goes_on_regardless_is_ended(
    hub: Hub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_limits, "_REFUSED", 20)
    session = await limited(hub, "t", rate="1")
    for _ in range(40):
        if session.ended is None:
            await session.receive(PUBLISH)
    assert session.ended is not None
    assert (session.ended.code, session.ended.reason) == (4429, "too many requests")
    assert hub.token_limits.refusals["rate"] == 21


@pytest.mark.parametrize("line", [b'{"command":"ping"}\n', b"{}\n", b" \n"])
async def test_bytes_are_limited_whatever_they_are(
    hub: Hub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(token_limits, "_REFUSED", 20)
    session = await limited(hub, "t", bytes="10")
    for _ in range(60):
        if session.ended is None:
            await session.receive(line * 10 + PUBLISH)
    assert session.ended is not None
    assert session.ended.code == 4429
    assert hub.broker.statistics().published == 1
    assert hub.token_limits.refusals["rate"] == 0


async def test_the_average_of_bytes_holds(hub: Hub, autojump_clock: MockClock) -> None:
    session = await limited(hub, "t", bytes="100")
    for _ in range(100):
        await session.receive(PUBLISH)
        await trio.sleep(0.1)
    published = hub.broker.statistics().published
    assert published * len(PUBLISH) <= 1_000 + 200 + len(PUBLISH)
    assert published > 0


async def test_another_token_in_band_is_limited_by_its_own(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await limited(hub, "u", rate="1")
    session = await limited(hub, "t", rate="100")
    for _ in range(3):
        await session.receive(b'{"command":"auth","data":"u"}\n')
        await session.receive(PUBLISH)
        await session.receive(b'{"command":"auth","data":"t"}\n')
    assert hub.broker.statistics().published == 2


async def test_connections_are_counted_by_those_that_live(
    hub: Hub, autojump_clock: MockClock
) -> None:
    one = await limited(hub, "t", connections="2")
    record = one.record
    assert record is not None
    limits, count = hub.token_limits, hub.sessions.count
    assert not limits.is_full(record, count)
    two = session_of(hub, "t")
    assert limits.is_full(record, count)
    assert not limits.is_full(record, count, two)  # one that has the token
    await two.receive(b'{"command":"auth","data":"t"}\n')
    assert two.ended is None
    three = session_of(hub, None)
    await three.receive(b'{"command":"auth","data":"t"}\n')
    assert three.ended is not None
    assert three.ended.code == 4429
    await two.aclose()
    assert not limits.is_full(record, count)
    assert limits.refusals == {"connections": 2}


async def test_all_jwts_of_a_user_share_their_limits(hub: Hub, autojump_clock: MockClock) -> None:
    sessions = []
    for token in "abc":
        attributes = Attributes(user="7", others={"rate": "2", "connections": "3"})
        record = IssuedRecord("owner", token.encode(), TAGS, 0.0, attributes)
        assert not hub.token_limits.is_full(record, hub.sessions.count)
        session = session_of(hub, None)
        session.adopt(record)
        sessions.append(session)
    assert hub.token_limits.is_full(record, hub.sessions.count)
    for session in sessions * 4:
        await session.receive(PUBLISH)
    assert hub.broker.statistics().published == 4


async def test_what_is_kept_is_bounded(
    hub: Hub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_limits, "_KEPT", 5)
    session = await limited(hub, "t", rate="1")
    for number in range(20):
        await (await limited(hub, f"u{number}", rate="1")).aclose()
    assert len(hub.token_limits._recent) == 5
    assert len(hub.token_limits._all) == 6
    for _ in range(4):
        await session.receive(PUBLISH)
    other = session_of(hub, "t")
    await other.receive(PUBLISH)
    assert hub.broker.statistics().published == 2


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "nan", "inf", "a", "0.0", "1;2", "٣", "1_0"])
@pytest.mark.parametrize("name", ["rate", "bytes", "connections"])
def test_what_is_no_limit_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidAudience):
        check_limits(Attributes(others={name: text}))
    assert limit_of(Attributes(others={name: text}), name) == float("inf")


def test_what_is_a_limit() -> None:
    assert limit_of(check_limits(Attributes(others={"rate": "0.5"})), "rate") == 0.5
    assert limit_of(check_limits(Attributes(others={"bytes": "1000000"})), "bytes") == 1e6
    with pytest.raises(InvalidAudience, match="whole"):
        check_limits(Attributes(others={"connections": "1.5"}))
