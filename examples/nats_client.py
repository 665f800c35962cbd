"""Use mist with a NATS client: two workers form a queue group and answer requests.

Needs nats-py, and a server with a NATS listener:

    mist serve --listen tcp://127.0.0.1 --listen nats://127.0.0.1
    python examples/nats_client.py

The requests also reach every subscriber to `.order.>` that uses another protocol.
"""

import argparse
import asyncio

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg


async def work(client: Client, name: str) -> None:
    """Answer the requests that the queue group `billing` hands to this worker."""

    async def bill(message: Msg) -> None:
        await message.respond(f"{name} billed {message.subject}: {message.data.decode()}".encode())

    await client.subscribe("order.*", queue="billing", cb=bill)


async def main(url: str, token: str | None, orders: int) -> None:
    workers = [await nats.connect(url, token=token) for _ in range(2)]
    for number, worker in enumerate(workers, 1):
        await work(worker, f"worker {number}")
        await worker.flush()
    requester = await nats.connect(url, token=token)
    for number in range(orders):
        answer = await requester.request("order.eu", f"{number}".encode(), timeout=5)
        print(answer.data.decode(), flush=True)
    for client in (*workers, requester):
        await client.drain()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="nats://127.0.0.1:4222")
    parser.add_argument("--token", help="a token, or the server's secret")
    parser.add_argument("--orders", type=int, default=4, metavar="N")
    options = parser.parse_args()
    asyncio.run(main(options.url, options.token, options.orders))
