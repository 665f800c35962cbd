"""`memory://`: a registry that ends with the process. For tests and for trying things out."""

import secrets
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from mist.auth import Record, TokenStore
from mist.errors import StartupError

__all__ = ["MemoryStore"]


class MemoryStore(TokenStore):
    """The plainest member of the family: a dict. It never waits and never fails."""

    blocking: ClassVar[bool] = False

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._records: dict[bytes, Record] = {}

    @classmethod
    def open(cls, location: str) -> Self:
        if location:
            raise StartupError("token registry: nothing can follow memory://")
        return cls()

    def load(self) -> Iterable[Record]:
        return list(self._records.values())

    def write(self, changes: Mapping[bytes, Record | None]) -> None:
        for digest, record in changes.items():
            if record is None:
                self._records.pop(digest, None)
            else:
                self._records[digest] = record

    def close(self) -> None:
        pass
