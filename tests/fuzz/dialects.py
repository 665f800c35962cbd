"""The protocols: how each is begun, what inputs are, and a question that only one answer fits.

An *input* is what the protocol reads as one thing: a line, an object, a command, a frame, a
request. Of every ten some are valid, most break one rule, and some are bytes at random.
"""

import base64
import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final
from urllib.parse import quote

from tests.fuzz.mutation import Dice, mutate
from tests.fuzz.vocabulary import FULL, HOSTILE, json_value, name, number, place, tag, tags, token

__all__ = ["DIALECTS", "Dialect", "Http"]

_HOST: Final = b"Host: localhost\r\n"


class Dialect(ABC):
    """One protocol."""

    listener: ClassVar[str] = "tcp"
    """The scheme of the listener that it is spoken at."""
    begun: ClassVar[bytes] = b"pong\n"
    """Stands in the answer to `begin`, and not before its end."""
    ends_early: ClassVar[bool] = True
    """Whether a client that has ended its side still gets all its answers."""
    endless: ClassVar[bool] = False
    """Whether hardly any error ends a conversation."""
    mutated: ClassVar[float] = 0.2
    """The part of inputs whose bytes are changed, at the wildest."""

    def begin(self) -> bytes:
        """What a connection begins with; it is valid, and always answered."""
        return b""

    def input(self, rng: Dice) -> bytes:
        """One input."""
        made = self.make(rng)
        return mutate(rng, made, self.make(rng)) if rng.breaks(self.mutated) else made

    @abstractmethod
    def make(self, rng: Dice) -> bytes:
        """An input by the protocol's grammar, whatever it says."""

    @abstractmethod
    def question(self, number: int) -> bytes:
        """Something that is always answered in its turn, and in a way of its own."""

    @abstractmethod
    def answer(self, number: int) -> bytes:
        """What stands in the answer to that question, and nowhere else."""


def _data(rng: Dice) -> bytes:
    size = rng.choices((0, 5, 100, 2_000, 70_000), (10, 60, 20, 5, 0.1))[0]
    return rng.choice((b"x" * size, rng.randbytes(min(size, 100)).replace(b"\n", b"")))


def _audience(rng: Dice) -> str:
    fields = []
    for _ in range(rng.randint(0, 3)):
        key = rng.choice(("users", "groups", "clients", "except", "site", "plan", "", "a=b"))
        values = ";".join(quote(tag(rng)) for _ in range(rng.randint(0, 3)))
        fields.append(f"{key}={values}")
    return "&".join(fields)


def _since(rng: Dice) -> str:
    return rng.choice((str(place(rng)), f"{name(rng)}:{place(rng)}", "x", "", "-0", "05", ":5"))


class Line(Dialect):
    """The line protocol."""

    endless = True

    _COMMANDS: ClassVar = (
        *("publish", "publish", "publish", "subscribe", "subscribe", "unsubscribe", "list"),
        *("listall", "who", "register", "unregister", "set", "unset", "tags", "set-attr", "attr"),
        *("echo", "escape", "ids", "publish-to", "store", "last", "resume", "auth", "ping"),
    )

    def make(self, rng: Dice) -> bytes:
        word = rng.choice(self._COMMANDS)
        fields = {
            "publish": lambda: (",".join(tags(rng)), _data(rng).decode("latin-1")),
            "store": lambda: (",".join(tags(rng)), _data(rng).decode("latin-1")),
            "publish-to": lambda: (_audience(rng), ",".join(tags(rng)), "x"),
            "subscribe": lambda: (",".join(tags(rng)), *([_since(rng)] * (rng.random() < 0.3))),
            "unsubscribe": lambda: (",".join(tags(rng)),),
            "resume": lambda: (
                _since(rng),
                *(",".join(tags(rng)) for _ in range(rng.randint(1, 3))),
            ),
            "register": lambda: (",".join(tags(rng)), token(rng)),
            "set": lambda: (",".join(tags(rng)), token(rng)),
            "unset": lambda: (",".join(tags(rng)), token(rng)),
            "set-attr": lambda: (token(rng), _audience(rng)),
            "unregister": lambda: (token(rng),),
            "tags": lambda: (token(rng),),
            "attr": lambda: (token(rng),),
            "auth": lambda: (token(rng),),
            "echo": lambda: (rng.choice(("on", "off", "x")),),
            "escape": lambda: (rng.choice(("on", "off", "x")),),
            "ids": lambda: (rng.choice(("on", "off", "x")),),
        }.get(word, tuple)()
        if rng.random() < 0.05:
            fields = (*fields, name(rng))
        return " ".join((word, *fields)).encode("utf-8", "surrogatepass") + b"\n"

    def begin(self) -> bytes:
        return b"ping\n"

    def question(self, number: int) -> bytes:
        return b"\nquestion-%d\n" % number  # a line of its own, whatever came before

    def answer(self, number: int) -> bytes:
        return b"'[question-%d]'" % number


