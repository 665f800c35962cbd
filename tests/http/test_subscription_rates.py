"""`/v1/stats/subscriptions`: the tag sets that most deliveries are for."""

import pytest
import trio

from tests.http.client import request
from tests.http.test_stats import dial
from tests.servers import listeners, running

LISTEN = listeners("tcp", "http")
PATH = "/v1/stats/subscriptions"


@pytest.mark.parametrize("history", ["none", "memory://"])
async def test_tag_sets_of_most_deliveries_come_first(tmp_path, history):
    async with running(tmp_path, listen=LISTEN, history=history) as server:
        peers = [await dial(server, b"subscribe a\nsubscribe b,c\n") for _ in range(2)]
        peers.append(await dial(server, b"subscribe a\nsubscribe never\n"))
        assert (await request(server, "GET", PATH)).json()["subscriptions"] == []
        await peers[0].send_all(b"publish a,b 1\n" * 30 + b"publish b,c 1\n" * 30 + b"ping\n")
        await trio.sleep(1.1)  # what was answered is kept for a second
        found = (await request(server, "GET", PATH)).json()
        assert [each["tags"] for each in found["subscriptions"]] == [["a"], ["b", "c"]]
        assert [each["subscribers"] for each in found["subscriptions"]] == [3, 2]
        first, second = [each["delivered_rate"] for each in found["subscriptions"]]
        assert first == pytest.approx(90 / max(found["seconds"], 1), rel=0.01)
        assert first / second == pytest.approx(3 / 2, rel=0.01)
        for each in peers:
            await each.aclose()


async def test_asking_often_costs_no_more_than_once_a_second(tmp_path, monkeypatch):
    async with running(tmp_path, listen=LISTEN) as server:
        asked = []
        monkeypatch.setattr(
            server.hub.broker, "top_tag_sets", lambda most: asked.append(1) or (0.0, [])
        )
        began = trio.current_time()
        for _ in range(30):
            await request(server, "GET", PATH)
        assert len(asked) <= 1 + (trio.current_time() - began)
