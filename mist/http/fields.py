"""A request's headers, looked up by name."""

from collections import Counter
from collections.abc import Collection

__all__ = ["Fields"]


class Fields(dict[bytes, bytes]):
    """A request's headers: of those that are repeated the first.

    Args:
        headers: names in lower case, in order.

    Attributes:
        repeated: the names of those that are.
    """

    __slots__ = ("repeated",)

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(headers)
        self.repeated: Collection[bytes] = ()
        if len(self) != len(headers):
            numbers = Counter(name for name, _ in headers)
            self.repeated = {name for name, number in numbers.items() if number > 1}
            self.update(reversed(headers))

    @property
    def origin(self) -> str | None:
        """The page's that asks; None where there is none, or it is no page's."""
        origin = self.get(b"origin")
        return None if origin is None else origin.decode("latin-1")

    @property
    def media_type(self) -> str:
        """Of the body, in lower case and without parameters; empty where it isn't told."""
        kind = self.get(b"content-type", b"").decode("latin-1")
        return kind.partition(";")[0].strip().lower()
