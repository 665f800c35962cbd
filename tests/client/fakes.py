"""Fake servers on real sockets that answer as a test scripts, one connection at a time."""

import contextlib
import json
from collections.abc import Callable

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

Lines = list[str]


class Fake:
    """A server of either dialect that answers by rote.

    Attributes:
        answers: what a command is answered with where its beginning stands here; lines for
            `tcp`, and frames without their `ref` for `ws`. Instead of all that is usual.
        asked: every command so far.
        connections: how many there have been.
        newest: the id that it says is the last.
        url: for the client.
    """

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.answers: dict[str, Callable[[int], Lines]] = {}
        self.asked: list[str] = []
        self.connections = 0
        self.newest = 5
        self.url = ""
        self._push: Callable[[str], object] | None = None

    async def run(self, *, task_status: trio.TaskStatus["Fake"]) -> None:
        async with trio.open_nursery() as nursery:
            if self.dialect == "tcp":
                serve = trio.serve_tcp
                listeners = await nursery.start(
                    lambda task_status: serve(
                        self._lines, 0, host="127.0.0.1", task_status=task_status
                    )
                )
                port = listeners[0].socket.getsockname()[1]
            else:
                server = await nursery.start(serve_websocket, self._frames, "127.0.0.1", 0, None)
                port = server.port
            self.url = f"{self.dialect}://127.0.0.1:{port}"
            task_status.started(self)

    async def push(self, *texts: str) -> None:
        """Send to the newest connection what was not asked for."""
        assert self._push is not None
        for text in texts:
            await self._push(text)

    def deliver(self, id_: object, data: str = "x", tags: str = "a") -> str:
        """A delivery in this dialect's form."""
        if self.dialect == "tcp":
            return f"message {id_} {tags} {data}"
        return json.dumps({"keys": tags.split(","), "data": data, "id": id_})

    def gap(self, first: int) -> str:
        """What tells of a gap in the middle."""
        if self.dialect == "tcp":
            return f"gap E {first}"
        return json.dumps({"success": False, "command": "gap", "epoch": "E", "id": first})

    def _find(self, command: str) -> Lines | None:
        self.asked.append(command)
        for beginning, answer in self.answers.items():
            if command.startswith(beginning):
                return answer(self.connections)
        return None

    async def _lines(self, stream: trio.SocketStream) -> None:
        self.connections += 1

        turn = trio.Lock()

        async def push(text: str) -> None:
            async with turn:
                await stream.send_all(text.encode() + b"\n")

        self._push = push
        held = b""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    usual = {"ping": ["pong"], "last": [f"last E {self.newest}"]}
                    found = self._find(line.decode())
                    for text in usual.get(line.decode(), []) if found is None else found:
                        await push(text)

    async def _frames(self, request: WebSocketRequest) -> None:
        self.connections += 1
        websocket = await request.accept(subprotocol="mist.v1")
        self._push = websocket.send_message
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = json.loads(await websocket.get_message())
                ref = frame.pop("ref")
                found = self._find(json.dumps(frame))
                if found is None:
                    usual = {"success": True, "command": frame["command"]}
                    if "since" in frame:
                        usual |= {"epoch": "E", "id": self.newest, "recovered": True}
                    found = [json.dumps(usual)]
                for text in found:
                    await websocket.send_message(json.dumps({**json.loads(text), "ref": ref}))
