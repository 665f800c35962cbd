"""The Spark master of `--master`, and whether it can be reached.

Spark itself asks a cluster that isn't there for a minute and a half, and says then that something
else has stopped. So its port is tried first.
"""

import re
import socket
from typing import Final

from mist.pipeline.errors import ClusterUnavailable

__all__ = ["is_local", "is_near", "require_master"]

TIMEOUT: Final = 15.0  # seconds for all masters of a cluster together
PORT: Final = 7077
_SCHEME: Final = "spark://"
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/,]+)(?::([0-9]{1,5}))?")


def is_local(master: str) -> bool:
    """Whether tasks run beside the driver, and so import what it imports."""
    return master == "local" or master.startswith("local[")


def is_near(master: str) -> bool:
    """Whether it is reached without leaving this machine."""
    return is_local(master) or bool(re.match(r"spark://(127\.|localhost\b|\[::1\])", master))


def require_master(master: str, *, timeout: float = TIMEOUT) -> None:
    """See that someone listens where the cluster is to be.

    Only for `spark://HOST:PORT,HOST:PORT`, of which one is enough: of other kinds Spark finds
    the place by itself. What can't be read is left for Spark to say.

    Raises:
        ClusterUnavailable: nobody does.
    """
    places = _places(master)
    why = ""
    for host, port in places:
        try:
            with socket.create_connection((host, port), timeout / len(places)):
                return
        except OSError as error:
            why = error.strerror or "no answer in time"
    if places:
        raise ClusterUnavailable(f"no answer from {master}: {why}")


def _places(master: str) -> list[tuple[str, int]]:
    if not master.startswith(_SCHEME):
        return []
    found = [_PLACE.fullmatch(each) for each in master.removeprefix(_SCHEME).split(",")]
    places = [(each[1].strip("[]"), int(each[2] or PORT)) for each in found if each]
    return places if len(places) == len(found) and all(port < 65_536 for _, port in places) else []
