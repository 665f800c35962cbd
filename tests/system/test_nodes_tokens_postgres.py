"""Tokens of nodes as processes on a real PostgreSQL: as `test_nodes_tokens.py` has them on a Redis.

pytest tests/system/test_nodes_tokens_postgres.py --slow -s     the whole of it; prints its figures
"""

from collections.abc import Iterator

import pytest
import trio

from tests.engine.postgres_server import PostgresServer
from tests.system import test_nodes_tokens as on_redis
from tests.system.test_nodes_tokens import Far, Start

far, start = on_redis.far, on_redis.start


@pytest.fixture
def redis() -> Iterator[PostgresServer]:
    """The server of the nodes, in the place of a Redis."""
    with PostgresServer("system") as server:
        yield server


async def test_nothing_published_after_a_revocation_reaches_its_sessions(far: Far) -> None:
    # The log comes at once, and the revocations behind it.
    seconds = await on_redis.revoke_beside_publishers(await far(b"read_tokens"), 6)
    assert seconds[-1] < 1


async def test_a_node_that_is_cut_off_lets_nobody_in_and_comes_back(
    start: Start, redis: PostgresServer, nursery: trio.Nursery
) -> None:
    await on_redis.test_a_node_without_its_redis_lets_nobody_in_and_comes_back(
        start, redis, nursery
    )


async def test_of_many_registrations_of_one_token_one_succeeds(start: Start) -> None:
    await on_redis.test_of_many_registrations_of_one_token_one_succeeds(start)


@pytest.mark.slow
async def test_changes_at_three_nodes_are_linearizable(start: Start) -> None:
    await on_redis.test_many_changes_at_three_nodes_are_linearizable(start)


@pytest.mark.slow
async def test_five_hundred_revocations_reach_all_nodes_in_time(start: Start) -> None:
    await on_redis.test_five_hundred_revocations_reach_all_nodes_in_time(start)
