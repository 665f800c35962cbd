"""`python -m mist` is `mist`."""

from mist.cli import main

main(prog_name="mist")
