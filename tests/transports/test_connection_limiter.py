"""The connection limiter: counts in all and by address."""

from ipaddress import ip_network

import trio
import trio.testing

from mist.transports.connection_limiter import ConnectionLimiter


def test_an_address_has_its_own_limit_and_gets_its_places_back() -> None:
    limiter = ConnectionLimiter(most_per_address=2)
    first = limiter.enter("192.0.2.1")
    assert first is not None
    assert limiter.enter("192.0.2.1") is not None
    assert limiter.enter("192.0.2.1") is None
    assert limiter.enter("192.0.2.2") is not None
    limiter.leave(first)
    assert limiter.enter("192.0.2.1") is not None
    assert limiter.refused == 1


def test_all_together_have_a_limit() -> None:
    limiter = ConnectionLimiter(most=2)
    tickets = [limiter.enter("127.0.0.1"), limiter.enter("")]
    assert None not in tickets
    assert limiter.enter("127.0.0.1") is None


def test_loopback_unix_sockets_and_proxies_have_no_limit_of_their_own() -> None:
    limiter = ConnectionLimiter(most_per_address=1, proxies=[ip_network("198.51.100.0/24")])
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "", "198.51.100.7"):
        assert all(limiter.enter(address) is not None for _ in range(3))


def test_an_ipv6_customer_is_counted_by_its_network() -> None:
    limiter = ConnectionLimiter(most_per_address=1)
    assert limiter.enter("2001:db8::1") is not None
    assert limiter.enter("2001:db8::2") is None
    assert limiter.enter("2001:db8:0:1::1") is not None
    assert limiter.enter("fe80::1%eth0") is not None


def test_mapped_addresses_count_as_what_they_are() -> None:
    limiter = ConnectionLimiter(most_per_address=1)
    assert limiter.enter("::ffff:192.0.2.1") is not None
    assert limiter.enter("192.0.2.1") is None


async def test_all_who_wait_hear_that_nobody_is_connected() -> None:
    limiter = ConnectionLimiter()
    ticket = limiter.enter("")
    assert ticket is not None
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(limiter.emptied)
                await trio.testing.wait_all_tasks_blocked()
            limiter.leave(ticket)
