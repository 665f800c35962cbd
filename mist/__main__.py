"""The command `mist`, and `python -m mist`.

Importing what a command needs takes longer than many a command does. Ctrl-C in that time finds
nothing begun that would have to be ended, so the process just goes. As an exception it would
come up anywhere in the import system, in places that print it and go on.
"""

import os
import signal

__all__ = ["main"]

_INTERRUPTED = 130  # as `mist --help` has it


def main() -> None:
    """Run the command that the arguments name; doesn't return."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # and not ignored, as in a script's background
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from mist.cli import main as mist

    signal.signal(signal.SIGINT, interrupt)
    mist(prog_name="mist")


if __name__ == "__main__":
    main()