class Json(Dialect):
    """JSON objects over TCP."""

    begun = b'"pong"}\n'

    _COMMANDS: ClassVar = (
        *("publish", "publish", "subscribe", "subscribe", "unsubscribe", "list", "listall", "who"),
        *("register", "unregister", "set", "unset", "tags", "auth", "ping", "nosuch", ""),
    )
    mutated = 0.1

    def make(self, rng: Dice) -> bytes:
        return _written(rng, self.fields(rng))

    def fields(self, rng: Dice) -> dict[str, Any]:
        """An object's fields."""
        command = rng.choice(self._COMMANDS)
        if command == "auth" and not rng.breaks(0.01):  # a wrong one ends the connection, slowly
            return {"command": command, "data": FULL}
        data = token(rng) if command in ("register", "set", "unset", "tags") else tag(rng)
        found: dict[str, Any] = {"command": command, "tags": tags(rng), "data": data}
        return _changed(rng, found)

    def begin(self) -> bytes:
        return b'{"command":"ping"}'

    def question(self, number: int) -> bytes:
        return b'{"command":"question-%d"}' % number

    def answer(self, number: int) -> bytes:
        return b'"question-%d"' % number


def _changed(rng: Dice, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with one of them missing, of another type or of another name, now and then."""
    if rng.random() < 0.25:
        del fields[rng.choice(list(fields))]
    if rng.random() < 0.15:
        fields[rng.choice(list(fields) or ["x"])] = json_value(rng)
    if rng.random() < 0.1:
        fields[tag(rng)] = json_value(rng)
    return fields


def _written(rng: Dice, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))
    return text.encode("utf-8", "replace")


class Nats(Dialect):
    """NATS and rtmb."""

    listener = "nats"
    begun = b"PONG\r\n"
    mutated = 0.1
    _SUBJECTS: ClassVar = ("foo", "foo.bar", "foo.*", "foo.>", ">", "*", "a.b.c", "foo..bar", "")

    def _subject(self, rng: Dice) -> str:
        return rng.choice(HOSTILE) if rng.random() < 0.05 else rng.choice(self._SUBJECTS)

    def make(self, rng: Dice) -> bytes:
        data = _data(rng)
        size = len(data) + (rng.choice((1, -1, 10**7, -len(data) - 5)) if rng.breaks(0.05) else 0)
        headers = b"NATS/1.0\r\n" + b"a: %b\r\n" % name(rng).encode() * rng.randrange(3) + b"\r\n"
        sid = rng.choice(("1", "2", "3", "x", ""))
        subject = self._subject(rng)
        reply = rng.choice(("", "", " inbox.1", " *", " ."))
        options = {"verbose": rng.random() < 0.5, "echo": rng.random() < 0.5, "headers": True}
        line = rng.choice(
            (
                f"PUB {subject}{reply} {size}",
                f"PUB {subject}{reply} {size}",
                f"HPUB {subject}{reply} {len(headers)} {len(headers) + size}",
                f"SUB {subject} {rng.choice(('', 'q ', 'q1 '))}{sid}",
                f"SUB {subject} {sid}",
                f"UNSUB {sid} {rng.choice(('', '1', '2', '-1', 'x'))}",
                "PING",
                "PONG",
                "+OK",
                f"CONNECT {json.dumps(_changed(rng, dict(options)))}",
                f"{tag(rng)} {tag(rng)}",
            )
        )
        wire = line.encode("utf-8", "replace") + b"\r\n"
        if line.startswith("PUB"):
            wire += data + b"\r\n"
        elif line.startswith("HPUB"):
            wire += headers + data + b"\r\n"
        return wire

    def begin(self) -> bytes:
        return b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n'

    def question(self, number: int) -> bytes:
        return b"\r\nQUESTION-%d\r\n" % number

    def answer(self, number: int) -> bytes:
        return b"unknown command: QUESTION-%d'" % number


class Frames(Dialect):
    """mist's own frames on a WebSocket."""

    listener = "http"
    begun = b"\r\n\r\n"
    mutated = 0.1
    _COMMANDS: ClassVar = ("subscribe", "subscribe", "unsubscribe", "list", "ping", "publish", "x")
    _PATH: ClassVar = "/subscribe/websocket"
    _SUBPROTOCOL: ClassVar = "mist.v1"

    def begin(self) -> bytes:
        return (
            b"GET %b HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\nX-Auth-Token: %b\r\n"
            b"Sec-WebSocket-Protocol: %b\r\n\r\n"
            % (
                self._PATH.encode(),
                _HOST,
                base64.b64encode(bytes(16)),
                FULL.encode(),
                self._SUBPROTOCOL.encode(),
            )
        )

    def make(self, rng: Dice) -> bytes:
        text = self.text(rng)
        if rng.breaks(0.1):
            text = mutate(rng, text, self.text(rng))
        kind = rng.randrange(100 if rng.breaks(1.0) else 98)
        if kind < 80:
            return _frame(rng, 1, text)
        if kind < 85:
            return _frame(rng, 2, text)
        if kind < 92:  # in pieces, with a ping in between
            at = rng.randrange(len(text) + 1)
            ping = _frame(rng, 9, b"p") if rng.random() < 0.5 else b""
            return _frame(rng, 1, text[:at], final=False) + ping + _frame(rng, 0, text[at:])
        if kind < 98:
            return _frame(rng, rng.choice((9, 10)), text[: rng.choice((0, 5, 125))])
        if kind < 99:  # unmasked, reserved, too large for a control frame, out of turn
            return _frame(
                rng,
                rng.choice((0, 1, 3, 8, 9, 11, 15)),
                text[:200],
                final=rng.random() < 0.5,
                reserved=rng.choice((0, 0, 4, 7)),
                masked=rng.random() < 0.5,
            )
        return _frame(rng, 8, rng.choice((b"", b"\x03\xe8", b"\x00", b"\x03\xe8\xff", b"\xff\xff")))

    def text(self, rng: Dice) -> bytes:
        """A message."""
        command = rng.choice(self._COMMANDS)
        fields: dict[str, Any] = {"command": command, "tags": tags(rng)}
        if command == "publish":
            fields |= _message(rng)
        elif rng.random() < 0.2:
            fields["subscriptions"] = [tags(rng) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.2:
            fields["since"] = rng.choice(
                (place(rng), _since(rng), {"epoch": name(rng), "id": place(rng)})
            )
        if rng.random() < 0.3:
            fields["ref"] = json_value(rng)
        return _written(rng, _changed(rng, fields))

    def question(self, number: int) -> bytes:
        return _frame(None, 9, b"question-%d." % number)

    def answer(self, number: int) -> bytes:
        return b"question-%d." % number


def _message(rng: Dice) -> dict[str, Any]:
    """The fields of a publish; now and then one that doesn't fit."""
    fields: dict[str, Any] = {"data": tag(rng)}
    if rng.random() < 0.2:
        fields = {"data64": rng.choice(("/w==", "eA", "x", "", 7))}
    for key, value in (("to", {"users": [name(rng)]}), ("key", name(rng))):
        if rng.random() < 0.3:
            fields[key] = value if rng.random() < 0.9 else json_value(rng)
    return fields


def _frame(
    rng: Dice | None,
    opcode: int,
    payload: bytes,
    *,
    final: bool = True,
    reserved: int = 0,
    masked: bool = True,
) -> bytes:
    """A client's frame (RFC 6455, section 5.2)."""
    size = len(payload)
    head = bytearray([final << 7 | reserved << 4 | opcode])
    mask = b"\0\0\0\0" if rng is None else rng.randbytes(4)
    if size < 126:
        head.append(masked << 7 | size)
    elif size < 65_536:
        head += bytes([masked << 7 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([masked << 7 | 127]) + size.to_bytes(8, "big")
    if not masked:
        return bytes(head) + payload
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    body = (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")
    return bytes(head) + mask + body


class JsonFrames(Frames):
    """JSON objects in the messages of a WebSocket."""

    _SUBPROTOCOL = "mist.json"

    def text(self, rng: Dice) -> bytes:
        return b" ".join(Json().make(rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))


class Guble(Frames):
    """guble's commands in the messages of a WebSocket."""

    _PATH = "/stream/user/u1"
    _SUBPROTOCOL = "mist.topics"

    def text(self, rng: Dice) -> bytes:
        path = rng.choice(("/foo", "/foo/bar", "/rooms/1", "/", tag(rng)))
        start = rng.choice(("", "", f" {place(rng)}", f" {place(rng)} {number(rng)}", " x"))
        headers = rng.choice(("", "{}", '{"a":"b"}', "[]", "x", json.dumps(json_value(rng))))
        body = _data(rng).decode("latin-1")
        return rng.choice(
            (
                f"> {path} {name(rng)}\n{headers}\n\n{body}",
                f"> {path}\n{headers}\n{body}",
                f"+ {path}{start}",
                f"+ {path}{start}",
                f"- {path}",
                f"{tag(rng)} {path}",
                "",
            )
        ).encode("utf-8", "replace")


_FITTING: Final = {
    "/v1/messages": ("GET", "POST", "POST", "POST"),
    "/v1/tickets": ("POST",),
    "/v1/log/stage/t/1/2/3/4": ("PUT",),
    "/v1/log/stage/t/1": ("DELETE",),
    "/v1/log/commit": ("POST",),
    "/v1/tokens": ("GET", "PUT", "PUT"),
    "/v1/tokens/9f86d081884c7d65": ("GET", "PATCH", "DELETE"),
    "/api/message/foo": ("POST",),
    "/message-bus/c1/poll": ("POST",),
}
"""Methods that a path has; others have GET."""


class Http(Dialect):
    """Requests to every route."""

    listener = "http"
    begun = b"}"
    ends_early = False
    mutated = 0.1
    _PATHS: ClassVar = (
        *(
            "/v1/messages",
            "/v1/messages",
            "/v1/messages",
            "/v1/messages",
            "/v1/poll",
            "/v1/tickets",
            "/v1/endpoints",
            "/v1/log",
        ),
        *("/v1/log/position", "/v1/log/stage/t/1/2/3/4", "/v1/log/stage/t/1", "/v1/log/commit"),
        *("/v1/tokens", "/v1/tokens/9f86d081884c7d65", "/v1/connections", "/v1/subscriptions"),
        *("/v1/tags", "/v1/stats", "/healthz", "/readyz", "/metrics", "/", "/mist.js", "/nosuch"),
        *("/static/../x", "/openapi.json", "/api/message/foo", "/api/subscribers/foo"),
        *("/message-bus/c1/poll", "/stream/user/u1", "/subscribe/websocket", "*", "//"),
        "http://localhost/healthz",
    )
    _METHODS: ClassVar = (
        *(
            "GET",
            "GET",
            "GET",
            "POST",
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
            "OPTIONS",
            "HEAD",
            "TRACE",
        ),
    )
    _KINDS: ClassVar = (
        *("application/json", "application/json", "application/x-ndjson", "text/plain", ""),
        *("application/x-www-form-urlencoded", "application/vnd.apache.arrow.stream"),
    )

    def make(self, rng: Dice) -> bytes:
        path = rng.choice(self._PATHS)
        methods = _FITTING.get(path, ("GET",)) if rng.random() < 0.6 else self._METHODS
        method = rng.choice(methods)
        if rng.breaks(0.01):  # which ends with its connection
            path = "/v1/stream"
        body = self.body(rng, path) if method != "GET" else b""
        return self.request(rng, method, path + self.query(rng, path), body)

    def query(self, rng: Dice, path: str) -> str:
        """A query string, its mark included, or nothing."""
        fields = ["timeout=0"] if path == "/v1/poll" else []
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            key = rng.choice(("tags", "tags", "since", "limit", "after", "dlp", "client", "userId"))
            value = {"tags": ",".join(tags(rng)[:20]), "since": _since(rng)}.get(key, tag(rng))
            fields.append(f"{key}={quote(value, errors='replace')}")
        return "?" + "&".join(fields) if fields else ""

    def body(self, rng: Dice, path: str) -> bytes:
        """A request's body."""
        if rng.random() < 0.1:
            return _written(rng, json_value(rng))
        if path == "/v1/log/commit":
            return _written(rng, _changed(rng, {"txn": "t", "batch": 1, "parts": ["x"]}))
        if path.startswith("/v1/tokens"):
            # Always with its text: tokens that the server makes up would be ever more.
            return _written(rng, {**_changed(rng, {"tags": tags(rng)}), "token": token(rng)})
        messages = [
            _changed(rng, {"tags": tags(rng), "data": tag(rng), "to": {"users": [name(rng)]}})
            for _ in range(rng.choice((1, 1, 2, 5)))
        ]
        if rng.random() < 0.3:
            return b"\n".join(_written(rng, each).replace(b"\n", b"") for each in messages)
        return _written(rng, messages if rng.random() < 0.5 else messages[0])

    def request(self, rng: Dice, method: str, target: str, body: bytes) -> bytes:
        """A request of these, with headers at random."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
        if rng.random() < 0.8:
            kind = "application/json" if rng.random() < 0.6 else rng.choice(self._KINDS)
            lines.append(f"Content-Type: {kind}")
        if rng.random() < 0.4:
            lines.append(f"X-Auth-Token: {FULL}")
        for _ in range(rng.choice((0, 0, 1, 2))):
            lines.append(
                rng.choice(
                    (
                        "Origin: http://localhost:3000",
                        "Origin: null",
                        "Dont-Chunk: true",
                        "Sec-Fetch-Site: same-origin",
                        "Accept: text/event-stream",
                        f"Last-Event-ID: {_since(rng)}",
                        f"Idempotency-Key: {name(rng)}",
                        f"X-Guble-{name(rng)}: 1",
                        "Expect: 100-continue",
                        "If-None-Match: *",
                        "Access-Control-Request-Method: POST",
                        f"X-Forwarded-For: {tag(rng)}, 203.0.113.{rng.randrange(9)}",
                        "Forwarded: for=203.0.113.9;proto=https;host=localhost",
                        "X-Forwarded-Prefix: /mist",
                    )
                )
            )
        if rng.breaks(0.02):  # which a trusted proxy can't mean
            header = rng.choice(("X-Forwarded-For", "X-Forwarded-Prefix", "Forwarded"))
            lines.append(f"{header}: {tag(rng)}".replace("\x00", ""))
        head = "\r\n".join(lines).encode("latin-1", "replace")
        if body and (rng.breaks(0.15) or rng.random() < 0.003):  # unread, it ends the connection
            at = rng.randrange(1, len(body) + 1)
            pieces = [piece for piece in (body[:at], body[at:]) if piece]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        if rng.breaks(0.03):  # framed wrongly: a body that is longer or shorter than it says
            return head + b"\r\nContent-Length: %d\r\n\r\n" % rng.randrange(50) + body
        if rng.breaks(0.03):
            return head + b"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def begin(self) -> bytes:
        return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def question(self, number: int) -> bytes:
        return b"GET /healthz HTTP/1.1\r\n%bX-Request-Id: question-%d.\r\n\r\n" % (_HOST, number)

    def answer(self, number: int) -> bytes:
        return b"x-request-id: question-%d.\r\n" % number


class Bus(Http):
    """MessageBus polls."""

    mutated = 0.1

    def make(self, rng: Dice) -> bytes:
        if rng.random() < 0.05:
            return self.request(rng, "POST", "/v1/messages", self.body(rng, "/v1/messages"))
        # Mostly a client id of its own: of two polls with one id the older ends its connection.
        shared = ("c1", "%00", quote(tag(rng)) or "x")
        client = rng.choice(shared) if rng.random() < 0.05 else quote(rng.label, safe="")
        path = f"/message-bus/{client}/poll"
        places: dict[str, Any] = {
            rng.choice(("/foo", "/bar", "/foo/bar", "/global/x", tag(rng))): rng.choice(
                (place(rng), number(rng), str(place(rng)), json_value(rng))
            )
            for _ in range(rng.choice((1, 1, 2, 4)))
        }
        if rng.random() < 0.3:
            places["__seq"] = number(rng)
        body = _written(rng, places)
        if rng.random() < 0.3:
            body = "&".join(f"{quote(key)}={quote(str(places[key]))}" for key in places).encode()
        lines = f"POST {path}?dlp=t HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: {FULL}\r\n"
        kind = rng.choice(("application/json", "application/json", self._KINDS[-2], "text/plain"))
        lines += f"Content-Type: {kind}\r\n"
        if rng.random() < 0.5:
            lines += "Dont-Chunk: true\r\n"
        size = rng.randrange(100) if rng.breaks(0.03) else len(body)
        return lines.encode() + b"Content-Length: %d\r\n\r\n" % size + body


DIALECTS: Final[dict[str, Dialect]] = {
    "line": Line(),
    "json": Json(),
    "nats": Nats(),
    "frames": Frames(),
    "json-frames": JsonFrames(),
    "guble": Guble(),
    "http": Http(),
    "message-bus": Bus(),
}
