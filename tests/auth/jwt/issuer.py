"""An issuer of JWTs for tests: keys, tokens of them, and a JWKS as a file or over HTTP."""

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

SECRET = b"0123456789abcdef0123456789abcdef"

KEYS: dict[str, Any] = {
    "rsa": RSAKey.generate_key(2048),
    "other": RSAKey.generate_key(2048),
    "p256": ECKey.generate_key("P-256"),
    "p384": ECKey.generate_key("P-384"),
    "p521": ECKey.generate_key("P-521"),
    "ed": OKPKey.generate_key("Ed25519"),
    "secret": OctKey.import_key(SECRET),
}
ALGORITHMS = {
    "rsa": "RS256",
    "other": "RS256",
    "p256": "ES256",
    "p384": "ES384",
    "p521": "ES512",
    "ed": "EdDSA",
    "secret": "HS256",
}


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims, with changes; None leaves one out."""
    now = int(time.time())
    made = {
        "iss": "https://id.example",
        "aud": "mist",
        "sub": "marvin",
        "jti": "t1",
        "iat": now,
        "exp": now + 600,
        "mist": {"tags": ["room:1", ">room:1"], "attributes": {"groups": ["staff"]}},
    } | changes
    return {name: value for name, value in made.items() if value is not None}


def sign(
    body: Any = None, key: str = "rsa", header: dict[str, Any] | None = None, alg: str | None = None
) -> str:
    """A token, signed with a key."""
    algorithm = alg or ALGORITHMS[key]
    kid = {} if key == "secret" else {"kid": key}
    fields = {"alg": algorithm, "typ": "JWT", **kid, **(header or {})}
    head = {name: value for name, value in fields.items() if value is not None}
    signed = f"{part(head)}.{part(claims() if body is None else body)}"
    model = JWSRegistry.algorithms["EdDSA" if algorithm == "Ed25519" else algorithm]
    return f"{signed}.{part(model.sign(signed.encode(), KEYS[key]))}"


def forge_hmac(secret: bytes, body: Any = None) -> str:
    """A token by HS256, whose secret is what an attacker knows."""
    signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims() if body is None else body)}"
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def public(name: str, **changes: Any) -> dict[str, Any]:
    """The public key, as in a JWKS, with changes; None leaves a field out."""
    jwk = {**KEYS[name].as_dict(private=False), "kid": name, **changes}
    return {field: value for field, value in jwk.items() if value is not None}


def jwks(*names: str) -> bytes:
    return json.dumps({"keys": [public(name) for name in names]}).encode()


def write_jwks(path: Path, *names: str) -> Path:
    path.write_bytes(jwks(*names))
    return path


class Site:
    """A web server in a thread. Its answers can be changed while it runs.

    Attributes:
        status, body, headers: of the answers.
        delay: seconds before each.
        asked: bodies of the requests.
    """

    def __init__(self, body: bytes) -> None:
        self.status, self.body, self.delay = 200, body, 0.0
        self.headers: dict[str, str] = {}
        self.asked: list[bytes] = []
        self.seen: list[dict[str, str]] = []
        self.url = ""

    def answer(self, asked: bytes) -> tuple[int, bytes]:
        return self.status, self.body


def fails(it: Site) -> None:
    """What an answer may be that can't be used: this one, and the next two."""
    it.status = 500


def huge(it: Site) -> None:
    it.body = b" " * 20_000_000


def slow(it: Site) -> None:
    it.delay = 1.0


@contextmanager
def site(body: bytes = b"", answers: type[Site] = Site) -> Iterator[Site]:
    it = answers(body)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0)))
            it.asked.append(asked)
            it.seen.append({name.lower(): value for name, value in self.headers.items()})
            time.sleep(it.delay)
            status, answer = it.answer(asked)
            try:
                self.send_response(status)
                for name, value in it.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:  # the other side has gone
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    it.url = f"http://127.0.0.1:{server.server_address[1]}/jwks.json"
    try:
        yield it
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
