"""`/metrics`: names, labels and numbers, as Prometheus reads them."""

import json
import re
from ipaddress import ip_network
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mist.commands import Register, Since
from mist.http.metric_families import MetricFamilies
from mist.http.session_aggregates import SessionAggregator
from mist.protocols.line.forms import PLAIN
from mist.sessions.close_reason import CloseReason
from mist.sessions.session import Session
from mist.transports.tcp import TcpTransport
from mist.transports.websocket import WebSocketTransport
from tests.http.client import request
from tests.http.test_stats import Peer, dial
from tests.servers import listeners, port_of, running
from tests.waiting import until

LISTEN = listeners("tcp", "http")
ROOT = Path(__file__).parent.parent.parent
GRAFANA = ROOT / "examples" / "grafana"
ALERTS = ROOT / "deploy" / "compose" / "alerts.yml"

# As the specification has them: name, kind, labels.
WANTED = {
    "mist_connections": ("gauge", {"transport"}),
    "mist_connections_total": ("counter", {"transport", "result"}),
    "mist_subscriptions": ("gauge", set()),
    "mist_tags": ("gauge", set()),
    "mist_messages_published_total": ("counter", {"source"}),
    "mist_messages_delivered_total": ("counter", {"transport"}),
    "mist_messages_dropped_total": ("counter", {"reason"}),
    "mist_messages_matched_total": ("counter", set()),
    "mist_messages_replayed_total": ("counter", set()),
    "mist_messages_queued": ("gauge", set()),
    "mist_contained_failures_total": ("counter", {"what"}),
    "mist_disconnects_total": ("counter", {"code"}),
    "mist_auth_failures_total": ("counter", {"reason"}),
    "mist_token_refusals_total": ("counter", {"limit"}),
    "mist_publish_to_write_seconds": ("histogram", set()),
    "mist_match_seconds": ("histogram", set()),
    "mist_outbox_bytes": ("gauge", set()),
    "mist_recover_total": ("counter", {"result"}),
    "mist_history_commit_seconds": ("histogram", set()),
    "mist_history_position": ("gauge", set()),
    "mist_event_loop_lag_seconds": ("histogram", set()),
    "mist_ready": ("gauge", set()),
    "mist_build_info": ("gauge", {"version", "python", "compiled"}),
}


@attrs.frozen
class Scrape:
    """What Prometheus makes of a page: series to number."""

    series: dict

    def __getitem__(self, name):
        return self.series[name]

    def get(self, name):
        return self.series.get(name, 0)


