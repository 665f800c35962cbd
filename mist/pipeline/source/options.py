"""The options of `format("mist")`, parsed once and validated together.

Spark hands options on as texts, in any case of letters, and tells nobody of a misspelt one. A
misspelt `subscribe` would read the whole log, and a misspelt `failOnDataLoss` would lose some
of it, so whatever isn't known here is refused.
"""

import os
from collections.abc import Mapping
from typing import Final, Literal, NoReturn

import attrs

from mist.pipeline.selection import (
    Alternatives,
    InvalidSelection,
    parse_alternatives,
    parse_id,
    parse_time,
)
from mist.pipeline.source.address import Address
from mist.pipeline.source.errors import InvalidOption

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS", "Place", "ReadOptions", "WriteOptions"]

READ_OPTIONS: Final = (
    "path",
    "url",
    "secret",
    "token",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "batchSize",
    "failOnDataLoss",
)
WRITE_OPTIONS: Final = ("url", "secret", "token", "txn")
# Spark's own, which it hands to every source and sink; not ours to judge.
FOREIGN: Final = frozenset({"checkpointlocation", "queryname"})

MAX_TXN: Final = 128  # characters; the server's bound
TXN_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)
MAX_BATCH: Final = 1_000_000  # rows
MAX_PARTITIONS: Final = 100_000


@attrs.frozen
class Place:
    """Where to begin or to end.

    Attributes:
        kind: `earliest` and `latest` are found when they are asked for.
        value: an id, of the first message in it or the first behind it; or a moment,
            microseconds since 1970; 0 for the others.
    """

    kind: Literal["earliest", "latest", "id", "time"]
    value: int = 0


EARLIEST: Final = Place("earliest")
LATEST: Final = Place("latest")


@attrs.frozen
class ReadOptions:
    """What a reader was asked for.

    Attributes:
        path: folder of an archive; None where `address` is given.
        address: a server.
        alternatives: empty wants everything.
        start: None is the default: `earliest` for a batch, `latest` for a stream.
        end: `latest` is no end, for a stream.
        max_offsets: ids in one micro-batch; None is no bound.
        min_partitions: None leaves it to the size of what is read and the processors here.
        batch_size: rows of a RecordBatch, at most.
        fail_on_loss: raise where something is gone, rather than skip it and log that. Nothing is
            gone to who begins with what there is (`earliest`, a time), whatever retention took
            before that: rules (`--keep`) leave single messages of long stretches.
    """

    path: str | None
    address: Address | None
    alternatives: Alternatives
    start: Place | None
    end: Place
    max_offsets: int | None
    min_partitions: int | None
    batch_size: int
    fail_on_loss: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool | None = None) -> "ReadOptions":
        """From Spark's options.

        Args:
            stream: whether it is for a stream; None where that isn't known yet, and only what
                is wrong for both is refused.

        Raises:
            InvalidOption: see there.
        """
        given = _known(options, READ_OPTIONS, "a reader")
        path, address = _where(given)
        found = cls(
            path=path,
            address=address,
            alternatives=_alternatives(given.get("subscribe")),
            start=_place(given, "starting", "latest" if stream is False else None),
            end=_place(given, "ending", "earliest") or LATEST,
            max_offsets=_number(given, "maxOffsetsPerTrigger", 2**53 - 1),
            min_partitions=_number(given, "minPartitions", MAX_PARTITIONS),
            batch_size=_number(given, "batchSize", MAX_BATCH) or 20_000,
            fail_on_loss=_switch(given, "failOnDataLoss", True),
        )
        if stream is False and found.max_offsets is not None:
            raise InvalidOption("maxOffsetsPerTrigger: is for readStream, not for read")
        if address is not None and address.is_client and not found.alternatives:
            raise InvalidOption(
                "subscribe: is required with a token; each alternative must be granted"
            )
        return found

    @property
    def partitions(self) -> int:
        """How many partitions to make at least, where there is enough to share out."""
        # The planner is a process without a SparkContext, so the real parallelism can't be
        # asked for here; the processors of the driver's machine are local[*]'s parallelism.
        return self.min_partitions or len(os.sched_getaffinity(0))


@attrs.frozen
class WriteOptions:
    """What a sink was asked for.

    Attributes:
        address: the server.
        txn: the name under which a batch is written once; None takes the query's id.
    """

    address: Address
    txn: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """From Spark's options.

        Raises:
            InvalidOption: see there.
        """
        given = _known(options, WRITE_OPTIONS, "a writer")
        if "url" not in given:
            raise InvalidOption("url: is required; messages are published by a server")
        txn = given.get("txn")
        if txn is not None and not _is_txn(txn):
            raise InvalidOption(f"txn: 1 to {MAX_TXN} of A-Z a-z 0-9 . _ -, not {txn!r}")
        return cls(_address(given), txn)


def _is_txn(txn: str) -> bool:
    # It is a part of a path, where dots alone would mean another one.
    return len(txn) <= MAX_TXN and TXN_CHARACTERS.issuperset(txn) and bool(txn.strip("."))


def _known(options: Mapping[str, str], names: tuple[str, ...], whom: str) -> dict[str, str]:
    # By their proper names; a blank text counts as not given, as Spark's own sources have it.
    proper = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        if name.lower() in FOREIGN:
            continue
        if name.lower() not in proper:
            raise InvalidOption(f"{name}: no such option of {whom}; there are {', '.join(names)}")
        if value.strip():
            found[proper[name.lower()]] = value
    return found


def _where(given: Mapping[str, str]) -> tuple[str | None, Address | None]:
    match "path" in given, "url" in given:
        case True, True:
            raise InvalidOption("path and url: give one, an archive's folder or a server")
        case False, False:
            raise InvalidOption("path or url: give an archive's folder or a server")
        case False, True:
            return None, _address(given)
    for name in ("secret", "token"):
        if name in given:
            raise InvalidOption(f"{name}: is for a server; a folder has no use for it")
    return _folder(given["path"]), None


def _folder(path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        return "/" + rest.lstrip("/")
    if colon and rest.startswith("//"):
        raise InvalidOption(f"path: a folder of a file system, not {scheme}://")
    return path


def _address(given: Mapping[str, str]) -> Address:
    return Address.parse(given["url"], given.get("secret"), given.get("token"))


def _alternatives(text: str | None) -> Alternatives:
    try:
        return parse_alternatives(text)
    except InvalidSelection as error:
        raise InvalidOption(str(error)) from None


def _place(given: Mapping[str, str], which: str, refused: str | None) -> Place | None:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if offsets in given and timestamp in given:
        raise InvalidOption(f"{offsets} and {timestamp}: give one")
    try:
        if timestamp in given:
            return Place("time", parse_time(given[timestamp]))
        if offsets not in given:
            return None
        match given[offsets].strip().lower():
            case word if word == refused:
                _refuse(offsets, f"{word} would read nothing")
            case "earliest":
                return EARLIEST
            case "latest":
                return LATEST
            case digits:
                return Place("id", parse_id(digits))
    except InvalidSelection as error:
        _refuse(timestamp if timestamp in given else offsets, str(error))


def _refuse(name: str, why: str) -> NoReturn:
    raise InvalidOption(f"{name}: {why}") from None


def _number(given: Mapping[str, str], name: str, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()) or not 1 <= int(digits) <= most:
        raise InvalidOption(f"{name}: a whole number from 1 to {most}, not {text!r}")
    return int(digits)


def _switch(given: Mapping[str, str], name: str, default: bool) -> bool:
    match given.get(name, str(default)).strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise InvalidOption(f"{name}: true or false, not {given[name]!r}")
