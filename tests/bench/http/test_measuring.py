"""HTTP is measured end to end, small: everything that was asked for is done and counted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mist.bench.errors import BenchError
from mist.bench.history.stored import serving
from mist.bench.http.handshakes import measure_handshakes
from mist.bench.http.requests import BULK_SHAPES, SHAPES, measure_requests
from mist.bench.http.streams import measure_streams
from mist.bench.load import open_load
from mist.bench.process import start_server
from mist.bench.site import Place, Site, given_site, own_site
from tests.bench.test_process import linux


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with own_site() as site:
        yield site


@linux
def test_requests_are_measured_in_all_shapes_with_a_history_and_without(site: Site) -> None:
    found = measure_requests(site, beside_history=True, requests=3, rounds=2)
    assert [(each.shape, each.history, each.durability) for each in found] == [
        (shape, *history) for shape in SHAPES for history in (("none", None), ("sqlite", "power"))
    ]
    for each in found:
        assert each.rounds.count == 6
        assert len(each.rounds.server_cpu_us) == 2
        assert min(each.rounds.server_cpu_us) > 0
        assert each.rounds.per_second > 0


@linux
def test_requests_with_many_messages_are_measured_too(site: Site) -> None:
    with site.target("tcp").subscribe.subscribed(b"subscribe bench\n") as subscriber:
        found = measure_requests(site, shapes=BULK_SHAPES, requests=10, rounds=1, size=10)
        expected = (100 + 2 * 1_000) * (2 + 1)  # warm and measured
        got = b""
        while got.count(b"\n") < expected:
            got += subscriber.recv(65_536)
    assert [(each.shape, each.messages) for each in found] == [
        ("list", 100),
        ("lines", 1_000),
        ("lines_unique", 1_000),
    ]
    assert [each.rounds.count for each in found] == [1, 1, 1]
    assert len(set(got.splitlines())) == 1 + 3 * 1_000


def test_requests_reach_subscribers(site: Site) -> None:
    with site.target("tcp").subscribe.subscribed(b"subscribe bench\n") as subscriber:
        measure_requests(site, requests=2, rounds=1, size=10)
        got = b""
        while got.count(b"\n") < 3 * (20 + 2):  # warm and measured
            got += subscriber.recv(65_536)
    lines = got.splitlines()
    assert lines.count(b"publish bench xxxxxxxxxx") == 2 * (20 + 2)
    assert len(set(lines)) == 1 + 20 + 2  # a unique list each


def test_a_history_of_a_server_that_was_given_is_noticed(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db") as site:
        found = measure_requests(site, requests=1, rounds=1)
    assert {(each.history, each.durability) for each in found} == {("unknown", None)}


def test_a_refused_request_is_an_error() -> None:
    with start_server("--secret", "s3cret") as server:
        place = Place(server.host, server.http_port)
        with (
            given_site(None, None, place) as site,
            pytest.raises(BenchError, match="401"),
        ):
            measure_requests(site, requests=1, rounds=1)
        with given_site(None, None, place, secret="s3cret") as site:
            assert len(measure_requests(site, requests=1, rounds=1)) == len(SHAPES)


@linux
def test_handshakes_are_counted_and_leave_nobody_connected(site: Site) -> None:
    found = measure_handshakes(site, connections=4, rounds=3)
    assert [each.closed for each in found] == [False, True]
    for each in found:
        assert (each.rounds.count, len(each.rounds.server_cpu_us)) == (12, 3)
        assert min(each.rounds.server_cpu_us) > 0


def test_a_handshake_with_a_wrong_token_is_an_error(site: Site) -> None:
    ws = site.endpoint("ws")
    with (
        given_site(None, Place(ws.host, ws.port), token="wrong") as other,
        pytest.raises(BenchError, match="401"),
    ):
        measure_handshakes(other, connections=1, rounds=1)


@linux
def test_every_transport_delivers_everything_at_the_pace(site: Site) -> None:
    found = measure_streams(site, subscribers=2, rate=1_000, messages=20, rounds=2)
    assert [each.transport for each in found] == ["tcp", "ws", "sse"]
    for each in found:
        assert [(run.messages, run.deliveries, run.lost) for run in each.runs] == [(20, 40, 0)] * 2
        assert each.cpu_us is not None
        assert each.cpu_us > 0
    line, frames, events = found
    assert line.over_tcp_us == 0
    assert frames.times_ws == 1
    assert events.cpu_us is not None
    assert frames.cpu_us is not None
    assert events.times_ws == pytest.approx(events.cpu_us / frames.cpu_us)


@linux
@pytest.mark.parametrize("tag_lists", [1, 3])
def test_every_transport_delivers_everything_flat_out(site: Site, tag_lists: int) -> None:
    found = measure_streams(site, rate=None, tag_lists=tag_lists, messages=300, rounds=1)
    assert [(each.transport, each.rate, each.tag_lists) for each in found] == [
        (transport, None, tag_lists) for transport in ("tcp", "ws", "sse")
    ]
    for each in found:
        assert [(run.messages, run.deliveries, run.lost) for run in each.runs] == [(300, 300, 0)]


def test_an_event_stream_loses_nothing_flat_out(site: Site) -> None:
    with open_load(site.target("sse"), 2, 3, messages=2_000, lists=4) as load:
        run = load.flood(2_000, 100, 10.0)
    assert (run.deliveries, run.lost, run.repeated, run.reordered) == (6_000, 0, 0, 0)


def test_a_stream_that_is_refused_is_an_error(site: Site) -> None:
    assert site.tcp is not None
    http, _ = site.http_endpoint()
    tcp = Place(site.tcp.host, site.tcp.port)
    with (
        given_site(tcp, None, Place(http.host, http.port), token="wrong") as other,
        pytest.raises(BenchError, match="401"),
        open_load(other.target("sse"), 1, 1, messages=10),
    ):
        pass


def test_without_a_process_there_is_no_cpu_time(site: Site) -> None:
    assert site.tcp is not None
    tcp, ws = Place(site.tcp.host, site.tcp.port), site.endpoint("ws")
    http, _ = site.http_endpoint()
    places = tcp, Place(ws.host, ws.port), Place(http.host, http.port)
    with given_site(*places) as other:
        (requests, *_) = measure_requests(other, requests=1, rounds=1)
        streams = measure_streams(other, rate=1_000, messages=5, rounds=1)
    assert requests.rounds.server_cpu_us == []
    assert {(each.cpu_us, each.over_tcp_us, each.times_ws) for each in streams} == {
        (None, None, None)
    }
