"""A process that appends as fast as it can and says what was acknowledged. Killed by tests.

    python -m tests.history.writer URL

Each line it prints is `FIRST COUNT NAME`, written only after `append` returned; every
message's data is the name of its group and its place in it.
"""

import os
import sys

import trio

from mist.history import Policy, Rule
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history
from tests.history.messages import publication, run


async def main(url: str) -> None:
    history = await open_history(url)
    policy = Policy(max_messages=2_000, rules=(Rule("odd", count=50),))
    async with trio.open_nursery() as nursery:
        if "--keep" in sys.argv:
            nursery.start_soon(run_maintenance, history, policy)
        for writer in range(4):
            nursery.start_soon(write, history, f"{os.getpid()}.{writer}")


async def write(history, name):
    number = 0
    while True:
        number += 1
        count = number % 7 + 1
        data = [f"{name}.{number}/{place}" for place in range(count)]
        tags = "odd" if number % 2 else "even"
        first = await history.append([publication(run(f"{tags},all", *data))])
        os.write(1, f"{first} {count} {name}.{number}\n".encode())


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
