"""A service that publishes events: orders that are placed and paid.

python examples/events_service.py --count 5
"""

import argparse
import json
import os
import random

import trio

from mist.client import connect

REGIONS = ["eu", "us"]


async def main(url: str, secret: str | None, count: int, interval: float) -> None:
    """Publish `count` events, `interval` seconds apart."""
    # The client reconnects by itself; leaving the block waits until the server has everything.
    async with connect(url, secret=secret, wait=True) as client:
        for number in range(1, count + 1):
            event = random.choice(["placed", "paid"])
            region = random.choice(REGIONS)
            data = json.dumps({"order": number, "event": event, "region": region})
            await client.publish(["order", f"order:{number}", event, region], data)
            await trio.sleep(interval)
    print(f"{count} events published")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="tcp://127.0.0.1:1445", metavar="URL")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between events")
    options = parser.parse_args()
    try:
        trio.run(
            main,
            options.host,
            os.environ.get("MIST_SECRET"),
            options.count,
            options.interval,
        )
    except KeyboardInterrupt:
        pass
