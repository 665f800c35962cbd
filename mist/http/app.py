"""The application: every route, in one table, for all listeners of a server."""

from collections.abc import Awaitable, Callable, Collection, Sequence

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mist.config import Config
from mist.errors import MistError
from mist.http import (
    bus,
    description,
    guble,
    health,
    inspect,
    log,
    messages,
    metrics,
    nodes,
    pages,
    polling,
    presence,
    revocations,
    sessions,
    staging,
    stats,
    stats_history,
    streams,
    subscription_rates,
    tickets,
    tokens,
)
from mist.http.answers import write
from mist.http.context import Context
from mist.http.guard import Guard
from mist.http.guarded import GuardLimits
from mist.http.problems import Problem, answer_of
from mist.http.rates import Rates
from mist.http.traced import Traced
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins

__all__ = ["Site"]

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


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
        self._access = context.access
        self._tracing = context.hub.tracing
        self._app = _Routes(_routes(context))
        self._limiter = limiter
        self._names = names
        self._limits = GuardLimits(config.max_body, config.body_seconds)
        self._rates = Rates(config.request_rate, trio.current_time)
        self._guards: list[Guard] = []

    def configure(self, config: Config) -> None:
        """Change rates, names and limits of requests, for those that come from now on."""
        self._access.configure(config.token_rate)
        self._rates.configure(config.request_rate)
        limits = GuardLimits(config.max_body, config.body_seconds)
        for guard in self._guards:
            guard.configure(config.names, limits)

    def behind(self, origins: Origins) -> ASGIApp:
        """The ASGI application of one listener.

        Args:
            origins: which pages may ask there.
        """
        guard = Guard(
            self._app,
            self._limiter,
            origins,
            self._names,
            self._limits,
            self._rates,
            self._app.declares,
        )
        self._guards.append(guard)
        if self._tracing is None:
            return guard
        return Traced(guard, self._tracing, self._app.pattern)


class _Routes:
    """An ASGI application: routes whose path has no parameters are found by one dict lookup.

    starlette's router looks through its routes one by one, most of what a small request would
    cost. It has what the lookup doesn't find, other methods and unknown paths among it. Without
    starlette's application, which brings pages for debugging and half a MiB.

    Attributes:
        routes: all of them.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.routes = routes
        self._endpoints: dict[tuple[str, str], Endpoint] = {
            (method, route.path): route.endpoint
            for route in routes
            if type(route) is Route and not route.param_convertors
            for method in route.methods or ()
        }
        # A path has one spelling; another one is not found, rather than sent elsewhere.
        self._router = Router(routes, redirect_slashes=False)

    def declares(self, scope: Scope) -> bool:
        """Whether there is a route for the path and the method; O(routes)."""
        return any(route.matches(scope)[0] is Match.FULL for route in self.routes)

    def pattern(self, scope: Scope) -> str | None:
        """The path of the route for a request's path, whatever its method; O(routes)."""
        if (scope["method"], scope["path"]) in self._endpoints:
            path: str = scope["path"]
            return path
        found = (each for each in self.routes if each.matches(scope)[0] is not Match.NONE)
        route = next(found, None)
        return route.path if isinstance(route, Route) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._look(scope, receive, send)
            return
        try:
            response = await endpoint(Request(scope, receive, send))
            await write(response, scope, receive, send)
        except (Problem, MistError, HTTPException) as error:
            await write(answer_of(error), scope, receive, send)

    async def _look(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        scope["app"] = self  # so that the router raises what it doesn't find
        try:
            await self._router(scope, receive, noting)
        except (Problem, MistError, HTTPException) as error:
            if begun:
                raise
            await write(answer_of(error), scope, receive, send)


def _routes(context: Context) -> list[BaseRoute]:
    return [
        *bus.routes(context),
        *description.routes(context),
        *guble.routes(context),
        *health.routes(context),
        *inspect.routes(context),
        *log.routes(context),
        *messages.routes(context),
        *metrics.routes(context),
        *nodes.routes(context),
        *pages.routes(context),
        *polling.routes(context),
        *revocations.routes(context),
        *presence.routes(context),
        *sessions.routes(context),
        *staging.routes(context),
        *stats.routes(context),
        *stats_history.routes(context),
        *streams.routes(context),
        *subscription_rates.routes(context),
        *tickets.routes(context),
        *tokens.routes(context),
    ]
