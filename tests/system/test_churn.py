"""An hour of mixed churn leaves nothing behind: no session, no subscription, no memory."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from mist.auth import Record
from mist.bench.process import cpu_seconds, resident_bytes
from mist.broker.groups import Group
from mist.broker.outbox import Outbox
from mist.http.exchange import Exchange
from mist.server import Server
from mist.sessions.session import Session
from tests.endpoints import LISTEN
from tests.garbage import alive, left_in_cycles
from tests.http.client import request
from tests.processes import Process, serving
from tests.servers import Served, running
from tests.system.churn import VISITS, Churn

SECONDS = float(os.environ.get("MIST_TEST_CHURN_SECONDS", "3600"))
WARM_UP = 600.0  # seconds in which caches, pools and the history reach their sizes
RATE = 6.0  # visits a second, some 15 % of a core for both sides together
FILL = 110_000  # tag lists; more than any cache holds
SAMPLED = 5.0  # seconds between two samples
GROWTH = 1 << 20  # bytes an hour that are allowed
# So little is kept that retention runs, and has reached its level, long before the warm-up ends.
OPTIONS = ("--keep-bytes", "2MiB", "--keep", "common-*=10", "--log-level", "error")

# Objects that those keep which look at peers one after the other: each the last, till the next.
LAST = 12


@attrs.frozen
class Sample:
    """Resident bytes of a server after so many seconds."""

    seconds: float
    resident: int


def slope(samples: Sequence[Sample]) -> float:
    """Bytes a second: the line that fits best, by least squares."""
    mean_x = sum(each.seconds for each in samples) / len(samples)
    mean_y = sum(each.resident for each in samples) / len(samples)
    over = sum((each.seconds - mean_x) * (each.resident - mean_y) for each in samples)
    return over / sum((each.seconds - mean_x) ** 2 for each in samples)


async def metric(server: Served, name: str) -> float:
    """A metric's sum over its labels."""
    page = (await request(server, "GET", "/metrics")).body.decode()
    return sum(float(each) for each in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", page))


async def assert_nothing_is_left(server: Served) -> None:
    """No session, no subscription, no tag, no token, and no failure was noted."""
    for name in ("mist_connections", "mist_subscriptions", "mist_tags"):
        with trio.fail_after(30):
            while await metric(server, name):
                await trio.lowlevel.checkpoint()
    assert (await request(server, "GET", "/v1/tokens")).json()["count"] == 0
    assert await metric(server, "mist_contained_failures_total") == 0


async def forget_the_last(server: Server) -> None:
    """Replace what is kept till the next: the slowest sessions, the last to publish."""
    for page in ("v1/stats", "v1/connections", "metrics"):
        assert (await request(server, "GET", f"/{page}")).status == 200
    await server.hub.store(frozenset({"last"}), b"")


@pytest.mark.usefixtures("no_warnings")
async def test_a_short_churn_leaves_nothing_behind(tmp_path: Path) -> None:
    kinds = Session, Outbox, Group, Record, Exchange
    before = alive(*kinds)
    async with running(
        tmp_path, listen=LISTEN, history="memory://", failed_auth_delay=0, keep_bytes=100_000
    ) as server:
        churn = Churn(server, seed=1)
        await churn.fill(1_000)
        await churn.run(rounds=LAST + 1)
        assert churn.done == dict.fromkeys(VISITS, LAST + 1)
        await assert_nothing_is_left(server)
        with trio.fail_after(30):
            while alive(*kinds) > before + LAST:
                await forget_the_last(server)


@pytest.mark.parametrize("name", sorted(VISITS))
async def test_a_visit_leaves_no_garbage(tmp_path: Path, name: str) -> None:
    """What lives for long is frozen, so what it leaves in cycles nobody would free."""
    async with running(tmp_path, listen=LISTEN, history="memory://", failed_auth_delay=0) as server:
        churn = Churn(server, seed=1)
        await churn.run(only=name, rounds=3)  # what the first ones leave is not of each
        await assert_nothing_is_left(server)
        with left_in_cycles() as left:
            await churn.run(only=name, rounds=10)
            await assert_nothing_is_left(server)
    assert left == set()


async def sample(process: Process, samples: list[Sample]) -> None:
    began = trio.current_time()
    while True:
        found = resident_bytes(process.popen.pid)
        assert found is not None
        samples.append(Sample(trio.current_time() - began, found))
        print(f"{samples[-1].seconds:7.0f} s {found / 2**20:8.2f} MiB", flush=True)
        await trio.sleep(SAMPLED)


@pytest.mark.slow
async def test_an_hour_of_churn_costs_no_memory(tmp_path: Path) -> None:
    listen = [part for each in LISTEN for part in ("--listen", f"{each.scheme}://127.0.0.1:0")]
    samples: list[Sample] = []
    with serving(tmp_path, *OPTIONS, listen=listen) as process:
        churn = Churn(process)
        await churn.fill(FILL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sample, process, samples)
            await churn.run(rate=RATE, until=trio.current_time() + SECONDS)
            nursery.cancel_scope.cancel()
        await assert_nothing_is_left(process)
        cpu = cpu_seconds(process.popen.pid) or 0.0
        assert process.stop() == 0
        assert process.popen.stderr is not None
        assert process.popen.stderr.read() == ""
    for name, times in sorted(churn.done.items()):
        print(f"{times:8,} {name}")
    warm = [each for each in samples if each.seconds >= min(WARM_UP, SECONDS / 6)]
    growth = slope(warm) * 3600
    print(
        f"{churn.done.total():,} visits in {samples[-1].seconds:,.0f} s, {cpu:.0f} s of CPU; "
        f"RSS {warm[0].resident / 2**20:.2f} MiB after the warm-up, "
        f"{warm[-1].resident / 2**20:.2f} MiB at the end; {growth / 2**20:+.3f} MiB/h"
    )
    assert growth < GROWTH
