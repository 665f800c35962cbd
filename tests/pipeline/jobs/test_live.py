"""Matching the archive on Spark gives what the live broker gave to those subscribed."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from mist.archive import Archive
from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.audience import Audience
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.client import connect
from mist.message import ASK, parse_tags
from mist.pipeline.jobs import match
from mist.pipeline.jobs.result import LargeResult, Result
from mist.pipeline.reading import Archived
from mist.protocols.line.forms import PLAIN
from tests.servers import running

TAGS = [f"t{n}" for n in range(9)]
TOPICS = ["/a", "/a/b", "/a/b/c", "/b", "/ab"]
SUBJECTS = [".a.b", ".a.c", ".b.a.c", ".a"]
ASKED = ["/a", "=/a", "/a/b,t1", ".a.*", ".>", ".*.a.>", ".a.b,t0", "=/b,t2", "/", "/b/c", ".a,t3"]
AUDIENCES = ["users=1", "users=2", "groups=g", "except=c", "users=2&groups=g", "plan=pro"]
WHO = Attributes.parse("user=1&groups=g")


def numbers(outbox: Outbox) -> list[int]:
    """What messages were given to an outbox, which nobody empties meanwhile."""
    wire = b""
    while outbox.size:
        piece = bytes(outbox.peek())
        outbox.sent(len(piece))
        wire += piece
    return [int(line.rpartition(b" ")[2]) for line in wire.splitlines()]


async def heard_by(
    folder: Path, names: list[str], messages: list[list[str]], who: Attributes
) -> dict[str, list[int]]:
    """Ids of what live subscribers get, by subscription; and all of it sealed into an archive."""
    rng = random.Random(8)
    settings = {"history": f"sqlite:///{folder}/history.db", "archive": folder / "archive"}
    with trio.fail_after(60):
        async with running(folder, **settings) as server:
            broker = server.hub.broker
            outboxes = {name: Outbox(PLAIN, OutboxLimits(), broker.ready) for name in names}
            for name, outbox in outboxes.items():
                broker.subscribe(outbox, parse_tags(name.split(","), 16, ASK))
                broker.describe(outbox, who, ())
            async with connect(server.urls[0]) as publisher:
                # Ids begin with 1 and one publisher's messages stay in order, so numbers are ids.
                for number, tags in enumerate(messages, 1):
                    to = rng.choice([None, *map(Audience.parse, AUDIENCES)])
                    await publisher.publish(tags, str(number), to=to)
            await server.hub.sealer.seal_now()
            return {name: numbers(outbox) for name, outbox in outboxes.items()}


def drawn() -> tuple[list[str], list[list[str]]]:
    """Subscriptions and messages, some with addresses."""
    rng = random.Random(7)
    plain = {",".join(sorted(rng.sample(TAGS, rng.randint(1, 4)))) for _ in range(25)}
    messages = []
    for _ in range(400):
        addresses = rng.sample(TOPICS, rng.randint(0, 2)) + rng.sample(SUBJECTS, rng.randint(0, 1))
        messages.append([*addresses, *rng.sample(TAGS, rng.randint(1, 7))])
    return sorted([*plain, *ASKED]), messages


async def check(spark: Any, folder: Path, names: list[str], heard: Any, who: Attributes) -> None:
    source = Archived(Archive.open(folder / "archive"))
    counted = match.run(spark, source, pa.array(names), attributes=who)
    assert isinstance(counted, Result)
    assert {row["subscription"]: row["messages"] for row in counted.table.to_pylist()} == {
        name: len(got) for name, got in heard.items()
    }
    paired = match.run(spark, source, pa.array(names), pairs=True, attributes=who)
    assert isinstance(paired, LargeResult)
    found = Counter((row.subscription, row.id) for row in paired.frame.collect())
    assert found == Counter((name, number) for name, got in heard.items() for number in got)
    assert len(found) > 500


async def test_spark_finds_for_each_subscription_what_its_subscriber_got(
    spark: Any, tmp_path: Path
) -> None:
    names, messages = drawn()
    names.append("*")
    heard = await heard_by(tmp_path, names, messages, NO_ATTRIBUTES)
    assert 0 < len(heard["*"]) < len(messages)  # not what is for some only
    await check(spark, tmp_path, names, heard, NO_ATTRIBUTES)


async def test_and_for_somebody_what_that_one_got(spark: Any, tmp_path: Path) -> None:
    names, messages = drawn()
    heard = await heard_by(tmp_path, names, messages, WHO)
    await check(spark, tmp_path, names, heard, WHO)
