"""Erasure in the history: through the server, or in its file where no server has it open."""

import json
from typing import Any

import trio

from mist.history.erasing import Erasure
from mist.history.opening import open_history
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import FIRST_TIMEOUT, Client

__all__ = ["erase_by_file", "erase_by_server"]

RETRY_TIMEOUT = 3600.0  # seconds for a server to scan its whole log


def erase_by_server(address: Address, erasure: Erasure) -> dict[str, Any]:
    """Have a server erase, and then seal its open segment, so that the archive has all of it.

    Raises:
        ServerUnavailable, ServerRefused: nothing was changed elsewhere.
    """
    what: dict[str, object] = {}
    if erasure.tags is not None:
        what["tags"] = sorted(erasure.tags)
    if erasure.publisher is not None:
        what["publisher"] = erasure.publisher
    with Client(address, retry_timeout=FIRST_TIMEOUT) as client:
        body = json.dumps(what).encode()
        kind = "application/json"
        answer = client.request("POST", "/v1/log/erase", body=body, content_type=kind).json()
        client.request("POST", "/v1/log/seal", body=b"", content_type=kind)
    return {
        "where": address.name,
        "messages": answer["erased"],
        "first": answer["first"] or None,
        "last": answer["last"] or None,
    }


def erase_by_file(url: str, erasure: Erasure) -> dict[str, Any]:
    """Erase in the file of a log that no server has open.

    Args:
        url: `sqlite:///…`; it must exist.

    Raises:
        StartupError: a server has the log open, or it can't be opened.
        HistoryUnavailable: the log can't be written.
    """
    erased = trio.run(_erase, url, erasure)
    return {
        "where": url,
        "messages": erased.messages,
        "first": erased.first or None,
        "last": erased.last or None,
    }


async def _erase(url: str, erasure: Erasure) -> Any:
    # Opening a log sets its durability, which only the server may change: it is kept here.
    async with await open_history(url, read_only=True) as reader:
        durability = (await reader.statistics()).durability
    async with await open_history(url, durability=durability) as log:
        return await log.erase(erasure)
