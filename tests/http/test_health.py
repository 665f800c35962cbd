"""Whether a server is alive and ready, and where its endpoints are."""

import errno
import socket
from pathlib import Path

import pytest
import trio

from tests.http.client import request
from tests.servers import listeners, port_of, running

LISTEN = listeners("tcp", "ws", "http")


async def test_a_server_is_alive_and_ready_and_lists_its_endpoints(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        assert (await request(server, "GET", "/healthz")).json() == {"status": "alive"}
        assert (await request(server, "GET", "/readyz")).json() == {"status": "ready"}
        assert (await request(server, "GET", "/v1/endpoints")).json() == {
            "websocket": f"{server.urls[1]}/subscribe/websocket",
            "stream": "/v1/stream",
            "poll": "/v1/poll",
            "publish": "/v1/messages",
            "tickets": "/v1/tickets",
            "history": True,
        }


async def test_a_history_that_can_not_be_written_makes_it_unready_for_a_while(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        sequencer = server.hub.sequencer
        assert sequencer is not None
        await sequencer.history.close()
        server.hub.publish(frozenset("a"), b"refused")
        await sequencer.settled()
        response = await request(server, "GET", "/readyz")
        assert (response.status, response.json()["code"]) == (503, "history_unavailable")
        assert (await request(server, "GET", "/healthz")).status == 200
        # Nobody publishes to a server that is out of service, so it asks to be tried again.
        sequencer.failed_at = trio.current_time() - 6
        assert (await request(server, "GET", "/readyz")).status == 200


async def test_connections_that_cannot_be_accepted_make_it_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer that keeps its connection would else go on to send clients here."""
    failing = [True]
    accept = socket.socket.accept

    def full(self: socket.socket) -> object:
        if failing and self.getsockname()[1] == tcp:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    async with running(tmp_path, listen=LISTEN) as server:
        tcp = port_of(server.urls[0])
        monkeypatch.setattr(socket.socket, "accept", full)
        with socket.create_connection(("127.0.0.1", tcp)), trio.fail_after(20):
            while (response := await request(server, "GET", "/readyz")).status == 200:
                await trio.lowlevel.checkpoint()
            assert (response.status, response.json()["code"]) == (503, "too_many_files")
            assert (await request(server, "GET", "/healthz")).status == 200
            failing.clear()
            while (await request(server, "GET", "/readyz")).status != 200:
                await trio.lowlevel.checkpoint()


async def test_a_path_has_one_spelling(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        for path in ("/healthz/", "/v1/endpoints/", "/mist.js/", "/static"):
            assert (await request(server, "GET", path)).status == 404
