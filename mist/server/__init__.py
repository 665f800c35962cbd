"""A server: listeners, a hub, and one nursery that owns every task.

    with closed listeners   registry opened, ports bound: whatever can fail at the start does
                            so before anyone is told that the server listens
    serving                 one accept loop a listener, one task a connection, a sweeper
    draining                not ready, as HTTP says to the end; nobody else is accepted; nothing
                            more is read from publishers; then every session ends with code 1001
                            and has a while to take what is queued

    data_directory, limits      the lock; limits of settings
    endpoints                   what is served at each listener
    server                      `Server`: tasks, drain, other settings
    opening                     `open_server`: what a server is made of

`Server` is the part to embed: it takes a nursery of yours, or makes one. `mist.serving` is what the
command line runs.
"""

from mist.server.opening import open_server
from mist.server.server import Server

__all__ = ["Server", "open_server"]
