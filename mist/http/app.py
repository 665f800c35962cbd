"""The application: every route, in one table."""

from collections.abc import Collection

from starlette.applications import Starlette

from mist.http import (
    description,
    health,
    inspect,
    messages,
    metrics,
    pages,
    polling,
    stats,
    streams,
    tickets,
    tokens,
)
from mist.http.context import Context
from mist.http.guard import Guard, GuardLimits
from mist.http.problems import HANDLERS
from mist.transports.gate import Gate
from mist.transports.handshake import Origins

__all__ = ["make_app"]


def make_app(context: Context, gate: Gate, origins: Origins, names: Collection[str]) -> Guard:
    """The ASGI application of a server.

    Args:
        gate: knows which addresses are limited.
        origins: which pages may ask.
        names: public names of this server.
    """
    config = context.config
    app = Starlette(
        routes=[
            *description.routes(context),
            *health.routes(context),
            *inspect.routes(context),
            *messages.routes(context),
            *metrics.routes(context),
            *pages.routes(context),
            *polling.routes(context),
            *stats.routes(context),
            *streams.routes(context),
            *tickets.routes(context),
            *tokens.routes(context),
        ],
        exception_handlers=HANDLERS,
    )
    # A path has one spelling; another one is not found, rather than sent elsewhere.
    app.router.redirect_slashes = False
    limits = GuardLimits(config.max_body, config.body_seconds, config.request_rate)
    return Guard(app, gate, origins, names, limits)
