"""A server in a process of its own: what it costs, and that it goes."""

import os
import resource
import sys
import time

import pytest

from mist.bench.connections import ask
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.load import open_load
from mist.bench.process import (
    check_file_limit,
    cpu_seconds,
    resident_bytes,
    start_server,
)
from mist.bench.site import Place, given_site, own_site

linux = pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's kernel")
NOBODY = 1 << 22  # above the highest process id (pid_max is at most 2^22)


@linux
def test_cpu_time_of_a_process_is_what_the_process_itself_sees() -> None:
    before = time.process_time()
    seen = cpu_seconds(os.getpid())
    after = time.process_time()
    assert seen is not None
    assert before <= seen <= after


@linux
def test_memory_of_a_process_grows_with_what_it_holds() -> None:
    before = resident_bytes(os.getpid())
    held = bytearray(b"x") * (64 << 20)
    after = resident_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > len(held) * 0.9


def test_of_nobody_nothing_can_be_told() -> None:
    assert cpu_seconds(NOBODY) is None
    assert resident_bytes(NOBODY) is None


def test_a_server_is_gone_after_the_block_whatever_happened() -> None:
    with pytest.raises(ZeroDivisionError), start_server() as server:
        os.kill(server.pid, 0)
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(BenchError, match="did not start"), start_server("--bogus"):
        pass


def test_more_connections_than_files_are_refused_beforehand() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_file_limit(limit // 2)
    with pytest.raises(BenchError, match="open files"):
        check_file_limit(limit)


def test_a_site_says_what_it_lacks() -> None:
    nowhere = Place("127.0.0.1", 1)
    with given_site(None, nowhere) as site:
        assert site.endpoint("ws").port == 1
        for missing in (
            lambda: site.endpoint("tcp"),
            lambda: site.endpoint("sse"),
            lambda: site.target("ws"),
            site.http_endpoint,
            site.process,
        ):
            with pytest.raises(BenchError):
                missing()


@linux
def test_a_process_that_is_not_there_is_an_error() -> None:
    with (
        pytest.raises(BenchError, match="no process"),
        given_site(Place("127.0.0.1", 1), None, pid=NOBODY),
    ):
        pass


def test_a_token_made_for_the_occasion_is_taken_back() -> None:
    with start_server() as server:
        tcp, ws = Place(server.host, server.tcp_port), Place(server.host, server.ws_port)
        with given_site(tcp, ws, pid=server.pid) as site:
            frames = site.endpoint("ws")
            frames.connect().close()
        with pytest.raises(BenchError, match="401"):
            frames.connect()


def test_a_subscription_that_is_not_granted_is_an_error() -> None:
    with start_server() as server:
        tcp, ws = Place(server.host, server.tcp_port), Place(server.host, server.ws_port)
        with given_site(tcp, None) as site, site.endpoint("tcp").connect() as admin:
            ask(admin, b"register elsewhere limited\nping\n", b"pong\n")
        with (
            given_site(tcp, ws, token="limited") as site,
            pytest.raises(UnexpectedBytes, match=r"success.*false"),
            open_load(site.target("ws"), 1, 1, messages=10),
        ):
            pass


def test_deliveries_with_ids_are_not_measured() -> None:
    with start_server(history="memory://") as server:
        tcp, ws = Place(server.host, server.tcp_port), Place(server.host, server.ws_port)
        with given_site(tcp, ws) as site:
            with open_load(site.target("tcp"), 1, 1, messages=10):
                pass
            with pytest.raises(BenchError, match="--history none"):
                site.target("ws")
        with (
            given_site(tcp, None, Place(server.host, server.http_port)) as site,
            pytest.raises(BenchError, match="--history none"),
        ):
            site.target("sse")


def test_an_own_site_has_all_endpoints_and_a_process() -> None:
    with own_site() as site:
        assert site.process() > 0
        for transport in ("tcp", "ws", "sse"):
            site.target(transport).subscribe.connect().close()
