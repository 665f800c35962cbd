"""Messages to very many subscriptions: one to all of them, or each to some."""

import socket
from collections.abc import Callable
from typing import Final

from mist.bench.dialect import Line
from mist.bench.fairness.arena import Arena, Attack
from mist.bench.fairness.peers import Peer
from mist.bench.process import check_file_limit

__all__ = ["forms_nats", "rooms", "wide", "wide_nats"]

_CONNECT: Final = 10.0  # seconds
_SUBSCRIBED: Final = b'CONNECT {"verbose":false}\r\n'
_PING, _PONG = b"PING\r\n", b"PONG\r\n"


def wide(arena: Arena, *, subscribers: int) -> Attack:
    """A message to so many connections.

    Raises:
        BenchError: so many can't be open.
    """
    check_file_limit(subscribers)
    line = Line()
    message = line.publish(["wide"], b"x")
    for _ in range(subscribers):
        sock = arena.line.subscribed(line.subscribe(["wide"]))
        arena.crowd.add(sock, message, b"error ")
    publisher = arena.crowd.add(arena.line.connect(), Line.fenced, b"error ")

    def play() -> int:
        for peer in arena.crowd.peers:
            peer.due += peer is not publisher
        publisher.send(message + Line.fence)
        arena.crowd.wait()
        return 0

    return Attack("wide", f"a message to {subscribers:,} connections", play)


def rooms(arena: Arena, *, subscribers: int, tags: int) -> Attack:
    """Messages in one chunk, each of another tag, which two thirds of some connections ask for."""
    check_file_limit(subscribers)
    line = Line()
    names = [f"room:{number}" for number in range(tags)]
    due: list[tuple[Peer, int]] = []
    for place in range(subscribers):
        wanted = [name for number, name in enumerate(names) if (place + number) % 3]
        sock = arena.line.subscribed(*[line.subscribe([name]) for name in wanted])
        due.append((arena.crowd.add(sock, b" x\n", b"error "), len(wanted)))
    publisher = arena.crowd.add(arena.line.connect(), Line.fenced, b"error ")
    chunk = b"".join([line.publish([name], b"x") for name in names])

    def play() -> int:
        for peer, number in due:
            peer.due += number
        publisher.send(chunk + Line.fence)
        arena.crowd.wait()
        return 0

    return Attack("wide, rooms", f"{tags:,} messages to other {subscribers * 2 // 3:,} each", play)


def forms_nats(arena: Arena, *, subscriptions: int, messages: int) -> Attack:
    """Messages in one chunk to subscriptions of one NATS client to one subject."""
    about = f"{messages:,} messages to {subscriptions:,} subscriptions of a NATS client"
    return Attack("wide, nats forms", about, _to_one_client(arena, subscriptions, messages))


def wide_nats(arena: Arena, *, subscriptions: int) -> Attack:
    """A message to so many subscriptions of one NATS client to one subject."""
    about = f"a message to {subscriptions:,} subscriptions of a NATS client to one subject"
    return Attack("wide, nats", about, _to_one_client(arena, subscriptions, 1))


def _to_one_client(arena: Arena, subscriptions: int, messages: int) -> Callable[[], int]:
    subscriber, publisher = _nats_client(arena), _nats_client(arena)
    subscriber.send(b"".join([b"SUB wide %d\r\n" % sid for sid in range(subscriptions)]), marks=0)
    subscriber.send(_PING)
    arena.crowd.wait()

    def play() -> int:
        publisher.send(b"PUB wide 1\r\nx\r\n" * messages + _PING)
        arena.crowd.wait()
        subscriber.send(_PING)
        arena.crowd.wait()
        return 0

    return play


def _nats_client(arena: Arena) -> Peer:
    address = arena.server.host, arena.server.nats_port
    peer = arena.crowd.add(socket.create_connection(address, _CONNECT), _PONG, b"-ERR ")
    peer.send(_SUBSCRIBED + _PING)
    arena.crowd.wait()
    return peer
