"""Stores that fail, wait or tell what they were asked to do."""

import threading

import trio

from mist.auth import TokenStore
from mist.auth.memory import MemoryStore
from mist.errors import RegistryUnavailable


class Around(TokenStore):
    """Passes everything on to another store."""

    def __init__(self, store):
        self.store = store
        self.key = store.key
        self.blocking = store.blocking

    @classmethod
    def open(cls, location):
        raise NotImplementedError

    def load(self):
        return self.store.load()

    def write(self, changes):
        self.store.write(changes)

    def close(self):
        self.store.close()


class Recording(Around):
    """Keeps what was written, and how many writes there were at once."""

    def __init__(self, store=None):
        super().__init__(store or MemoryStore())
        self.blocking = True
        self.written = []
        self.most_at_once = 0
        self._at_once = 0

    def write(self, changes):
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.written.append(dict(changes))
        super().write(changes)
        self._at_once -= 1


class Failing(Around):
    """Refuses to write while `full`."""

    full = False

    def write(self, changes):
        if self.full:
            raise RegistryUnavailable from OSError("No space left on device")
        super().write(changes)


class Hanging(Around):
    """Waits in `write`: `begun` is set then, and it goes on when `go_on` is."""

    def __init__(self, store):
        super().__init__(store)
        self.blocking = True
        self.begun = trio.Event()
        self.go_on = threading.Event()

    def write(self, changes):
        trio.from_thread.run_sync(self.begun.set)
        assert self.go_on.wait(10)
        super().write(changes)
