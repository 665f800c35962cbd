"""Redis servers that belong together: started for the length of a block."""

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["RedisGroup"]


class RedisGroup(ABC):
    """See the module."""

    @abstractmethod
    def start(self) -> Self:
        """Start all of them."""

    @abstractmethod
    def kill(self) -> None:
        """End those that run."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
