"""Opening an archive to seal it: for a server alone, or for a node that shares it with others."""

import os
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from mist.archive.claiming import check_start
from mist.archive.lineage import check_lineage
from mist.archive.locking import lock_alone, lock_shared
from mist.archive.rows import parts_to_batch
from mist.archive.sealer import Sealer, SealPolicy
from mist.archive.sharing import SharedSealer
from mist.archive.table import Archive
from mist.engine.node import Node
from mist.history import History

__all__ = ["LOCK_TIMEOUT", "open_sealer", "open_shared_sealer"]

LOCK_TIMEOUT: Final = 1.0
"""Seconds for which a node waits for its turn to change a table of a shared archive."""


async def open_sealer(
    archive: Archive, history: History, policy: SealPolicy | None = None
) -> Sealer:
    """Open a sealer that continues where the archive ends. Close it after use.

    Called before anything is published: it may begin a new epoch of the log.

    Raises:
        ArchiveError: one line that says why not: the archive is another log's, in use by
            another server, or can't be read or written.
        HistoryUnavailable: the log can't be read.
    """
    lock = await trio.to_thread.run_sync(lock_alone, archive)
    try:
        # With its first array, pyarrow imports pandas if it is installed. That takes half a
        # second, which is better spent before there are peers.
        await trio.to_thread.run_sync(parts_to_batch, [])
        manifest = await check_lineage(archive, history)
        # Before the first segment the log may have gaps already, left by retention rules.
        forgiven = 0 if manifest.segments else (await history.position()).expired
        return Sealer(archive, history, policy or SealPolicy(), manifest, forgiven, lock)
    except BaseException:
        os.close(lock)
        raise


async def open_shared_sealer(
    archive: Archive,
    node: Node,
    policy: SealPolicy | None = None,
    *,
    give_ids: Callable[[int], Awaitable[None]],
    ask: Callable[[], Awaitable[object]],
) -> SharedSealer:
    """Open a sealer of an archive that the nodes of an engine share. Close it after use.

    Args:
        give_ids, ask: see `SharedSealer`.

    Raises:
        ArchiveError: one line that says why not: the archive is another log's, a server of its own
            uses it, or it can't be read, written or shared.
        HistoryUnavailable: the mirror can't be read.
    """
    await trio.to_thread.run_sync(archive.check_shareable)
    lock = await trio.to_thread.run_sync(lock_shared, archive)
    try:
        await trio.to_thread.run_sync(parts_to_batch, [])  # see `open_sealer`
        is_whole = node.mirror.offset >= node.standing.offset
        manifest = await check_start(archive, node.history, lock, is_whole=is_whole)
    except BaseException:
        os.close(lock)
        raise
    return SharedSealer(
        archive, node, policy or SealPolicy(), manifest, lock, give_ids=give_ids, ask=ask
    )
