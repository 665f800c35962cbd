"""A restart under load behind sockets that the service manager keeps open: nobody is refused.

Publishers make a connection for each message, over HTTP with an Idempotency-Key, or store over
TCP; what ends without an answer is tried again. A subscriber that reconnects gets all of it.
"""

import json
import signal
import socket
import threading
from pathlib import Path

import attrs

from mist.client import sync
from tests.processes import serving
from tests.service_manager import PROGRAM, bound_sockets, notify_socket, passing

RESTARTS = 3


@attrs.define
class Publisher:
    """Publishes numbers, one after another, each until it is acknowledged.

    Attributes:
        acknowledged: how many are.
        refused: connections that were.
        repeated: requests that ended without an answer.
    """

    port: int
    tag: str
    stop: threading.Event
    acknowledged: int = 0
    refused: int = 0
    repeated: int = 0

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=20) as sock:
                    self.publish(sock)
                self.acknowledged += 1
            except ConnectionRefusedError:
                self.refused += 1
            except OSError:
                self.repeated += 1

    def publish(self, sock: socket.socket) -> None:
        """Publish the next number. Raises OSError where it is not acknowledged."""
        sock.sendall(f"store {self.tag} {self.acknowledged}\n".encode())
        if not sock.makefile("rb").readline().startswith(b"stored "):
            raise OSError


class HttpPublisher(Publisher):
    def publish(self, sock: socket.socket) -> None:
        body = json.dumps({"tags": [self.tag], "data": str(self.acknowledged)})
        sock.sendall(
            f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nIdempotency-Key: n{self.acknowledged}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        if b" 200 " not in sock.makefile("rb").readline():
            raise OSError


def test_a_restart_refuses_no_connection_and_loses_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    with bound_sockets(2) as sockets, notify_socket(tmp_path) as manager:
        tcp, http = (each.getsockname()[1] for each in sockets)
        publishers = [Publisher(tcp, "lines", stop), HttpPublisher(http, "requests", stop)]
        threads = [threading.Thread(target=each.run) for each in publishers]
        options = ("--listen", f"tcp://127.0.0.1:{tcp}", "--listen", f"http://127.0.0.1:{http}")
        try:
            for restart in range(RESTARTS):
                with serving(
                    tmp_path / "data",
                    *options,
                    program=PROGRAM,
                    pass_fds=[each.fileno() for each in sockets],
                    NOTIFY_SOCKET=manager.address,
                    **passing(sockets),
                ) as server:
                    manager.wait_for("READY=1")
                    if not restart:
                        for thread in threads:
                            thread.start()
                    before = [each.acknowledged for each in publishers]
                    while any(
                        each.acknowledged < count + 20
                        for each, count in zip(publishers, before, strict=True)
                    ):
                        assert server.popen.poll() is None, "the server has ended"
                        stop.wait(0.01)
                    if restart == RESTARTS - 1:
                        stop.set()
                        for thread in threads:
                            thread.join(30)
                        check(server.urls[0], publishers)
                    server.popen.send_signal(signal.SIGTERM)
                    manager.wait_for("STOPPING=1")
                    assert server.popen.wait(20) == 0
        finally:
            stop.set()
            for thread in threads:
                if thread.ident:
                    thread.join(30)
    print(*[f"{each.tag}: {each.acknowledged}, {each.repeated} repeated" for each in publishers])


def check(url: str, publishers: list[Publisher]) -> None:
    for each in publishers:
        assert each.refused == 0
        with (
            sync.connect(url) as client,
            client.subscribe([each.tag], since=0, timeout=60) as messages,
        ):
            found: list[int] = []
            while len(set(found)) < each.acknowledged:
                found.append(int(next(messages).text))
        # A line that was repeated may be there twice, a request with its key may not.
        wanted = found if isinstance(each, HttpPublisher) else sorted(set(found))
        assert wanted[: each.acknowledged] == list(range(each.acknowledged))


def test_a_socket_that_no_listener_wants_is_refused(tmp_path: Path) -> None:
    with (
        bound_sockets(1) as sockets,
        serving(
            tmp_path,
            "--listen",
            "tcp://127.0.0.1:0",
            program=PROGRAM,
            pass_fds=[sockets[0].fileno()],
            listens=False,
            **passing(sockets),
        ) as server,
    ):
        assert server.popen.wait(20) == 2
        assert server.popen.stderr is not None
        number = sockets[0].getsockname()[1]
        assert server.popen.stderr.read().splitlines()[-1] == (
            "mist serve: sockets passed by the service manager: no --listen has the address of "
            f"127.0.0.1:{number}"
        )
