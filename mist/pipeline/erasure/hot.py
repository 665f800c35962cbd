"""Erasure in the history: through the server, or in its file where no server has it open.

A log of many GiB takes minutes to scan. So it is scanned in steps of a few seconds, each one a
request: the server gets its turns, progress is shown, an interrupted step is repeated, and after
a failure it is known what has been erased.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

from mist.history import History
from mist.history.erasure import Erased, Erasure
from mist.history.opening import open_history
from mist.pipeline.progress import Progress, silent
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import FIRST_TIMEOUT, Client
from mist.pipeline.source.errors import ServerRefused

__all__ = ["Report", "erase_by_file", "erase_by_server"]

STEP: Final = 5  # seconds of one request
RETRY_TIMEOUT: Final = 300.0  # seconds for a server that has answered before to do so again
STEP_TIMEOUT: Final = 120.0  # seconds; a step also waits for others, and ends with a whole change

Report = Callable[[dict[str, Any]], None]
"""Takes what has been erased so far, as in the receipt; called after each step."""


def erase_by_server(
    address: Address,
    erasure: Erasure,
    *,
    report: Report = lambda _: None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Have a server erase, and then seal its open segment, so that the archive has all of it.

    Takes as long as it takes; gives up where the server gives no answer.

    Raises:
        ServerUnavailable, ServerRefused: nothing was changed but what was reported.
    """
    with Client(address, retry_timeout=FIRST_TIMEOUT) as first:
        newest = first.request("GET", "/v1/log/position").json()["newest"]
    with Client(address, retry_timeout=RETRY_TIMEOUT, timeout=STEP_TIMEOUT) as client:
        steps = _Steps(address.name, newest, report, progress)
        while steps.after is not None:
            steps.add(_request_step(client, erasure, steps.after))
        _seal(client, newest, progress)
    return steps.told


def _request_step(client: Client, erasure: Erasure, after: int) -> Erased:
    what: dict[str, object] = {}
    if erasure.tags is not None:
        what["tags"] = sorted(erasure.tags)
    if erasure.publisher is not None:
        what["publisher"] = erasure.publisher
    answer = client.request(
        "POST",
        "/v1/log/erase",
        {"after": after, "seconds": STEP},
        body=json.dumps(what).encode(),
        content_type="application/json",
    ).json()
    return Erased(answer["erased"], answer["first"] or 0, answer["last"] or 0, answer["after"])


def _seal(client: Client, newest: int, progress: Progress) -> None:
    sealed = -1
    while sealed < newest:
        try:
            answer = client.request(
                "POST", "/v1/log/seal", {"seconds": STEP}, b"", "application/json"
            )
        except ServerRefused as error:
            if error.problem == "archive_off":
                return
            raise
        sealed = answer.json()["sealed"]
        if sealed < newest:
            progress(f"sealing: {sealed:,} of {newest:,}")


def erase_by_file(
    url: str,
    erasure: Erasure,
    *,
    report: Report = lambda _: None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Erase in the file of a log that no server has open.

    Args:
        url: `sqlite:///…`; it must exist.

    Raises:
        StartupError: a server has the log open, or it can't be opened.
        HistoryUnavailable: the log can't be written; what was reported is erased.
    """

    async def work() -> dict[str, Any]:
        # Opening a log sets its durability, which only the server may change: it is kept here.
        async with await open_history(url, read_only=True) as reader:
            durability = (await reader.statistics()).durability
        async with await open_history(url, durability=durability) as log:
            return await _erase(log, url, erasure, report, progress)

    return trio.run(work)


async def _erase(
    log: History, url: str, erasure: Erasure, report: Report, progress: Progress
) -> dict[str, Any]:
    steps = _Steps(url, (await log.position()).newest, report, progress)
    while steps.after is not None:
        steps.add(await log.erase(erasure, after=steps.after, seconds=STEP))
    return steps.told


@attrs.define
class _Steps:
    """The steps of one erasure, added up.

    Attributes:
        where: the server or the file.
        newest: the highest id of the log when it began.
        after: where to continue; None where all is done.
    """

    where: str
    newest: int
    _report: Report
    _progress: Progress
    after: int | None = 0
    _erased: Erased = attrs.field(factory=Erased)

    def __attrs_post_init__(self) -> None:
        self._report(self.told)

    def add(self, step: Erased) -> None:
        """Add one step."""
        self._erased = self._erased.plus(step)
        self.after = step.after
        self._report(self.told)
        if self.after is None:
            return
        erased = f"{self._erased.messages:,} erased"
        if self.after < self.newest:
            self._progress(f"log: {self.after:,} of {self.newest:,} scanned, {erased}")
        else:
            self._progress(f"log: all scanned, {erased}; returning their space")

    @property
    def told(self) -> dict[str, Any]:
        """What was erased, as in the receipt."""
        return {
            "where": self.where,
            "messages": self._erased.messages,
            "first": self._erased.first or None,
            "last": self._erased.last or None,
        }
