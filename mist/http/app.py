"""The application: every route, in one table, for all listeners of a server."""

from collections.abc import Collection

import trio
from starlette.applications import Starlette

from mist.http import (
    bus,
    description,
    guble,
    health,
    inspect,
    log,
    messages,
    metrics,
    pages,
    polling,
    staging,
    stats,
    streams,
    tickets,
    tokens,
)
from mist.http.context import Context
from mist.http.guard import Guard, GuardLimits
from mist.http.problems import HANDLERS
from mist.http.rates import Rates
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins

__all__ = ["Site"]


class Site:
    """What a server has to say over HTTP. One for all its listeners: rates hold across them.

    Args:
        limiter: knows which addresses are limited.
        names: public names of this server.
    """

    def __init__(
        self, context: Context, limiter: ConnectionLimiter, names: Collection[str]
    ) -> None:
        config = context.config
        self._app = _application(context)
        self._limiter = limiter
        self._names = names
        self._limits = GuardLimits(config.max_body, config.body_seconds)
        self._rates = Rates(config.request_rate, trio.current_time)

    def behind(self, origins: Origins) -> Guard:
        """The ASGI application of one listener.

        Args:
            origins: which pages may ask there.
        """
        return Guard(self._app, self._limiter, origins, self._names, self._limits, self._rates)


def _application(context: Context) -> Starlette:
    app = Starlette(
        routes=[
            *bus.routes(context),
            *description.routes(context),
            *guble.routes(context),
            *health.routes(context),
            *inspect.routes(context),
            *log.routes(context),
            *messages.routes(context),
            *metrics.routes(context),
            *pages.routes(context),
            *polling.routes(context),
            *staging.routes(context),
            *stats.routes(context),
            *streams.routes(context),
            *tickets.routes(context),
            *tokens.routes(context),
        ],
        exception_handlers=HANDLERS,
    )
    # A path has one spelling; another one is not found, rather than sent elsewhere.
    app.router.redirect_slashes = False
    return app
