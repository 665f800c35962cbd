"""A stream in a process of its own, which does what a test wants in the middle of a batch.

    python -m tests.pipeline.jobs.streaming URL FOLDER retried landed
    python -m tests.pipeline.jobs.streaming URL FOLDER entered

fills a lake `FOLDER/<name>` for each name, one after the other: `retried` to the end of the log;
`landed` until the tasks of a batch have written, `entered` until a batch is in the manifest and
not yet in the checkpoint. There it kills itself.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 40  # messages
RETRIES = 4  # of a task


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_before(commit: Callable[..., Any]) -> Callable[..., Any]:
    def dying(lake: Any, outputs: Any) -> Any:
        if min(each.after for each in outputs) >= BATCH:  # the second batch
            _die()
        return commit(lake, outputs)

    return dying


def _die_after(commit: Callable[..., Any]) -> Callable[..., Any]:
    def dying(lake: Any, outputs: Any) -> Any:
        entered = commit(lake, outputs)
        if min(each.after for each in outputs) >= BATCH:
            _die()
        return entered

    return dying


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "retried": lambda commit: commit,
    "landed": _die_before,
    "entered": _die_after,
}


def main(url: str, folder: Path, names: list[str]) -> None:
    from mist.pipeline.ingestion.commit import commit
    from mist.pipeline.jobs import stream
    from mist.pipeline.origin import Origin
    from mist.pipeline.session import session
    from tests.pipeline.conftest import QUICK

    with session(f"local[2,{RETRIES}]", QUICK, name="mist victim") as spark:
        for name in names:
            stream.commit = WAYS[name](commit)  # type: ignore[attr-defined]
            stream.run(
                spark, Origin(url=url), folder / name, now=time.time(), once=True, most=BATCH
            )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
