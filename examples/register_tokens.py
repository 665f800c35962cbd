"""An admin script: register the tokens of a file. It is idempotent.

    python examples/register_tokens.py tokens.txt

A line of the file is `TOKEN TAGS`, the tags joined by commas; empty lines and lines that begin
with # are skipped. A token that exists already gets exactly these tags; its connected clients keep
the subscriptions that are still allowed.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mist.client.sync import Client, connect
from mist.errors import MistError, RemoteError


def read(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """The tokens of a file, with their tags."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 2:
            raise SystemExit(f"{path}:{number}: expected TOKEN TAGS")
        yield fields[0], frozenset(fields[1].split(","))


def ensure(client: Client, token: str, tags: frozenset[str]) -> str:
    """Register `token` with exactly `tags`. Returns what was done."""
    try:
        client.register(tags, token)
    except RemoteError as error:
        if error.text != "already exists":
            raise
    else:
        return "registered"
    had = client.tags(token)
    if tags - had:
        client.set(tags - had, token)
    if had - tags:
        client.unset(had - tags, token)
    return "unchanged" if had == tags else "updated"


def main(url: str, secret: str | None, path: Path) -> None:
    """Register every token of the file at `path`."""
    with connect(url, secret=secret) as client:
        for number, (token, tags) in enumerate(read(path), 1):
            # The token itself is never printed: output ends up in logs.
            print(f"token {number} ({','.join(sorted(tags))}): {ensure(client, token, tags)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--host", default="tcp://127.0.0.1:1445", metavar="URL")
    options = parser.parse_args()
    try:
        main(options.host, os.environ.get("MIST_SECRET"), options.file)
    except (MistError, OSError) as error:
        sys.exit(f"register_tokens: {error}")
