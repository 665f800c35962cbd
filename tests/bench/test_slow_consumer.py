"""What happens to a stalled subscriber is told apart: dropped for, or cut off."""

import pytest

from mist.bench.process import start_server
from mist.bench.site import Place, given_site
from mist.bench.slow_consumer import SlowConsumer, measure_slow_consumer


def measure(policy: str, transport: str) -> SlowConsumer:
    with start_server("--slow-consumer", policy) as server:
        tcp, ws = Place(server.host, server.tcp_port), Place(server.host, server.ws_port)
        with given_site(tcp, ws) as site:
            return measure_slow_consumer(
                site.target(transport), healthy=2, rate=1_000, messages=20, rounds=1
            )


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_messages_for_a_stalled_subscriber_are_dropped(transport: str) -> None:
    found = measure("drop", transport)
    assert (found.disconnected, found.healthy_lost) == (0, 0)
    assert 0 < found.dropped < found.sent_to_stalled


def test_a_stalled_subscriber_is_cut_off_where_that_is_the_policy() -> None:
    found = measure("disconnect", "tcp")
    assert (found.disconnected, found.healthy_lost) == (1, 0)
    assert found.dropped > 0
