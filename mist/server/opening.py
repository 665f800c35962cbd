"""Opening a server: what it is made of, in order, each closed again whatever fails behind it.

What is off in most servers is imported where it is opened: an engine, an archive, presence, events.
Together they are a tenth of what mist takes of an empty server's memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from mist.auth.registry import Registry
from mist.certificate import Certificate
from mist.config import Config
from mist.engine.tokens import open_tokens
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Durability, History
from mist.history.opening import open_history
from mist.listening import Listening, bind
from mist.server.data_directory import locked
from mist.server.limits import hub_limits, outbox_limits
from mist.server.server import Server
from mist.sessions.authorities import open_credentials, open_subscription_callout
from mist.sessions.close_reason import HISTORY_FORKED
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer
from mist.systemd import PassedSockets
from mist.telemetry import Tracing

if TYPE_CHECKING:
    from mist.archive.sharing import SharedSealer  # needs pyarrow, which is an extra
    from mist.engine.node import Node
    from mist.sessions.occasions import Hook

__all__ = ["open_server"]


@attrs.frozen
class _Log:
    """Where messages are kept.

    Attributes:
        history: of this server; a node's mirror.
        node: where there is an engine.
    """

    history: History
    node: "Node | None" = None


@asynccontextmanager
async def open_server(
    config: Config, passed: PassedSockets | None = None, *, hooks: "Sequence[Hook]" = ()
) -> AsyncIterator[Server]:
    """A server with its registry open and its ports bound, not yet serving.

    For embedding: `async with open_server(config) as server: await nursery.start(server.run)`.

    Args:
        passed: sockets that are bound already.
        hooks: called with each `mist.sessions.occasions.Occasion`, one after the other, in a task
            of its own each; may be async. What one raises is logged and counted, and ends nothing.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    async with AsyncExitStack() as opened:
        opened.enter_context(locked(config.data))
        tracing = _open_tracing(config, opened)
        certificate = None
        if config.tls_cert is not None and config.tls_key is not None:
            certificate = Certificate.load(config.tls_cert, config.tls_key)
        log = await _open_log(config, opened)
        # Behind the node: what a checkpoint has brought is not older than the tokens then are.
        registry = await _open_registry(config, opened)
        listening = await _listen(config, certificate, passed, opened)
        hub = Hub(
            registry,
            secret=config.secret_bytes,
            limits=config.limits,
            outbox_limits=outbox_limits(config),
            hub_limits=hub_limits(config),
        )
        hub.certificate = certificate
        hub.tracing = tracing
        hub.credentials = await open_credentials(config, hub)
        hub.subscription_callout = await open_subscription_callout(config, hub)
        if config.presence:
            from mist.sessions.presence_opening import open_presence

            open_presence(hub, config.presence)
        node = None if log is None else log.node
        server = Server(config, hub, listening, node)
        if log is not None:
            try:
                await _keep(config, hub, log, server, opened)
            except HistoryUnavailable as error:
                raise StartupError(f"history: {error}") from error
        if config.events or hooks:
            from mist.sessions.events_opening import open_events

            server.events = open_events(
                hub, server.describe().name, publishes=config.events, hooks=hooks
            )
        yield server


def _close_by(opened: AsyncExitStack, close: Callable[[], Awaitable[None]]) -> None:
    """Have something closed at the end, also where the server is cancelled."""

    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await close()

    opened.push_async_callback(shielded)


def _open_tracing(config: Config, opened: AsyncExitStack) -> Tracing | None:
    """Closed last, so that it exports what the others do when they are closed."""
    if not config.telemetry:
        return None
    from mist.telemetry.opening import open_tracing  # which few servers need

    tracing = open_tracing()
    _close_by(opened, tracing.aclose)
    return tracing


async def _open_log(config: Config, opened: AsyncExitStack) -> _Log | None:
    if config.history_url is None:
        return None
    durability = Durability(config.durability)
    if config.engine is None:
        log = _Log(await open_history(config.history_url, durability=durability))
        _close_by(opened, log.history.close)
    else:
        from mist.engine.node import open_node

        node = await open_node(
            config.engine,
            config.history_url,
            durability=durability,
            replicas=config.engine_replicas,
        )
        log = _Log(node.history, node)
        _close_by(opened, node.close)
    try:
        await log.history.keep_latest(config.latest)
    except HistoryUnavailable as error:
        raise StartupError(f"history: {error}") from error
    return log


async def _open_registry(config: Config, opened: AsyncExitStack) -> Registry:
    registry = await open_tokens(
        config.tokens_url,
        key_file=config.token_key_file,
        max_tags=config.max_tags_per_token,
        durability=Durability(config.durability),
        replicas=config.engine_replicas,
    )
    _close_by(opened, registry.aclose)
    return registry


async def _listen(
    config: Config,
    certificate: Certificate | None,
    passed: PassedSockets | None,
    opened: AsyncExitStack,
) -> list[Listening]:
    listening: list[Listening] = []
    for listen in config.listen:
        bound = await bind(listen, certificate, passed)
        opened.callback(bound.close)
        listening.append(bound)
    if passed is not None:
        passed.check_all_taken()
    return listening


async def _keep(
    config: Config, hub: Hub, log: _Log, server: Server, opened: AsyncExitStack
) -> None:
    """Have what is published stored first, by this server alone or as a node."""
    if log.node is not None:
        await _follow(config, hub, log.node, server, opened)
        return
    # Ahead of the sequencer: it may begin a new epoch of the history.
    if config.archive is not None:
        from mist.sessions.archiving import open_archive

        hub.sealer = sealer = await open_archive(config, config.archive, log.history)
        _close_by(opened, sealer.aclose)
    hub.sequencer = await Sequencer.over(hub.broker, log.history, hub.flush_scheduler)
    hub.sequencer.tracing = hub.tracing
    _open_side_tables(hub, opened)


async def _follow(
    config: Config, hub: Hub, node: "Node", server: Server, opened: AsyncExitStack
) -> None:
    """Have the server follow the engine's log, and be a member of its nodes."""
    from mist.sessions.archiving import open_shared_archive, seal_soon
    from mist.sessions.node_sequencer import NodeSequencer
    from mist.sessions.nodes import Nodes
    from mist.sessions.presence_opening import join_presence

    hub.sequencer = sequencer = await NodeSequencer.following(
        hub.broker,
        node,
        hub.flush_scheduler,
        registry=hub.registry,
        on_epoch=partial(hub.end_subscribers, HISTORY_FORKED),
    )
    sequencer.tracing = hub.tracing
    shared: SharedSealer | None = None
    if config.archive is not None:
        hub.sealer = shared = await open_shared_archive(
            config, config.archive, node, sequencer, hub
        )
        _close_by(opened, shared.aclose)
    _open_side_tables(hub, opened)
    hub.nodes = Nodes(
        node,
        sequencer,
        hub.broker,
        hub.sessions,
        server.describe,
        erase=None if shared is None else shared.erase,
        note_erasure=None if shared is None else shared.note_erasure,
        seal_soon=partial(seal_soon, shared, hub.side_tables),
        checkpoint_bytes=config.checkpoint_bytes,
    )
    join_presence(hub)


def _open_side_tables(hub: Hub, opened: AsyncExitStack) -> None:
    if hub.sealer is not None:
        from mist.sessions.archiving import open_side_tables

        hub.side_tables = tables = open_side_tables(hub.sealer, hub)
        _close_by(opened, tables.aclose)
