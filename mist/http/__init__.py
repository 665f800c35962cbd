"""HTTP: requests, streams for browsers, health and metrics, the dashboard.

    transport       connections let in, turned away, ended where they take too long
    connection      one connection: requests, kept alive from one to the next
    exchange        one request and its response, as ASGI has it
    app             every route, in one table
    guard           checks of every request: host, origin, size, time, rate; `fields` has headers,
                    `guarded` a request's body and its response as they pass
    access          authentication and authorization
    context         what the routes share
    problems        errors as problem+json
    bodies          JSON bodies
    answers         whole responses, in one call
    queries         query strings
    rates           rate limits: token buckets

A module for each group of routes, which has a `routes(context)`:

    bus             channels, for MessageBus's client; `bus_questions` is what it asks,
                    `bus_polls` which of its polls is the newest
    description     the OpenAPI document; `openapi` has the types that describe routes
    guble           topics, as guble's clients publish to them
    health          liveness, readiness, and the endpoints for browsers
    inspect         lists of subscriptions and tags; `paging`
    messages        publishing and reading; `publications` parses bodies, `idempotency`
                    recognizes retries
    log             the log as Arrow; `log_pages`, `log_segments` read it
    metrics         for Prometheus; `metric_families` makes them
    pages           the dashboard, mist.js, and their files
    polling         long polling, for networks that break streams; `search` reads for it
    sessions        connections: lists of them, one, and its end
    staging         exactly-once writes; `staging_parts` validates, `staging_store` keeps parts
    stats           statistics for the dashboard; `session_aggregates` sums over sessions
    streams         Server-Sent Events; `subscribers`, `open_streams` are shared with polls
    tickets         one-time credentials in URLs; `ticket_store` has them
    tokens          the token registry
    revocations     revoking tokens that were issued elsewhere
"""

from mist.http.app import Site
from mist.http.context import Context
from mist.http.transport import HttpTransport

__all__ = ["Context", "HttpTransport", "Site"]
