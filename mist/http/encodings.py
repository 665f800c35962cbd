"""Content codings of static files: each is compressed once, when a client first takes it so.

gzip always; `zstd` and `br` where this Python has a library for them (`compression.zstd` from 3.14
on, the package brotli). Only what is the same for everyone is compressed: beside a secret, the size
of what an attacker has chosen would tell of it.
"""

import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["CODINGS", "Encoded", "find_codings", "preferred"]

Coding = Callable[[bytes], bytes]

_MIN_SIZE: Final = 512  # bytes; below it, headers are most of an answer


def _gzip(content: bytes) -> bytes:
    # Without a time in it, so that all nodes have the same.
    compressor = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def find_codings(load: Callable[[str], object] = importlib.import_module) -> dict[str, Coding]:
    """The codings that there are, by name, the tightest first.

    Args:
        load: imports a module.
    """
    found: dict[str, Coding] = {}
    for name, module in (("br", "brotli"), ("zstd", "compression.zstd")):
        try:
            found[name] = load(module).compress  # type: ignore[attr-defined]
        except ImportError:
            continue
    return {**found, "gzip": _gzip}


CODINGS: Final = find_codings()


class Encoded:
    """One content in the codings that clients take it in.

    Attributes:
        content: as it is.
    """

    __slots__ = ("_codings", "_made", "content")

    def __init__(self, content: bytes, codings: Mapping[str, Coding] = CODINGS) -> None:
        self.content = content
        self._codings = codings if len(content) >= _MIN_SIZE else {}
        self._made: dict[str, bytes] = {}

    @property
    def varies(self) -> bool:
        """Whether it depends on what the client takes."""
        return bool(self._codings)

    def choose(self, accepted: str) -> tuple[str, bytes]:
        """The best coding for a client, empty for none, and the content in it.

        Args:
            accepted: the value of `Accept-Encoding`.
        """
        coding = preferred(accepted, self._codings)
        if not coding:
            return "", self.content
        made = self._made.get(coding)
        if made is None:
            made = self._made[coding] = self._codings[coding](self.content)
        return coding, made


def preferred(accepted: str, codings: Mapping[str, object]) -> str:
    """The coding that `Accept-Encoding` prefers; of equals the first. Empty for none.

    `gzip, br` → `br` where there is one; `gzip;q=0`, `identity`, nothing at all → none.
    """
    weights: dict[str, float] = {}
    for each in accepted.lower().split(","):
        name, _, parameter = each.partition(";")
        weight = 1.0
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = 0.0
        weights[name.strip()] = weight if 0.0 <= weight <= 1.0 else 0.0
    others = weights.get("*", 0.0)
    best, most = "", 0.0
    for name in codings:
        weight = weights.get(name, others)
        if weight > most:
            best, most = name, weight
    return best if most >= weights.get("identity", 0.0) else ""
