"""The Autobahn test suite's fuzzing client, on Python 3: a program with an environment of its own.

The suite is written for Python 2. Its cases are small, and say only what to send and to expect.
So they are converted (`lib2to3`, which Python has up to 3.12) into a folder of their own, and run
here on the current `autobahn` library. A payload of theirs is a string of bytes, as it was in
Python 2: it is encoded as Latin-1 on its way out, and what arrives is decoded so.

    python autobahn_client.py SUITE_FOLDER WORK_FOLDER URL > results.json
"""

import binascii
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autobahn.twisted.websocket import (
    WebSocketClientFactory,
    WebSocketClientProtocol,
    connectWS,
)
from twisted.internet import reactor

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from lib2to3 import refactor

# 9 measures speed; 12 and 13 compression, which mist doesn't agree to.
SECTIONS = ("1", "2", "3", "4", "5", "6", "7", "10")
SKIPPED = re.compile(r"(?m)^.*[cC]ase(?:9|12|13)_.*$")

# What the converter leaves, since it is the same syntax with another meaning.
REPLACED = {
    "len(self.payload) / ": "len(self.payload) // ",
    "(object, Case, )": "(Case,)",
    "v.validate(vss[:i])": "v.validate(vss[:i].encode('latin-1'))",
}


def convert(suite: Path, work: Path) -> None:
    """Write the cases of `SECTIONS` to `work`/case, as Python 3."""
    tool = refactor.RefactoringTool(refactor.get_fixers_from_package("lib2to3.fixes"))
    target = work / "case"
    target.mkdir(parents=True)
    for path in sorted((suite / "case").glob("*.py")):
        if SKIPPED.fullmatch(path.name):
            continue
        source = path.read_text(encoding="latin-1")
        if path.name == "__init__.py":
            source = SKIPPED.sub("", source)
        for old, new in REPLACED.items():
            source = source.replace(old, new)
        converted = str(tool.refactor_string(source + "\n", str(path)))
        (target / path.name).write_text(converted, encoding="utf-8")


def octets(payload: str | bytes) -> bytes:
    return payload if isinstance(payload, bytes) else payload.encode("latin-1")


def text(payload: str | bytes) -> str:
    return payload if isinstance(payload, str) else payload.decode("latin-1")


def plain(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Events with every payload as a string, so that both spellings of one compare equal."""
    return [
        tuple(text(part) if isinstance(part, bytes) else part for part in event) for event in events
    ]


class Protocol(WebSocketClientProtocol):
    """One case's connection, with what the suite's own protocol adds to the library's."""

    def connectionMade(self) -> None:
        self.connectionWasOpen = False
        self.txFrameStats: dict[int, int] = {}
        self.case = self.factory.case(self)
        self.case.compare = lambda received, expected: plain(received) == plain(expected)
        super().connectionMade()

    def onOpen(self) -> None:
        self.connectionWasOpen = True
        self.case.onOpen()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        self.case.onMessage(text(payload), isBinary)

    def onPing(self, payload: bytes) -> None:
        self.case.onPing(text(payload))
        self.sendPong(payload)

    def onPong(self, payload: bytes) -> None:
        self.case.onPong(text(payload))

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        self.case.onClose(wasClean, code, reason)

    def connectionLost(self, reason: object) -> None:
        super().connectionLost(reason)
        self.case.onConnectionLost(self.failedByMe)
        self.factory.on_end(self.case)

    def sendFrame(self, opcode: int, payload: str | bytes = b"", **more: Any) -> None:
        super().sendFrame(opcode, octets(payload), **more)

    def sendMessage(self, payload: str | bytes, *rest: Any, **more: Any) -> None:
        super().sendMessage(octets(payload), *rest, **more)

    def sendMessageFrameData(self, payload: str | bytes, *rest: Any) -> None:
        super().sendMessageFrameData(octets(payload), *rest)

    def sendCloseFrame(
        self, code: int | None = None, reasonUtf8: str | bytes | None = None, isReply: bool = False
    ) -> None:
        reason = None if reasonUtf8 is None else octets(reasonUtf8)
        super().sendCloseFrame(code, reason, isReply)

    def logTxFrame(self, header: Any, *rest: Any) -> None:
        self.txFrameStats[header.opcode] = self.txFrameStats.get(header.opcode, 0) + 1

    def logRxFrame(self, *about: Any) -> None: ...
    def logRxOctets(self, *about: Any) -> None: ...
    def logTxOctets(self, *about: Any) -> None: ...
    def enableWirelog(self, enable: bool) -> None: ...

    def continueLater(self, delay: float, action: Callable[[], object], tag: str = "") -> None:
        reactor.callLater(delay, lambda: self.state != self.STATE_CLOSED and action())

    def killAfter(self, delay: float) -> None:
        self.continueLater(delay, self._fail_connection)

    def closeAfter(self, delay: float) -> None:
        self.continueLater(delay, self.sendClose)


def main(suite: str, work: str, url: str) -> None:
    """Run one case after the other; print `{case: {behavior, behaviorClose, …}}` as JSON."""
    convert(Path(suite), Path(work))
    sys.path.insert(0, work)
    hexlify = binascii.b2a_hex
    binascii.b2a_hex = lambda payload: text(hexlify(octets(payload)))  # for cases' descriptions
    from case import Cases

    binascii.b2a_hex = hexlify
    names = {case: case.__name__.removeprefix("Case").replace("_", ".") for case in Cases}
    waiting = [case for case in Cases if names[case].split(".")[0] in SECTIONS]
    results: dict[str, dict[str, str]] = {}

    def run_next() -> None:
        if not waiting:
            reactor.stop()
            return
        factory = WebSocketClientFactory(url)
        factory.protocol = Protocol
        factory.setProtocolOptions(failByDrop=False)
        factory.logOctets = factory.logFrames = True
        factory.case, factory.on_end = waiting.pop(0), end
        connectWS(factory)

    def end(case: Any) -> None:
        attributes = ("behavior", "behaviorClose", "result", "resultClose")
        results[names[type(case)]] = {name: getattr(case, name) for name in attributes}
        reactor.callLater(0, run_next)

    reactor.callWhenRunning(run_next)
    reactor.run()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
