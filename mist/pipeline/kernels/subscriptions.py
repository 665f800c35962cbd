"""Tag sets to be matched against the log: an Arrow array, which travels to the executors.

An array of canonical texts, `a,b`, says everything: no tag holds a comma. It is cut into blocks
where there are more subscriptions than an executor's memory holds.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from mist.errors import MistError
from mist.message import ASK, MAX_SUBSCRIPTION_TAGS, parse_tags
from mist.pipeline.errors import BadInput

__all__ = ["BLOCK", "blocks", "parse_subscriptions", "read_file"]

BLOCK = 2_000_000  # subscriptions that are matched at once; some 150 bytes of memory each


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
    """Subscriptions a line, `a,b`; tags in any order. Blank lines don't count.

    Returns:
        array<string>: their canonical texts, each once, in the order of the lines.

    Raises:
        BadInput: a line that no client could subscribe to, by its number, or none at all.
    """
    found: dict[str, None] = {}
    good: set[str] = set()  # tags that need no second look
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode().strip()
            if not text:
                continue
            tags = set(text.split(","))
            if not tags <= good or len(tags) > MAX_SUBSCRIPTION_TAGS:
                good |= parse_tags(tags, MAX_SUBSCRIPTION_TAGS, ASK)
        except UnicodeDecodeError:
            raise BadInput(f"{name}, line {number}: not UTF-8") from None
        except MistError as error:
            raise BadInput(f"{name}, line {number}: {error}") from None
        found[",".join(sorted(tags))] = None
    if not found:
        raise BadInput(f"{name}: no subscription in it")
    return pa.array(list(found), pa.string())


def blocks(subscriptions: pa.Array, size: int = BLOCK) -> Iterator[pa.Array]:
    """The subscriptions in pieces of at most `size`."""
    for start in range(0, len(subscriptions), size):
        yield subscriptions.slice(start, size)