async def scrape(server, **headers):
    response = await request(server, "GET", "/metrics", headers)
    assert response.status == 200
    series = {}
    for family in text_string_to_metric_families(response.body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            series[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return Scrape(series)


def families(text):
    """Name as it is queried, to kind and labels."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name] = (kind, set())
        elif line and not line.startswith("#"):
            name = re.match(r"\w+", line)[0]
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            labels = set(re.findall(r'(\w+)="', line)) - {"le"}
            found[name if name in found else base][1].update(labels)
    return found


async def busy(server):
    """Something of everything."""
    await server.hub.registry.execute([Register("t0ken", frozenset("a"))])
    reader = await dial(server, b"subscribe a\n")
    await request(server, "GET", "/v1/stats", {"X-Auth-Token": "wrong"})
    return reader


async def test_names_kinds_and_labels_are_those_of_the_specification(tmp_path):
    async with running(
        tmp_path, listen=LISTEN, history="memory://", failed_auth_delay=0.0
    ) as server:
        reader = await busy(server)
        gone = await dial(server)
        await gone.aclose()
        await until(lambda: server.hub.sessions.close_codes)
        response = await request(server, "GET", "/metrics")
        await reader.aclose()
    assert families(response.body.decode()) == WANTED
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert response.headers["cache-control"] == "no-store"


async def test_event_loop_lag_is_measured_as_often_as_said(tmp_path, autojump_clock):
    async with running(tmp_path, listen=LISTEN) as server:
        before = sum(server.hub.meters.loop_lag.counts)
        await trio.sleep(10)
        assert sum(server.hub.meters.loop_lag.counts) - before == pytest.approx(40, abs=4)
        families = MetricFamilies(server.hub)
        text = families.render(await SessionAggregator(server.hub).session_aggregates()).decode()
    assert re.search(r"HELP mist_event_loop_lag_seconds .* measured four times a second", text)


async def test_http_connections_that_a_limit_refuses_count(tmp_path):
    proxy = ip_network("127.0.0.1")
    sent = {"X-Forwarded-For": "192.0.2.1"}
    async with running(
        tmp_path,
        listen=listeners("http"),
        grants={"t0ken": {"a"}},
        max_connections_per_address=1,
        trusted_proxies=(proxy,),
    ) as server:
        found = await scrape(server)
        assert found["mist_connections_total{result=refused,transport=http}"] == 0
        async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as client:
            await client.send_all(
                b"GET /v1/stream?tags=a HTTP/1.1\r\nHost: localhost\r\n"
                b"X-Auth-Token: t0ken\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
            )
            assert b" 200 " in await client.receive_some(1000)
            assert (await request(server, "GET", "/healthz", sent)).status == 429
        assert server.hub.sessions.refused == {"http": 1}  # a page may be cached


async def test_http_connections_beyond_the_most_count(tmp_path):
    async with running(tmp_path, listen=listeners("http"), max_connections=1) as server:
        port = port_of(server.urls[0])
        async with await trio.open_tcp_stream("127.0.0.1", port):
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert (await request(server, "GET", "/healthz")).status == 429
            assert server.hub.sessions.refused == {"http": 1}


async def test_the_counts_of_each_transport_begin_with_zero(tmp_path):
    async with running(tmp_path, listen=listeners("tcp", "nats", "http")) as server:
        found = await scrape(server)
    for transport in ("tcp", "nats", "ws", "sse", "poll", "bus"):
        assert found[f"mist_connections{{transport={transport}}}"] == 0
        assert found[f"mist_messages_delivered_total{{transport={transport}}}"] == 0
        for result in ("accepted", "refused"):
            assert found[f"mist_connections_total{{result={result},transport={transport}}}"] == 0


async def test_rejected_credentials_of_each_kind_count_from_zero(tmp_path):
    async with running(
        tmp_path, listen=listeners("nats", "http"), secret="a-secret-of-tests", open_metrics=True
    ) as server:
        found = await scrape(server)
        reasons = {name for name in found.series if name.startswith("mist_auth_failures_total")}
        async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as client:
            await client.send_all(b'CONNECT {"auth_token":"wrong"}\r\n')
            await until(lambda: server.hub.failed_auths)
        [reason] = server.hub.failed_auth_reasons
        assert f"mist_auth_failures_total{{reason={reason}}}" in reasons


async def test_subscriptions_of_nats_clients_count_each(tmp_path):
    async with running(tmp_path, listen=listeners("nats", "http")) as server:
        async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as client:
            await client.send_all(b"CONNECT {}\r\nSUB a 1\r\nSUB a 2\r\nSUB b q 3\r\n")
            await until(lambda: any(len(s.named_subscriptions) == 3 for s in server.hub.sessions))
            assert (await scrape(server))["mist_subscriptions"] == 3


async def test_numbers_are_what_happened(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        reader = await dial(server, b"subscribe a\nsubscribe b,c\n")
        writer = await dial(server, b"publish a 1\npublish a 2\npublish x 3\n")
        await server.hub.store(frozenset("a"), b"4")
        found = await scrape(server)
        assert found["mist_connections{transport=tcp}"] == 2
        assert found["mist_connections_total{result=accepted,transport=tcp}"] == 2
        assert found["mist_connections_total{result=refused,transport=tcp}"] == 0
        assert found["mist_subscriptions"] == 2
        assert found["mist_tags"] == 3
        assert found["mist_messages_published_total{source=tcp}"] == 3
        assert found["mist_messages_published_total{source=other}"] == 1
        assert found["mist_messages_delivered_total{transport=tcp}"] == 3
        assert found["mist_messages_dropped_total{reason=full}"] == 0
        assert found["mist_messages_dropped_total{reason=error}"] == 0
        assert found["mist_contained_failures_total{what=delivery}"] == 0
        assert found["mist_history_position"] == 4
        assert found["mist_history_commit_seconds_count"] >= 2
        assert found["mist_publish_to_write_seconds_count"] >= 2
        assert found["mist_match_seconds_count"] >= 1
        assert found["mist_outbox_bytes"] == 0
        assert found["mist_ready"] == 1
        await reader.aclose()
        await writer.aclose()


async def test_mistakes_that_cost_a_session_or_a_request_count(tmp_path, monkeypatch, caplog):
    def fail(*about, **more):
        raise RuntimeError

    def failures(found):
        name = "mist_contained_failures_total{what=%s}"
        return [found[name % what] for what in ("request", "session")]

    async with running(tmp_path, listen=LISTEN) as server:
        assert failures(await scrape(server)) == [0, 0]
        with monkeypatch.context() as patch:
            patch.setattr(server.hub.broker, "statistics", fail)
            assert (await request(server, "GET", "/v1/stats")).status == 500
            patch.setattr(TcpTransport, "_serve", fail)
            async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as peer:
                assert await peer.receive_some() == b""
            patch.setattr(WebSocketTransport, "upgrade", fail)
            async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[1])) as peer:
                await peer.send_all(
                    b"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n"
                    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                )
                assert await peer.receive_some() == b""
        found = [0, 0]
        with trio.fail_after(60):
            while found == [0, 0]:  # the page from before
                await trio.sleep(0.05)
                found = failures(await scrape(server))
        assert found == [1, 2]
    assert [each.message for each in caplog.records if each.exc_info] == [
        "request failed",
        "session failed",
        "connection failed",
    ]


async def test_the_archive_is_told_of_where_there_is_one(tmp_path):
    settings = {"listen": LISTEN, "history": "memory://", "archive": tmp_path / "archive"}
    async with running(tmp_path, **settings) as server:
        await server.hub.store(frozenset("a"), b"1")
        await server.hub.sealer.seal_now()
        found = await scrape(server)
    assert found["mist_archive_position"] == 1
    assert found["mist_archive_segments"] == 1
    assert found["mist_archive_failures_total"] == 0


async def test_every_histogram_ends_in_all_and_never_falls(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        await server.hub.store(frozenset("a"), b"1")
        found = await scrape(server)
    for name, (kind, _) in WANTED.items():
        if kind == "histogram":
            buckets = [v for k, v in found.series.items() if k.startswith(f"{name}_bucket")]
            assert buckets == sorted(buckets)
            assert found[f"{name}_bucket{{le=+Inf}}"] == found[f"{name}_count"]
            assert found[f"{name}_sum"] >= 0


async def test_without_a_history_its_metrics_are_not_there(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        peer = await dial(server, b"subscribe a\npublish a 1\n")
        found = await scrape(server)
        await peer.aclose()
    assert not [name for name in found.series if "history" in name]
    assert found["mist_publish_to_write_seconds_count"] == 1


async def test_failures_endings_and_recoveries_are_told_apart(tmp_path):
    async with running(
        tmp_path, listen=LISTEN, history="memory://", failed_auth_delay=0.0
    ) as server:
        for headers in [
            {"X-Auth-Token": "wrong"},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer wrong again"},
        ]:
            await request(server, "GET", "/v1/stats", headers)
        await server.hub.store(frozenset("a"), b"1")
        for since in [Since(0), Since(1), Since(1, epoch="other")]:
            session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws")
            server.hub.sessions.attach(session)
            await session.resume([frozenset("a")], since, lambda resumed: None)
            session.end(CloseReason(4401, "token revoked"))
            session.end(CloseReason(1001, "only the first counts"))
            await session.aclose()
        found = await scrape(server)
    assert found["mist_auth_failures_total{reason=token}"] == 1
    assert found["mist_auth_failures_total{reason=secret}"] == 2
    assert found["mist_auth_failures_total{reason=other}"] == 0
    assert found["mist_recover_total{result=recovered}"] == 2
    assert found["mist_recover_total{result=lost}"] == 1
    assert found["mist_recover_total{result=failed}"] == 0
    assert found["mist_disconnects_total{code=4401}"] == 3
    assert found.get("mist_disconnects_total{code=1001}") == 0
    assert found["mist_connections{transport=ws}"] == 0


async def test_connections_beyond_the_limit_are_counted_as_refused(tmp_path):
    async with running(tmp_path, listen=LISTEN, max_connections=3) as server:
        peers = [await dial(server) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            # This one and the scrape's own can't both be in.
            port = port_of(server.urls[0])
            third = await dial(server)
            late = await trio.open_tcp_stream("127.0.0.1", port)
            assert b"Too many" in await late.receive_some()
            await third.aclose()
            nursery.cancel_scope.cancel()
        await until(lambda: server.hub.sessions.connected <= 2)
        found = await scrape(server)
        assert found["mist_connections_total{result=refused,transport=tcp}"] == 1
        for peer in [*peers, late]:
            await peer.aclose()


async def test_two_servers_in_one_process_know_nothing_of_each_other(tmp_path):
    async with running(tmp_path / "a", listen=LISTEN) as one:
        async with running(tmp_path / "b", listen=LISTEN) as other:
            peer = await dial(one, b"publish a 1\n")
            assert (await scrape(one))["mist_messages_published_total{source=tcp}"] == 1
            assert (await scrape(other))["mist_messages_published_total{source=tcp}"] == 0
            await peer.aclose()


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=1.0.0", "x", "§"])
async def test_whatever_is_wished_for_there_is_one_format(tmp_path, accept):
    async with running(tmp_path, listen=LISTEN) as server:
        response = await request(server, "GET", "/metrics", {"Accept": accept.encode()})
    assert response.status == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


# who may ask


async def test_the_secret_is_needed_where_there_is_one(tmp_path):
    async with running(tmp_path, listen=LISTEN, secret="s3cret", failed_auth_delay=0.0) as server:
        await server.hub.registry.execute([Register("t0ken", frozenset("a"))])
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"X-Auth-Token": "t0ken"}, 403),
            ({"Authorization": "Bearer s3cret"}, 200),
        ]:
            assert (await request(server, "GET", "/metrics", headers)).status == status


async def test_metrics_may_be_opened_and_nothing_else_is(tmp_path):
    async with running(tmp_path, listen=LISTEN, secret="s3cret", open_metrics=True) as server:
        assert (await request(server, "GET", "/metrics")).status == 200
        assert (await request(server, "GET", "/v1/stats")).status == 401


async def test_scraping_without_end_costs_no_more_than_a_tenth(tmp_path):
    async with running(tmp_path, listen=LISTEN, open_metrics=True, secret="x") as server:
        for n in range(5_000):
            server.hub.sessions.attach(Peer(server.hub, f"tcp-{n}"))
        first = await request(server, "GET", "/metrics")
        again = [await request(server, "GET", "/metrics") for _ in range(3)]
        assert first.status == 200
        # Made again, a page would show that its own request made the lag's histogram grow, or
        # not: what tells is that it is the very same text.
        assert first.body in [each.body for each in again]


# the dashboard for Grafana


def expressions(node):
    """Every query, wherever it stands."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for each in node:
            yield from expressions(each)


def with_tls(folder):
    """Settings with a listener with TLS, too."""
    both = folder / "both.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    return {"listen": (*LISTEN, *listeners("tcps")), "tls_cert": both, "tls_key": both}


@pytest.mark.parametrize("path", [*sorted(GRAFANA.glob("*.json")), ALERTS], ids=lambda it: it.name)
async def test_nothing_is_asked_for_that_is_not_there(tmp_path, path):
    # JSON is YAML.
    asked = [each for each in expressions(yaml.safe_load(path.read_text())) if "mist_" in each]
    assert len(asked) >= 10
    async with running(
        tmp_path,
        **with_tls(tmp_path),
        history="memory://",
        archive=tmp_path / "archive",
        engine="memory://grafana",
        failed_auth_delay=0.0,
    ) as server:
        reader = await busy(server)
        server.hub.sessions.close_codes[1006] += 1
        text = (await request(server, "GET", "/metrics")).body.decode()
        await reader.aclose()
    there = {re.match(r"\w+", line)[0] for line in text.splitlines() if line[:1] not in ("", "#")}
    known = families(text)
    for query in asked:
        for name, labels in re.findall(r"(mist_\w+)(?:\{([^}]*)\})?", query):
            assert name in there, query
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            allowed = known.get(name, known.get(base))[1] | {"job", "instance"}
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)) <= allowed, query
        for by in re.findall(r"by\s*\(([^)]*)\)", query):
            labels = {each.strip() for each in by.split(",")} - {"le", "job", "instance"}
            assert labels <= {label for _, labels in WANTED.values() for label in labels}, query
        for function in re.findall(r"(?:rate|increase)\((\w+)", query):
            assert re.search(r"_(total|bucket|sum|count)$", function), query


async def test_the_page_of_metrics_has_each_and_no_other(tmp_path):
    (tmp_path / "jwt-secret").write_text(32 * "s3cret")
    (tmp_path / "jwt-secret").chmod(0o600)
    async with running(
        tmp_path,
        **with_tls(tmp_path),
        history="memory://",
        archive=tmp_path / "archive",
        engine="memory://documented",
        presence=("room:*",),
        events=True,
        jwt_secret_file=tmp_path / "jwt-secret",
        failed_auth_delay=0.0,
    ) as server:
        reader = await busy(server)
        server.hub.sessions.close_codes[1006] += 1
        text = (await request(server, "GET", "/metrics")).body.decode()
        await reader.aclose()
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"`(mist_\w+)`", page)) == set(families(text))


def test_grafanas_dashboard_is_there_and_its_panels_do_not_overlap():
    [path] = GRAFANA.glob("*.json")
    board = json.loads(path.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 10
    assert board["uid"]
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
