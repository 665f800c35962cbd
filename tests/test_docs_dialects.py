"""docs/dialects.md and docs/websocket-protocol.md: each command, and transcripts played."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from mist.protocols.frames.commands import NAMES as FRAMES
from mist.protocols.json.commands import NAMES as OBJECTS
from mist.server import Server
from tests.endpoints import LISTEN
from tests.servers import running
from tests.transports.lines import talk
from tests.transports.websockets import open_websocket

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "dialects.md").read_text()


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def transcript(heading: str) -> list[tuple[str, str]]:
    [block] = re.findall(r"^```text\n(.*?)^```", section(heading), re.DOTALL | re.MULTILINE)
    return [(line[0], line[2:]) for line in block.splitlines()]


def pattern(expected: str) -> str:
    return ".*".join(map(re.escape, expected.split("…")))


@attrs.frozen
class Peer:
    send: Callable[[str], Awaitable[None]]
    receive: Callable[[], Awaitable[str]]


@asynccontextmanager
async def stream(server: Server, index: int, end: str) -> AsyncIterator[Peer]:
    async with talk(server, index) as lines:

        async def receive() -> str:
            return (await lines.line()).decode().rstrip("\r\n")

        yield Peer(lambda text: lines.send((text + end).encode()), receive)


@asynccontextmanager
async def websocket(server: Server) -> AsyncIterator[Peer]:
    async with open_websocket(server, "/stream/user/marvin") as socket:

        async def receive() -> str:
            return str(await socket.get_message()).replace("\n", "\\n")

        yield Peer(lambda text: socket.send_message(text.replace("\\n", "\n")), receive)


@pytest.mark.parametrize("heading", ["JSON", "NATS", "guble"])
async def test_a_transcript_is_what_happens(tmp_path: Path, heading: str) -> None:
    steps = transcript(heading)
    assert {direction for direction, _ in steps} == {"→", "←"}
    secret = {"secret": "SECRET"} if heading == "JSON" else {}
    async with running(tmp_path, listen=LISTEN, history="memory://", **secret) as server:
        opening = {
            "JSON": lambda: stream(server, 0, "\n"),
            "NATS": lambda: stream(server, 3, "\r\n"),
            "guble": lambda: websocket(server),
        }
        async with opening[heading]() as peer:
            with trio.fail_after(10):
                for direction, text in steps:
                    if direction == "→":
                        await peer.send(text)
                    else:
                        assert re.fullmatch(pattern(text), got := await peer.receive()), got


def test_every_command_of_json_is_named() -> None:
    text = section("JSON")
    assert [name for name in OBJECTS.values() if not re.search(rf"[`\"]{name}[`\"]", text)] == []


def test_every_command_of_a_websocket_is_named() -> None:
    text = (DOCS / "websocket-protocol.md").read_text()
    assert [name for name in FRAMES.values() if not re.search(rf"[`\"]{name}[`\"]", text)] == []
