"""`/v1/stats/history`: what the dashboard's plots begin with."""

import gzip
import json

import attrs
import pytest

from mist.commands import Register
from tests.http.client import request
from tests.http.test_stats import dial
from tests.servers import listeners, running
from tests.waiting import until

LISTEN = listeners("tcp", "http")
PATH = "/v1/stats/history"


async def test_it_has_what_happened_as_totals(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        reader = await dial(server, b"subscribe a\n")
        writer = await dial(server, b"publish a 1\npublish a 2\npublish x 3\npublish a* 4\n")
        await until(lambda: server.hub.written.messages == 2)
        server.hub.recorder.sample()
        found = (await request(server, "GET", PATH)).json()
        stats = (await request(server, "GET", "/v1/stats")).json()
        for name in ("published", "unmatched", "rejected", "matched", "delivered"):
            assert found[name][-1] == stats[name], name
            assert found[name][0] == 0
        assert (found["published"][-1], found["delivered"][-1]) == (3, 2)
        assert 0 < found["delivered_bytes"][-1] <= stats["delivered_bytes"]
        assert found["connections"][-1] == 2
        assert found["step"] == 2.0
        assert found["started"] == stats["started"]
        assert found["uptime"] == sorted(found["uptime"])
        assert found["uptime"][-1] <= stats["uptime"]
        columns = [each for each in found.values() if isinstance(each, list)]
        assert len({len(each) for each in columns}) == 1
        await reader.aclose()
        await writer.aclose()


async def test_latencies_are_histograms_over_time(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        peer = await dial(server, b"publish a 1\n")
        for _ in range(10):
            server.hub.recorder.sample()
        latency = (await request(server, "GET", PATH)).json()["latency"]
        now = (await request(server, "GET", "/v1/stats")).json()["latency"]
        await peer.aclose()
    assert len(latency["uptime"]) >= 2
    assert latency["append"] is now["append"] is None
    for name in ("publish_to_write", "commit"):
        counts = latency[name]["counts"]
        assert latency[name]["bounds"] == now[name]["bounds"] == sorted(now[name]["bounds"])
        assert len(counts) == len(latency["uptime"])
        assert {len(each) for each in counts} == {len(now[name]["bounds"]) + 1}
        assert sum(counts[0]) == 0
        assert counts[-1] == now[name]["counts"]
        assert sum(counts[-1]) == 1


async def test_without_a_history_there_are_no_commits(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="none") as server:
        for path in (PATH, "/v1/stats"):
            latency = (await request(server, "GET", path)).json()["latency"]
            assert latency["commit"] is latency["append"] is None
            assert latency["publish_to_write"] is not None


async def test_with_an_engine_there_are_its_appends(tmp_path):
    engine = {"engine": "memory://stats-history", "history": "memory://"}
    async with running(tmp_path, listen=LISTEN, **engine) as server:
        peer = await dial(server, b"publish a 1\n")
        await until(lambda: sum(server.hub.meters.append.counts))
        latency = (await request(server, "GET", "/v1/stats")).json()["latency"]
        assert sum(latency["append"]["counts"]) >= 1
        assert sum(latency["commit"]["counts"]) >= 1
        assert (await request(server, "GET", PATH)).json()["latency"]["append"] is not None
        await peer.aclose()


async def test_it_is_compressed_for_those_who_take_it_so(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        plain = await request(server, "GET", PATH)
        coded = await request(server, "GET", PATH, {"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert coded.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(coded.body)).keys() == plain.json().keys()
    for each in (plain, coded):
        assert "Accept-Encoding" in each.headers["vary"]
        assert each.headers["cache-control"] == "no-store"


async def test_all_who_ask_between_two_samples_get_what_was_made_once(tmp_path, monkeypatch):
    async with running(tmp_path, listen=LISTEN) as server:
        recorder = server.hub.recorder
        made = []
        recording = recorder.recording
        monkeypatch.setattr(recorder, "recording", lambda: made.append(1) or recording())
        recorder.sample()
        before = recorder.samples
        bodies = {(await request(server, "GET", PATH)).body for _ in range(50)}
        assert len(made) == len(bodies) <= 1 + recorder.samples - before


@pytest.mark.parametrize("credential", [{}, {"X-Auth-Token": "t0ken"}, {"Authorization": "Bearer"}])
async def test_it_is_for_services(tmp_path, credential):
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        server.hub.hub_limits = attrs.evolve(server.hub.hub_limits, failed_auth_delay=0.0)
        await server.hub.registry.execute([Register("t0ken", frozenset({"a"}))])
        right = {"Authorization": "Bearer s3cret"}
        assert (await request(server, "GET", PATH, right)).status == 200
        refused = await request(server, "GET", PATH, credential)
        assert refused.status in (401, 403)
        assert "uptime" not in refused.json()
