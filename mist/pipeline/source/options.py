"""The options of `format("mist")`, parsed once and validated together.

Spark passes options as texts, with case-insensitive names, and does not report a misspelt one. A
misspelt `subscribe` would read the whole log, and a misspelt `failOnDataLoss` would skip some of
it, so unknown options are refused.
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

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS", "OffsetSpec", "ReadOptions", "WriteOptions"]

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
# Options of Spark itself, which it passes to every source and sink.
SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})

MAX_TXN: Final = 128  # characters; the limit of the server
TXN_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)
MAX_BATCH: Final = 1_000_000  # rows
MAX_PARTITIONS: Final = 100_000


@attrs.frozen
class OffsetSpec:
    """An offset specification: where reading starts or ends.

    Attributes:
        kind: `earliest` and `latest` are resolved when the query is planned.
        value: an id, the first to read or, for an end, the first not to read; or a time in
            microseconds since 1970; 0 for the other kinds.
    """

    kind: Literal["earliest", "latest", "id", "time"]
    value: int = 0


EARLIEST: Final = OffsetSpec("earliest")
LATEST: Final = OffsetSpec("latest")


@attrs.frozen
class ReadOptions:
    """The options of a reader.

    Attributes:
        path: folder of an archive; None where `address` is given.
        address: of a server; None where `path` is given.
        alternatives: which messages to read; empty reads all.
        start: None is the default: `earliest` for a batch, `latest` for a stream.
        end: for a stream `latest` means no end.
        max_offsets: ids in one micro-batch; None is no limit.
        min_partitions: None derives it from the size of the range and the number of processors.
        batch_size: rows of a RecordBatch, at most.
        fail_on_loss: raise where messages are gone, rather than skip them with a warning. A start
            of `earliest` or a time requests the messages that exist, so what retention removed
            before the query is no loss: rules (`--keep`) leave gaps between kept messages.
    """

    path: str | None
    address: Address | None
    alternatives: Alternatives
    start: OffsetSpec | None
    end: OffsetSpec
    max_offsets: int | None
    min_partitions: int | None
    batch_size: int
    fail_on_loss: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool | None = None) -> "ReadOptions":
        """Parse Spark's options.

        Args:
            stream: whether they are for a stream; None where that isn't known yet. Then only
                what is invalid for both is refused.

        Raises:
            InvalidOption: an option is unknown, invalid, missing, or contradicts another.
        """
        given = _by_proper_name(options, READ_OPTIONS, "a reader")
        path, address = _read_source(given)
        found = cls(
            path=path,
            address=address,
            alternatives=_alternatives(given.get("subscribe")),
            start=_offset_spec(given, "starting", "latest" if stream is False else None),
            end=_offset_spec(given, "ending", "earliest") or LATEST,
            max_offsets=_number(given, "maxOffsetsPerTrigger", 2**53 - 1),
            min_partitions=_number(given, "minPartitions", MAX_PARTITIONS),
            batch_size=_number(given, "batchSize", MAX_BATCH) or 20_000,
            fail_on_loss=_boolean(given, "failOnDataLoss", True),
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
        """The minimum number of partitions, for a range that is large enough."""
        # Planning runs in a process without a SparkContext, so the default parallelism is unknown.
        # The processors of the driver's machine are the parallelism of local[*].
        return self.min_partitions or len(os.sched_getaffinity(0))


@attrs.frozen
class WriteOptions:
    """The options of a writer.

    Attributes:
        address: of the server.
        txn: transaction name, under which each batch is written once; None is the query's id.
    """

    address: Address
    txn: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Parse Spark's options.

        Raises:
            InvalidOption: an option is unknown, invalid or missing.
        """
        given = _by_proper_name(options, WRITE_OPTIONS, "a writer")
        if "url" not in given:
            raise InvalidOption("url: is required; messages are published by a server")
        txn = given.get("txn")
        if txn is not None and not _is_txn(txn):
            raise InvalidOption(f"txn: 1 to {MAX_TXN} of A-Z a-z 0-9 . _ -, not {txn!r}")
        return cls(_address(given), txn)


def _is_txn(txn: str) -> bool:
    # It becomes a segment of a path, where `.` and `..` have a meaning.
    return len(txn) <= MAX_TXN and TXN_CHARACTERS.issuperset(txn) and bool(txn.strip("."))


def _by_proper_name(
    options: Mapping[str, str], names: tuple[str, ...], kind: str
) -> dict[str, str]:
    # By their canonical names. A blank value counts as not given, as in Spark's own sources.
    proper = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        if name.lower() in SPARK_OPTIONS:
            continue
        if name.lower() not in proper:
            raise InvalidOption(f"{name}: no such option of {kind}; there are {', '.join(names)}")
        if value.strip():
            found[proper[name.lower()]] = value
    return found


def _read_source(given: Mapping[str, str]) -> tuple[str | None, Address | None]:
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
    # Here, since executors parse no options, and need nothing of `config`.
    from mist.config.paths import EXPECTED, parse_path

    try:
        return str(parse_path(path))
    except ValueError as error:
        reason = f"{error}; " if str(error) else ""
        raise InvalidOption(f"path: {reason}expected {EXPECTED}") from None


def _address(given: Mapping[str, str]) -> Address:
    return Address.parse(given["url"], given.get("secret"), given.get("token"))


def _alternatives(text: str | None) -> Alternatives:
    try:
        return parse_alternatives(text)
    except InvalidSelection as error:
        raise InvalidOption(str(error)) from None


def _offset_spec(given: Mapping[str, str], which: str, refused: str | None) -> OffsetSpec | None:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if offsets in given and timestamp in given:
        raise InvalidOption(f"{offsets} and {timestamp}: give one")
    try:
        if timestamp in given:
            return OffsetSpec("time", parse_time(given[timestamp]))
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
                return OffsetSpec("id", parse_id(digits))
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


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    match given.get(name, str(default)).strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise InvalidOption(f"{name}: true or false, not {given[name]!r}")
