"""The attackers' connections: marks and refusals are counted however they arrive."""

import socket

import pytest

from mist.bench.errors import HungUp
from mist.bench.fairness import peers
from mist.bench.fairness.peers import Crowd, Peer, TookTooLong


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_marks_are_counted_once_whatever_the_pieces(size: int) -> None:
    here, there = socket.socketpair()
    with here, there:
        data = b"ok ok error no okok" * 7
        peer, buffer = Peer(here, b"ok", b"error "), bytearray(size)
        there.sendall(data)
        for _ in range(0, len(data), size):
            peer.read(buffer)
        assert (peer.marks, peer.refusals, peer.hung_up) == (28, 7, False)
        there.close()
        peer.read(buffer)
        assert peer.hung_up


def test_a_crowd_waits_for_what_is_due_on_all() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    with Crowd() as crowd:
        for here, there in pairs:
            peer = crowd.add(here, b"ok", b"no")
            peer.send(b"question")
            there.sendall(b"no ok")
        crowd.wait()
        assert crowd.refusals == 3
        crowd.leave()
        assert crowd.peers == []
    for _, there in pairs:
        assert there.recv(99) == b"question"
        assert there.recv(99) == b""
        there.close()


def test_an_answer_that_does_not_come_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TIMEOUT", 0.01)
    here, there = socket.socketpair()
    with there, Crowd() as crowd:
        crowd.add(here, b"ok", b"no").send(b"question")
        with pytest.raises(TookTooLong):
            crowd.wait()


def test_a_server_that_hangs_up_is_told() -> None:
    here, there = socket.socketpair()
    with Crowd() as crowd:
        crowd.add(here, b"ok", b"no").send(b"question")
        there.close()
        with pytest.raises(HungUp):
            crowd.wait()
