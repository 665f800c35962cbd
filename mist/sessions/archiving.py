"""The archive of a server, alone or as a node: what keeps it, and how it is opened.

pyarrow is an extra, so what needs it is imported only where there is an archive.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from mist.archive import Archive, ArchiveError
from mist.broker.usage import UsageAccounting
from mist.config import Config
from mist.engine.node import Node
from mist.errors import StartupError
from mist.history import History
from mist.sessions.hub import Hub
from mist.sessions.node_sequencer import NodeSequencer

if TYPE_CHECKING:
    from mist.archive.sealer import Sealer
    from mist.archive.sharing import SharedSealer
    from mist.archive.side_tables import SideTables

__all__ = ["open_archive", "open_shared_archive", "open_side_tables", "seal_soon"]


async def open_archive(config: Config, folder: Path, history: History) -> "Sealer":
    """What seals a server's history into an archive of its own.

    Raises:
        StartupError: one line that says why not.
        HistoryUnavailable: the history can't be read.
    """
    try:
        from mist.archive.opening import open_sealer
        from mist.archive.sealer import SealPolicy
    except ImportError as error:  # pyarrow or numpy
        raise _no_archive(error) from error
    try:
        archive = await trio.to_thread.run_sync(Archive.create, folder)
        policy = SealPolicy(unsealed=config.unsealed_bytes, seconds=config.seal_seconds)
        return await open_sealer(archive, history, policy)
    except ArchiveError as error:
        raise StartupError(str(error)) from error


async def open_shared_archive(
    config: Config, folder: Path, node: Node, sequencer: NodeSequencer, hub: Hub
) -> "SharedSealer":
    """What seals an archive that the nodes of an engine share. Otherwise as `open_archive`."""
    try:
        from mist.archive.opening import LOCK_TIMEOUT, open_shared_sealer
        from mist.archive.sealer import SealPolicy
    except ImportError as error:  # pyarrow or numpy
        raise _no_archive(error) from error
    try:
        archive = await trio.to_thread.run_sync(
            partial(Archive.create, folder, lock_timeout=LOCK_TIMEOUT)
        )
        policy = SealPolicy(unsealed=config.unsealed_bytes, seconds=config.seal_seconds)
        return await open_shared_sealer(
            archive,
            node,
            policy,
            give_ids=sequencer.give_ids,
            ask=partial(_ask_to_seal, hub),
        )
    except ArchiveError as error:
        raise StartupError(str(error)) from error


def _no_archive(error: ImportError) -> StartupError:
    return StartupError(f"archive: {error.name} is missing; pip install 'mist-pubsub[archive]'")


def open_side_tables(sealer: "Sealer | SharedSealer", hub: Hub) -> "SideTables":
    """What keeps the archive's other tables, from now on."""
    from mist.archive.side_tables import OtherNodes, SideTables

    async def accounted() -> int | None:
        return None if hub.nodes is None else await hub.nodes.accounted()

    accounts = UsageAccounting()
    hub.broker.observe(accounts)
    others = None
    if isinstance(hub.sequencer, NodeSequencer):
        others = OtherNodes(lambda: sealer.sealing, partial(_ask_to_seal, hub), accounted)
    return SideTables(sealer.archive, accounts, hub.registry, others=others)


async def _ask_to_seal(hub: Hub) -> None:
    if hub.nodes is not None:
        await hub.nodes.ask_to_seal()


def seal_soon(sealer: "SharedSealer | None", side_tables: "SideTables | None") -> None:
    """Have what a node has written to the archive soon, since another node asks for it."""
    if sealer is not None:
        sealer.seal_soon()
    if side_tables is not None:
        side_tables.seal_soon()
