"""A chat: browsers subscribe to mist and publish through this service. http://127.0.0.1:8001/

    python examples/chat/serve.py

Browsers don't publish to mist here: a service that knows the author publishes for them. A user
who joins a room gets a token, which grants that room and nothing else, and which authenticates
requests to this service too. Leaving the room, or an hour of inactivity, revokes it.

It is one process, with the standard library and mist's synchronous client. It is an example, not a
product: there are no passwords, and users choose any name.
"""

import argparse
import json
import os
import re
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mist
from mist.client.sync import Client, connect
from mist.errors import MistError

HERE = Path(__file__).parent
STATIC = Path(mist.__file__).parent / "static"
PAGES = {
    "/": (HERE / "index.html", "text/html; charset=utf-8"),
    "/chat.js": (HERE / "chat.js", "text/javascript; charset=utf-8"),
    "/chat.css": (HERE / "chat.css", "text/css; charset=utf-8"),
    "/mist.js": (STATIC / "mist.js", "text/javascript; charset=utf-8"),
}
ROOM = re.compile(r"[a-z0-9-]{1,40}")
MAX_NAME = 40  # characters
MAX_TEXT = 2_000  # characters
MAX_BODY = 16_384  # bytes
IDLE = 3_600.0  # seconds
MAX_MEMBERS = 1_000


class Refused(Exception):
    """An error response: an HTTP status and a text for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Rooms:
    """The members of the rooms, by token."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._members: dict[str, tuple[str, str, float]] = {}  # name, room, last seen

    def join(self, name: str, room: str) -> str:
        """Add a member to a room. Returns their token."""
        name = " ".join(name.split())
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise Refused(400, f"a name has 1 to {MAX_NAME} characters")
        if not ROOM.fullmatch(room):
            raise Refused(400, "a room name has lowercase letters, digits and dashes")
        token = secrets.token_urlsafe(32)
        self._forget_idle()
        with self._lock:
            if len(self._members) >= MAX_MEMBERS:
                raise Refused(503, "the chat is full")
            self._client.register([f"room:{room}"], token)
            self._client.ping()  # the fence: the token is registered now
            self._members[token] = (name, room, time.monotonic())
        return token

    def say(self, token: str, text: str) -> None:
        """Publish a member's message in their room, under their name."""
        if not 1 <= len(text.strip()) <= MAX_TEXT:
            raise Refused(400, f"a message has 1 to {MAX_TEXT} characters")
        with self._lock:
            name, room, _ = self._member(token)
            self._members[token] = (name, room, time.monotonic())
            said = {"name": name, "text": text.strip()}
            self._client.publish(["chat", f"room:{room}"], json.dumps(said))
            self._client.flush()

    def leave(self, token: str) -> None:
        """Remove a member and revoke their token."""
        with self._lock:
            self._member(token)
            del self._members[token]
            self._client.unregister(token)

    def _member(self, token: str) -> tuple[str, str, float]:
        found = self._members.get(token)
        if found is None:
            raise Refused(401, "join first")
        return found

    def _forget_idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            for token, (_, _, seen) in list(self._members.items()):
                if now - seen > IDLE:
                    del self._members[token]
                    self._client.unregister(token)


class Handler(BaseHTTPRequestHandler):
    """Serves the pages and three requests: join, say, leave."""

    rooms: Rooms
    mist_url: str
    timeout = 10  # seconds for a request to arrive

    def do_GET(self) -> None:
        page = PAGES.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(404)
            return
        path, kind = page
        policy = f"default-src 'self'; img-src data:; connect-src 'self' {self.mist_url} ws: wss:"
        self._send(200, path.read_bytes(), kind, policy)

    def do_POST(self) -> None:
        try:
            answer = self._handle(json.loads(self._body()))
        except Refused as refusal:
            self._answer(refusal.status, {"error": str(refusal)})
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400, {"error": "malformed request"})
        except MistError as error:
            print(f"mist: {error}", file=sys.stderr)
            self._answer(503, {"error": "the chat is unavailable at the moment"})
        else:
            self._answer(200, answer)

    def _body(self) -> bytes:
        # A page of another origin can't send this type without a preflight request.
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "expected JSON")
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= MAX_BODY:
            raise Refused(413, "the request is too long")
        return self.rfile.read(length)

    def _handle(self, request: dict[str, str]) -> dict[str, str]:
        match self.path:
            case "/join":
                token = self.rooms.join(request["name"], request["room"])
                return {"token": token, "url": self.mist_url}
            case "/say":
                self.rooms.say(request["token"], request["text"])
            case "/leave":
                self.rooms.leave(request["token"])
            case _:
                raise Refused(404, "no such request")
        return {}

    def _answer(self, status: int, value: dict[str, str]) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(
        self, status: int, body: bytes, kind: str, policy: str = "default-src 'none'"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy + "; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def main(port: int, tcp: str, http: str, secret: str | None) -> None:
    """Serve until Ctrl-C."""
    with connect(tcp, secret=secret) as client:
        client.ping()
        Handler.rooms = Rooms(client)
        Handler.mist_url = http
        with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
            print(f"open http://127.0.0.1:{server.server_port}/", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8001, help="0 picks a free port")
    parser.add_argument("--tcp", default="tcp://127.0.0.1:1445", help="where to publish")
    parser.add_argument("--http", default="http://127.0.0.1:8080", help="where browsers connect")
    options = parser.parse_args()
    try:
        main(options.port, options.tcp, options.http, os.environ.get("MIST_SECRET"))
    except KeyboardInterrupt:
        pass
    except MistError as error:
        sys.exit(f"serve: {error}; is mist running?")
    except OSError as error:
        sys.exit(f"serve: port {options.port}: {error.strerror}; try --port 0")
