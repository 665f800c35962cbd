"""A server that adds up what checking signatures of JWTs takes it: seconds of CPU, in a file.

    python -m tests.benchmarks.jwt_server FILE [options of `mist serve`]

Measured in a loop of its own, a signature takes half of what it takes a server, which has done
something else since the last one: code and tables have left the processor's caches.
"""

import mmap
import sys
import time
from pathlib import Path

from mist.__main__ import main
from mist.auth.jwt.keys import Key

__all__ = ["BYTES"]

BYTES = 8  # of the file: a double


def _measure(path: Path) -> None:
    file = path.open("r+b")
    seconds = memoryview(mmap.mmap(file.fileno(), BYTES)).cast("d")
    verifies = Key.verifies

    def measured(self: Key, algorithm: str, signed: bytes, signature: bytes) -> bool:
        began = time.thread_time()
        try:
            return verifies(self, algorithm, signed, signature)
        finally:
            seconds[0] += time.thread_time() - began

    Key.verifies = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
    sys.argv = ["mist", "serve", *sys.argv[2:]]
    main()
