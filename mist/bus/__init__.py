"""Channels as MessageBus has them: a backlog, numbers in it, and messages for some people.

    Bus             the Python API, in the process of a server
    BusMessage      what comes out
    BacklogLimits   how much of channels is shown
    ClientFilters   predicates that keep messages from clients; the hub has them

A channel is a topic asked for by itself; its numbers are the history's (`mist.history`). So
nothing is kept here: what is shown is read from the history, by all endpoints through one `feed`.
`mist.http.bus` is the endpoint for browsers.

    messages    a message as this dialect knows it, and its data as JSON
    shown       how much of a channel is shown
    feed        one reader's way through some channels: the backlog, then what comes
    wakeups     deliveries that only say that there is something to read
    inside      the Python API
"""

from mist.bus.inside import Bus
from mist.bus.messages import BusMessage
from mist.bus.shown import BacklogLimits
from mist.sessions.client_filters import ClientFilters

__all__ = ["BacklogLimits", "Bus", "BusMessage", "ClientFilters"]
