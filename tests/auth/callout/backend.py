"""A backend that is asked, without a network."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import trio

from mist.auth.callout import backend

Says = Callable[[dict[str, Any]], Any]


class Backend(backend.Backend):
    """Answers by a function of the question.

    Attributes:
        says: gives the answer: an object, a status, bytes, or an error to raise.
        asked: all questions.
        seconds: that an answer takes.
        at_once: most questions at a time.
    """

    def __init__(self, says: Says) -> None:
        self.says = says
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.bodies: list[bytes] = []
        self.seconds = 0.0
        self.at_once = self._now = 0

    async def aclose(self) -> None:
        pass

    async def post(self, body: bytes, headers: Mapping[str, str], asker: str) -> tuple[int, bytes]:
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        try:
            self.bodies.append(body)
            self.headers.append(headers)
            question = json.loads(body)
            self.asked.append(question)
            await trio.sleep(self.seconds)
        finally:
            self._now -= 1
        found = self.says(question)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, int):
            return found, b""
        return 200, found if isinstance(found, bytes) else json.dumps(found).encode()
