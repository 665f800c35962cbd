"""Subscriptions to be matched against the log: an Arrow array, sent to the executors.

The array has canonical texts, `a,b`, which are unambiguous since no tag has a comma. It is split
into blocks if there are more subscriptions than fit into the memory of an executor.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.addresses import EVERYTHING, compile_asked
from mist.archive.derived import grouped
from mist.errors import InvalidTag, MistError
from mist.message import ASK, MAX_SUBSCRIPTION_TAGS, explain_invalid_tag, parse_tags
from mist.pipeline.errors import BadInput
from mist.pipeline.kernels.tags import Codes, Rows, run_offsets

__all__ = ["BLOCK", "blocks", "compiled", "parse_subscriptions", "read_file"]

BLOCK = 2_000_000  # subscriptions matched in one pass; some 150 bytes of memory each

_ADDRESS: Final = r"^(=?/|\.|\*$)"


def read_file(path: Path) -> pa.Array:
    """The subscriptions in a file; see `parse_subscriptions`.

    Raises:
        BadInput: it can't be read, or a line of it; the text says which.
    """
    try:
        with path.open("rb") as file:
            return parse_subscriptions(file, str(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def parse_subscriptions(lines: Iterable[bytes], name: str = "subscriptions") -> pa.Array:
    """Parse subscriptions, one a line: tags in any order, `a,b`, and addresses.

    Addresses are `/foo`, `=/foo`, `.a.*`, `*`.

    Blank lines don't count.

    Returns:
        array<string>: their canonical texts, each once, in the order of the lines; as asked for.

    Raises:
        BadInput: a line that no client could subscribe to, by its number, or none at all.
    """
    found: dict[str, None] = {}
    good: set[str] = set()  # tags that were validated already
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode().strip()
            if not text:
                continue
            tags = set(text.split(","))
            if not tags <= good or len(tags) > MAX_SUBSCRIPTION_TAGS:
                parsed = parse_tags(tags, MAX_SUBSCRIPTION_TAGS, ASK)
                # At most one subject is allowed, and `*` only alone: these are validated each time.
                good.update(tag for tag in parsed if tag[0] not in ".*")
        except UnicodeDecodeError:
            raise BadInput(f"{name}, line {number}: not UTF-8") from None
        except InvalidTag:
            why = explain_invalid_tag(sorted(tags), ASK)
            raise BadInput(f"{name}, line {number}: {why}") from None
        except MistError as error:
            raise BadInput(f"{name}, line {number}: {error}") from None
        found[",".join(sorted(tags))] = None
    if not found:
        raise BadInput(f"{name}: no subscription in it")
    return pa.array(list(found), pa.string())


def compiled(asked: Codes) -> Codes:
    """Compile addresses to tags; `*` compiles to no tags, and so is a subset of every set.

    O(distinct addresses); without any the subscriptions are returned as they are.
    """
    is_address = pc.match_substring_regex(asked.names, _ADDRESS)
    if not pc.any(is_address).as_py():
        return asked
    plain = asked.names.filter(pc.invert(is_address))
    tags = [_compile(name) for name in asked.names.filter(is_address).to_pylist()]
    mask = is_address.to_numpy(zero_copy_only=False)
    places = np.flatnonzero(mask)
    flat = pa.array(list(chain.from_iterable(tags)), pa.string())
    encoded = pa.concat_arrays([plain, flat]).dictionary_encode()
    owners = np.concatenate([np.flatnonzero(~mask), np.repeat(places, list(map(len, tags)))])
    found = grouped(owners, encoded.indices.to_numpy(), len(asked.names))
    codes, counts = found.spread(asked.rows.codes)
    rows = Rows(codes.astype(np.int32, copy=False), run_offsets(counts)[asked.rows.starts])
    return Codes(encoded.dictionary, rows)


def _compile(name: str) -> frozenset[str]:
    tags = frozenset((name,))
    return frozenset() if tags == EVERYTHING else compile_asked(tags)


def blocks(subscriptions: pa.Array, size: int = BLOCK) -> Iterator[pa.Array]:
    """The subscriptions in pieces of at most `size`."""
    for start in range(0, len(subscriptions), size):
        yield subscriptions.slice(start, size)
