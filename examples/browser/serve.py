"""Serve the browser page on this machine: http://127.0.0.1:8000/.

    python examples/browser/serve.py

A page that is opened as a file has no origin, and mist lets in only pages whose origin it
knows. Pages from loopback it knows, as long as it listens on loopback only.
"""

import argparse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    """Files beside this script, with a policy that keeps the page to itself and to mist."""

    def end_headers(self) -> None:
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src ws: wss:; img-src data:; base-uri 'none'; frame-ancestors 'none'",
        )
        self.send_header("Referrer-Policy", "no-referrer")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    options = parser.parse_args()
    handler = partial(Handler, directory=str(Path(__file__).parent))
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"open http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
