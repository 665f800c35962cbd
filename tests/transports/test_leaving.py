"""Peers that hang up: each has its connection closed in a turn, since thousands may at once."""

from typing import Any

import pytest
import trio
import trio.testing

from mist.server import Server
from mist.transports.connection import Connection
from mist.turns import Account, Turns
from tests.servers import listeners, port_of
from tests.waiting import until

KINDS = ("tcp", "ws", "nats", "http")


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": listeners(*KINDS)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_is_closed_in_a_late_turn(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[KINDS.index(kind)]))
    await trio.testing.wait_all_tasks_blocked(0.02)  # it has been accepted
    done: list[str] = []
    finish = Connection.finish

    async def begin(self: Turns, account: Account | None = None, *, late: bool = False) -> None:
        done.append("late turn" if late else "turn")

    async def finishing(self: Connection, grace: float, *, linger: bool = False) -> None:
        done.append("close")
        await finish(self, grace, linger=linger)

    monkeypatch.setattr(Turns, "over", property(lambda self: True))
    monkeypatch.setattr(Turns, "begin", begin)
    monkeypatch.setattr(Connection, "finish", finishing)
    await stream.aclose()
    await until(lambda: "close" in done or (kind == "http" and done))
    # An idle connection of HTTP has nothing to write, and is just closed.
    assert done[:2] == (["late turn"] if kind == "http" else ["late turn", "close"])
