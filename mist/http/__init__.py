"""HTTP: requests, streams for browsers, health and metrics, the dashboard.

    connections     connections that are kept alive from one request to the next
    exchange        one request and its response, as ASGI has it
    app             every route, in one table
    guard           what every request has to pass: name, page, size, speed, rate
    access          who asks, and what they may
    context         what the routes share
    problems        errors as problem+json
    bodies          JSON in and out
    queries         what stands behind the question mark
    rates           token buckets

A module for each group of routes, which has a `routes(context)`:

    bus             channels, for MessageBus's client; `bus_questions` is what it asks,
                    `bus_polls` which of its polls is the newest
    description     the OpenAPI page; `openapi` is what routes describe themselves with
    guble           topics, as guble's clients publish to them
    health          is it alive, is it ready, and where are its endpoints?
    inspect         who is connected, and what is subscribed to; `paging` gives lists in pages
    messages        publish some, read what was; `publications` is what a body brings,
                    `idempotency` tells a repeat
    metrics         for Prometheus
    pages           the dashboard, mist.js, and their files
    polling         long polling, for networks that break streams; `search` reads for it
    stats           what the dashboard shows; `session_aggregates` adds up all sessions
    streams         Server-Sent Events; `subscribers` is what they share with polls
    tickets         what a page puts into a URL in the place of its token
    tokens          the token registry
"""

from mist.http.app import Site
from mist.http.connections import HttpTransport
from mist.http.context import Context

__all__ = ["Context", "HttpTransport", "Site"]
