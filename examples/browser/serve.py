"""Serve the browser page on this machine: http://127.0.0.1:8000/.

    python examples/browser/serve.py

A page opened as a file has no origin, and mist accepts only pages from allowed origins. Loopback
origins are allowed as long as mist listens on loopback only.
"""

import argparse
import base64
import hashlib
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).with_name("index.html")


def policy_for(page: bytes) -> str:
    """A Content-Security-Policy that allows only the page's own scripts and styles.

    They are listed by hash, so an injected one does not run, and text can't become markup
    (`require-trusted-types-for`).
    """

    def hashes(tag: bytes) -> str:
        found = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each).digest()).decode() for each in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(b'script')}; style-src {hashes(b'style')}; "
        "connect-src ws: wss:; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


class Handler(BaseHTTPRequestHandler):
    """Serves one page, read at each request so that it can be edited while this runs."""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/index.html"):
            self.send_error(404)
            return
        page = PAGE.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Content-Security-Policy", policy_for(page))
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port")
    options = parser.parse_args()
    try:
        with ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as server:
            print(f"open http://127.0.0.1:{server.server_port}/", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    except OSError as error:
        sys.exit(f"serve: port {options.port}: {error.strerror}; try --port 0")
