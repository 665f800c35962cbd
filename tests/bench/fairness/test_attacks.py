"""Each attack gets through to the server, small; the server says what it refused."""

import attrs
import pytest

from mist.bench.connections import ask
from mist.bench.fairness.arena import Arena, Attack, open_arena, play
from mist.bench.fairness.matching import match, match_batch, million
from mist.bench.fairness.peers import TookTooLong
from mist.bench.fairness.posting import long_line, request
from mist.bench.fairness.replays import replay, store
from mist.bench.fairness.subscribing import closing, subscribing
from mist.bench.fairness.wide import forms_nats, rooms, wide, wide_nats
from mist.bench.history.disk import scratch
from mist.bench.history.stored import url_of

BRIEF = 0.01  # seconds of a phase


def published(arena: Arena) -> int:
    """Messages that the server has delivered, the probe's aside, at least."""
    return sum(peer.marks for peer in arena.crowd.peers)


def test_messages_reach_all_that_are_subscribed() -> None:
    with open_arena(nats=True) as arena:
        attack = wide(arena, subscribers=5)
        found = play(arena, attack, BRIEF, 2)
        phases = [phase for _, phase in found.rounds]
        played = sum(phase.played for phase in phases)
        # To each subscriber a message, and to the publisher a proof.
        assert published(arena) == 6 * played
        assert (len(phases), found.finished) == (2, True)
        assert all(phase.held > 0 for phase in phases)
        assert found.attack == attack.name
        arena.crowd.leave()
        assert wide_nats(arena, subscriptions=20).play() == 0
        arena.crowd.leave()
        assert forms_nats(arena, subscriptions=5, messages=10).play() == 0
        arena.crowd.leave()
        attack = rooms(arena, subscribers=3, tags=6)
        before = published(arena)
        assert attack.play() == 0
        assert published(arena) == before + 3 * 4 + 1


def test_browsers_subscribe_publish_and_leave() -> None:
    with open_arena() as arena, arena.line.connect() as control:
        attack = match(arena, connections=1, messages=3)
        assert attack.play() == 0
        assert ask(control, b"listall\nping\n", b"pong\n").count(b"g") > 10
        assert match_batch_refusals(arena) == 0
        arena.crowd.leave()
    with open_arena() as arena, arena.line.connect() as control:
        leave = closing(arena, connections=2)
        assert leave.again is not None
        leave.again()
        leave.play()
        assert b"g" not in ask(control, b"listall\nping\n", b"pong\n").removesuffix(b"pong\n")


def match_batch_refusals(arena: Arena) -> int:
    arena.crowd.leave()
    with arena.line.connect() as control:
        ask(control, b"unregister browsers\nping\n", b"pong\n")
    return match_batch(arena, connections=1, messages=2).play()


def test_subscriptions_are_made_anew_each_time() -> None:
    with open_arena() as arena:
        attack = subscribing(arena, connections=1)
        found = play(arena, attack, BRIEF, 1)
        ((_, phase),) = found.rounds
        assert (phase.played >= 1, phase.refused) == (True, 0)


def test_new_lists_meet_many_subscriptions() -> None:
    with open_arena() as arena:
        attack = million(arena, subscriptions=300, messages=5)
        attack.play()
        subscriber = arena.crowd.peers[0]
        subscriber.send(b"ping\n")
        arena.crowd.wait()
        assert subscriber.marks == 2


@pytest.mark.parametrize("right", [False, True])
def test_requests_are_refused_without_the_right(right: bool) -> None:
    with open_arena() as arena:
        attack = request(arena, messages=3, tags=64, right=right)
        assert attack.play() == (0 if right else 1)
        assert ("no right" in attack.name) is not right


def test_a_line_of_too_many_tags_is_refused() -> None:
    with open_arena() as arena:
        assert long_line(arena).play() == 1


def test_readers_replay_all_there_is() -> None:
    with scratch(None) as folder:
        path = folder / "history.db"
        store(path, 2_000)
        with open_arena(history=url_of(path)) as arena:
            attack = replay(arena, readers=2, messages=2_000)
            found = play(arena, attack, BRIEF, 1)
            assert found.finished
            assert [peer.marks for peer in arena.crowd.peers] == [1, 1]


def test_an_attack_that_takes_too_long_ends_the_rounds() -> None:
    def never() -> int:
        raise TookTooLong("never")

    with open_arena() as arena:
        found = play(arena, Attack("slow", "too slow", never), BRIEF, 3)
        assert (len(found.rounds), found.finished) == (1, False)
        found = play(arena, attrs.evolve(Attack("slow", "", never), again=lambda: None), BRIEF, 3)
        assert (len(found.rounds), found.finished) == (1, False)
