"""Graceful shutdown of a server process: nothing that a publisher knows to be published is lost.

A publisher's fence is a reply: whatever it sent before is carried out when the reply comes. All
of that reaches those who listen, also where a SIGTERM comes at that moment and nothing is stored.

    pytest tests/system/test_drain.py --slow -s      a hundred times; prints its figures
"""

import contextlib
import json
import socket
import threading
from pathlib import Path
from random import Random

import pytest

from tests.processes import dial, joined, serving
from tests.system.test_conservation import KINDS, LISTEN, TOKEN, expect

GROUP = 20  # messages before each fence


def publish_lines(url: str, name: str, fenced: list[str]) -> None:
    """Publish and fence until the connection ends."""
    number = 0
    with contextlib.suppress(OSError), dial(url) as sock:
        while True:
            group = [f"<{name}.{number + n}>" for n in range(GROUP)]
            number += GROUP
            sock.sendall("".join(f"publish a,.s {each}\n" for each in group).encode() + b"ping\n")
            if sock.recv(5, socket.MSG_WAITALL) != b"pong\n":
                return
            fenced += group


def publish_requests(url: str, name: str, fenced: list[str]) -> None:
    """The same over HTTP, where each answer is a fence."""
    number = 0
    with contextlib.suppress(OSError), dial(url) as sock, sock.makefile("rb") as answers:
        while True:
            group = [f"<{name}.{number + n}>" for n in range(GROUP)]
            number += GROUP
            body = json.dumps([{"tags": ["a", ".s"], "data": each} for each in group]).encode()
            sock.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            if b" 200 " not in answers.readline():
                return
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            answers.read(length)
            fenced += group


def listen(sock: socket.socket, found: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := sock.recv(1 << 20):
            found.append(data)
    sock.close()


def stop_in_full_flight(folder: Path, random: Random) -> tuple[int, int]:
    """Stop a server while it is published to; messages fenced, and those that somebody missed."""
    options = "--history", "none", "--drain-seconds", "5"
    with serving(folder, *options, listen=LISTEN) as server, contextlib.ExitStack() as stack:
        fenced: list[list[str]] = []
        heard: list[list[bytes]] = []
        with dial(server.urls[0]) as admin:
            admin.sendall(b"register a %b\nping\n" % TOKEN.encode())
            expect(admin, b"pong\n")
        for place, subscribe in [*KINDS.values()] * 2:
            sock = stack.enter_context(dial(server.urls[place]))
            subscribe(sock, "")
            heard.append([])
            stack.enter_context(joined(threading.Thread(target=listen, args=(sock, heard[-1]))))
        for n, (place, target) in enumerate(
            [(0, publish_lines), (0, publish_lines), (2, publish_requests)]
        ):
            fenced.append([])
            arguments = server.urls[place], f"p{n}", fenced[-1]
            stack.enter_context(joined(threading.Thread(target=target, args=arguments)))
        goal = random.randrange(1, 2_000)
        while sum(map(len, fenced)) < goal:
            pass
        assert server.stop() == 0
        stack.close()
    missed = 0
    for pieces in heard:
        text = b"".join(pieces).decode("latin-1")
        missed += sum(each not in text for group in fenced for each in group[-200:])
    return sum(map(len, fenced)), missed


def stop_often(folder: Path, times: int) -> None:
    random = Random(times)
    results = [stop_in_full_flight(folder / str(n), random) for n in range(times)]
    print(
        f"\n{times} stops: {sum(fenced for fenced, _ in results):,} messages fenced; at "
        f"{sum(missed > 0 for _, missed in results)} stops some were missed, "
        f"{max(missed for _, missed in results)} at most"
    )
    assert [missed for _, missed in results] == [0] * times


def test_what_was_fenced_before_a_server_stopped_is_delivered(tmp_path: Path) -> None:
    stop_often(tmp_path, 8)


@pytest.mark.slow
def test_what_was_fenced_is_delivered_at_each_of_a_hundred_stops(tmp_path: Path) -> None:
    stop_often(tmp_path, 100)
