"""Matching the archive on Spark gives what the live broker gave to whoever was subscribed."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from mist.archive import Archive
from mist.client import connect
from mist.config import Listen
from mist.pipeline.jobs import match
from mist.pipeline.jobs.result import LargeResult, Result
from mist.pipeline.reading import Archived
from tests.servers import running

TAGS = [f"t{n}" for n in range(9)]


async def hear(
    url: str, tags: list[str], heard: dict[str, list[bytes]], *, task_status: Any
) -> None:
    """Listen until the last message, which everyone gets."""
    async with connect(url) as client, client.subscribe(tags) as subscription:
        task_status.started()
        got = heard[",".join(tags)]
        async for message in subscription:
            got.append(message.data)
            if message.data == b"last":
                return


async def test_spark_finds_for_each_subscription_what_its_subscriber_got(
    spark: Any, tmp_path: Path
) -> None:
    rng = random.Random(7)
    wanted = {",".join(sorted(rng.sample(TAGS, rng.randint(1, 4)))) for _ in range(25)}
    messages = [rng.sample(TAGS, rng.randint(1, 7)) for _ in range(400)]
    heard: dict[str, list[bytes]] = {name: [] for name in sorted(wanted)}
    settings = {
        "listen": (Listen("tcp", "127.0.0.1", 0),),
        "history": f"sqlite:///{tmp_path}/history.db",
        "archive": tmp_path / "archive",
    }
    with trio.fail_after(60):
        async with running(tmp_path, **settings) as server:
            url = server.urls[0]
            async with trio.open_nursery() as nursery:
                for name in heard:
                    await nursery.start(
                        lambda name=name, **k: hear(url, name.split(","), heard, **k)
                    )
                async with connect(url) as publisher:
                    for number, tags in enumerate(messages, 1):
                        await publisher.publish(tags, str(number))
                    await publisher.publish(TAGS, "last")
            await server.hub.sealer.seal_now()

    source = Archived(Archive.open(tmp_path / "archive"))
    subscriptions = pa.array(sorted(wanted))
    counted = match.run(spark, source, subscriptions)
    assert isinstance(counted, Result)
    assert {row["subscription"]: row["messages"] for row in counted.table.to_pylist()} == {
        name: len(got) for name, got in heard.items()
    }
    paired = match.run(spark, source, subscriptions, pairs=True)
    assert isinstance(paired, LargeResult)
    found = Counter((row.subscription, row.id) for row in paired.frame.collect())
    # Ids begin with 1 and one publisher's messages stay in order, so numbers are ids.
    ids = {str(n).encode(): n for n in range(1, 401)} | {b"last": 401}
    assert found == Counter((name, ids[data]) for name, got in heard.items() for data in got)
    assert len(found) > 1000
