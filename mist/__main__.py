"""The command `mist`, and `python -m mist`.

Importing a command often takes longer than running it. Nothing needs cleaning up in that time,
so Ctrl-C ends the process at once. As an exception it could be raised anywhere in the import
system, also in code that prints it and goes on.
"""

import os
import signal

__all__ = ["main"]

_INTERRUPTED = 130  # see `mist --help`


def main() -> None:
    """Run the command named by the arguments; doesn't return."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # unless ignored, as for a background job
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from mist.cli import main as mist

    signal.signal(signal.SIGINT, interrupt)
    mist(prog_name="mist")


if __name__ == "__main__":
    main()
