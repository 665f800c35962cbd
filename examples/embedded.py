"""mist inside another program: a server in its nursery, publishing and subscribing in process.

    python examples/embedded.py

The server runs in a nursery of the program and ends with it. Clients connect as to any server.
"""

import tempfile
from pathlib import Path

import trio

import mist
from mist.client import connect


async def count_down(hub: mist.Hub) -> None:
    """The program's own work. It publishes in process, without a socket."""
    for number in (3, 2, 1):
        hub.publish(frozenset({"countdown"}), str(number).encode())
        await trio.sleep(0.01)


async def main(data: Path) -> None:
    """A server on a free port, a client of it, and a subscriber in this process."""
    config = mist.Config(
        listen=(mist.Listen("tcp", "127.0.0.1", 0),), data=data, tokens="memory://"
    )
    async with mist.open_server(config) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        print(f"listening on {server.urls[0]}")
        with mist.subscribe(server.hub, ["countdown"]) as here:
            async with (
                connect(server.urls[0]) as client,
                client.subscribe(["countdown"]) as there,
            ):
                nursery.start_soon(count_down, server.hub)
                for _ in range(3):
                    print("in process:", (await anext(here)).text)
                    print("over TCP:  ", (await anext(there)).text)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
