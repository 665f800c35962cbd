"""What the README shows of other servers' clients, typed into a server as it stands there."""

import json
import re
import sys
from pathlib import Path

import pytest
import trio

from mist.config import Listen
from mist.server import Server
from tests.endpoints import LISTEN
from tests.servers import port_of, running
from tests.transports.lines import talk

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "README.md").read_text().split("## Clients of other servers")[1].split("\n## ")[0]


def shown(start: str) -> list[str]:
    """A command of the README and what stands below it."""
    block = SECTION.split(f"    $ {start}", 1)[1].split("\n\n")[0]
    return [line.strip() for line in (start + block).splitlines()]


async def run(command: list[str] | str) -> str:
    result = await trio.run_process(
        command, shell=isinstance(command, str), capture_stdout=True, capture_stderr=True
    )
    return result.stdout.decode()


@pytest.fixture
def endpoints() -> object:
    return {"listen": LISTEN, "history": "memory://"}


async def test_json(tmp_path: Path, endpoints: dict[str, object]) -> None:
    _, subscribe, ask, answer = shown("nc 127.0.0.1 1445")
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        with trio.fail_after(10):
            await peer.send(f"{subscribe}\n{ask}\n".encode())
            assert json.loads(await peer.line()) == json.loads(answer)


async def curl(server: Server, command: str) -> str:
    address = f"http://127.0.0.1:{port_of(server.urls[2])}"
    assert "http://127.0.0.1:8080" in command
    return await run(command.replace("http://127.0.0.1:8080", address) + " --silent --max-time 20")


async def test_guble_and_message_bus(tmp_path: Path, endpoints: dict[str, object]) -> None:
    publish, published = shown("curl -X POST 'http://127.0.0.1:8080/api")
    poll, polled = shown("curl -X POST 'http://127.0.0.1:8080/message-bus")
    async with running(tmp_path, **endpoints) as server:
        assert await curl(server, publish) == published
        assert json.loads(await curl(server, poll)) == json.loads(polled)


async def test_nats(tmp_path: Path, endpoints: dict[str, object]) -> None:
    async with running(tmp_path, **endpoints) as server:
        command = [sys.executable, str(ROOT / "examples/nats_client.py")]
        output = await run([*command, "--url", f"nats://127.0.0.1:{port_of(server.urls[3])}"])
    lines = output.splitlines()
    assert [line.split(" billed ")[1] for line in lines] == [f"order.eu: {n}" for n in range(4)]
    assert {re.sub(r" billed.*", "", line) for line in lines} <= {"worker 1", "worker 2"}


def test_the_listeners_are_some_that_the_program_knows() -> None:
    (options,) = re.findall(r"mist serve( --listen .*)", SECTION)
    found = [Listen.parse(url) for url in options.split()[1::2]]
    assert [(each.protocol, each.port) for each in found] == [
        ("tcp", 1445),
        ("http", 8080),
        ("nats", 4222),
    ]
