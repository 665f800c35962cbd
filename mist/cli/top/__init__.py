"""`mist top`: what a server does, live in a terminal.

command    options, and what is printed without a terminal
figures    two answers of a server to rates; no I/O
screen     figures to lines of a width and height; no I/O
watching   asks the server in a thread of its own
terminal   the terminal: its modes, keys, and that it is left as it was
"""

from mist.cli.top.command import top

__all__ = ["top"]
