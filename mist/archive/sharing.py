"""An archive that the nodes of an engine share: one of them seals it at a time.

    lease    one node holds it. Where that node dies, is stopped or is cut off, another has it in
             some four seconds
    claim    it checks that the archive is of its log, writes its fence into the manifest, and goes
             on where the archive ends (`claiming`)
    seal     as any server does it (`sealer`), from its mirror, which has the same ids and messages
             as any other
    list     only where it has the lease still, its mirror has all of the log, and no erasure waits
             to be carried out; and only into the manifest that it started from (`Table.change`)

So a node that wakes up with a lease that has ended does no harm, whatever it was stopped at: its
manifest is refused, and its segment, whose name is no other's, is deleted.

The other nodes look how far the archive is: their mirrors keep what is not sealed yet, within their
limits in bytes. A node whose mirror begins behind the archive's end leaves the archive to others
for a while. If none has what is missing, it goes on, and lists that as lost.

An erasure is noted in the manifest by each node that has carried it out, before it is answered, and
with its log's epoch and offset. What was read of the log before can't be listed from then on.
"""

import logging
import math
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio

from mist.archive.claiming import claim, is_related
from mist.archive.manifest import ArchiveError, Manifest
from mist.archive.open_segment import SealPolicy
from mist.archive.sealer import Sealer, outage_of_archive
from mist.archive.table import Archive
from mist.archive.tenure import LEASE, NodeTenure, Superseded, has_erased
from mist.engine.leases import run_under_lease
from mist.engine.node import Node
from mist.errors import HistoryUnavailable, MistError
from mist.history import Erased, Erasure, Position

__all__ = ["SharedSealer"]

log = logging.getLogger("mist.archive")

_LOOK: Final = 1.0  # seconds between two looks at the manifest
_PAUSE: Final = 1.0  # seconds after a failure
_PASSED: Final = 15  # times that an archive is left to nodes that may have what this one lacks
_NOBODY: Final = 15.0  # seconds after which nobody is expected to seal any more


class SharedSealer:
    """See the module. Made by `mist.archive.opening`.

    Args:
        node: this one.
        lock: descriptor, closed by `aclose`.
        give_ids: has the engine give so many ids to nothing.
        ask: asks the other nodes to seal what they have; see `seal_soon`.

    Attributes:
        archive, history: as of a `Sealer`.
    """

    def __init__(
        self,
        archive: Archive,
        node: Node,
        policy: SealPolicy,
        manifest: Manifest,
        lock: int,
        *,
        give_ids: Callable[[int], Awaitable[None]],
        ask: Callable[[], Awaitable[object]],
    ) -> None:
        self.archive = archive
        self.history = node.history
        self._node = node
        self._policy = policy
        self._manifest = manifest
        self._lock = lock
        self._give_ids = give_ids
        self._ask = ask
        self._sealer: Sealer | None = None  # while this node holds the lease
        self._outage = outage_of_archive()
        self._failures = 0
        self._passed = 0
        self._requested = trio.Event()
        self._holding = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def manifest(self) -> Manifest:
        """The newest that is known; an empty one where the archive is of another log."""
        newest, sealer, standing = self._manifest, self._sealer, self._node.standing
        if sealer is not None and sealer.manifest.generation > newest.generation:
            newest = sealer.manifest
        epochs = {standing.epoch, *[each.epoch for each in standing.ancestors]}
        return newest if newest.epoch in epochs else Manifest()

    @property
    def sealed(self) -> int:
        """The highest id that was handled, by any node."""
        return self.manifest.sealed

    @property
    def sealing(self) -> bool:
        """Whether it is this node that seals the archive."""
        return self._sealer is not None

    @property
    def failing(self) -> bool:
        """Whether this node's last attempt failed."""
        return bool(self._outage)

    @property
    def failures(self) -> int:
        """Failed attempts of this node."""
        return self._failures + (0 if self._sealer is None else self._sealer.failures)

    async def run(self) -> None:
        """Seal while this node holds the lease, and look how far others are, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._seal_on_request)
            nursery.start_soon(self._run_under_lease)

    async def seal_now(self, *, seconds: float | None = None) -> int:
        """Seal all that the log holds now, or have the node do so that holds the lease.

        Args:
            seconds: after these, return with what has been done; None is no limit.

        Returns:
            `sealed` afterwards.

        Raises:
            ArchiveError, HistoryUnavailable: it failed, or no node seals; a later call may succeed.
        """
        newest = (await self.history.position()).newest
        with trio.move_on_after(math.inf if seconds is None else seconds) as scope:
            moved, sealed = trio.current_time(), self.sealed
            while self.sealed < newest:
                await self._seal_once(scope.deadline)
                if self.sealed > sealed:
                    moved, sealed = trio.current_time(), self.sealed
                elif trio.current_time() > moved + _NOBODY:
                    raise ArchiveError(f"archive {self.archive.folder}: no node seals it")
        return self.sealed

    async def _seal_once(self, deadline: float) -> None:
        sealer = self._sealer
        if sealer is None:
            with suppress(MistError):  # there may be no engine for a moment
                await self._ask()
            await trio.sleep(_LOOK / 4)
            await self._refresh()
            return
        left = max(deadline - trio.current_time(), 0.0)
        with suppress(Superseded):  # or else by another node
            await sealer.seal_now(seconds=left if left < math.inf else None)
            await self._refresh()

    def seal_soon(self) -> None:
        """Seal all that the log holds now, if this node holds the lease."""
        self._requested.set()

    async def erase(self, erasure: Erasure, *, upto: int | None) -> Erased:
        """Erase messages from the mirror, and keep them from being sealed; see `note_erasure`."""
        sealer = self._sealer
        eraser = self.history if sealer is None else sealer
        erased = await eraser.erase(erasure, upto=upto)
        if self._sealer is not None and self._sealer is not sealer:
            await self._sealer.read_again()
        return erased

    async def note_erasure(self, offset: int) -> None:
        """Note in the archive that an erasure is carried out here.

        What other nodes have read of the log, and not erased, can't be listed from then on.

        Raises:
            ArchiveError: that can't be written.
        """
        position = await self.history.position()

        def edit(manifest: Manifest) -> Manifest:
            epoch, before = manifest.erasure
            is_known = epoch == position.epoch and before >= offset
            if is_known or not is_related(manifest, position):
                return manifest
            return msgspec.structs.replace(manifest, erasure=(position.epoch, offset))

        await trio.to_thread.run_sync(self.archive.messages.change, edit)

    async def retire(self) -> None:
        """Seal what is left if this node holds the lease, and hand it over: the server stops."""
        sealer = self._sealer
        if sealer is not None:
            with suppress(ArchiveError, HistoryUnavailable):
                await sealer.seal_now()
        self._holding.cancel()
        await self._ended.wait()

    async def aclose(self) -> None:
        """Release the archive."""
        await trio.lowlevel.checkpoint()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # the archive as others leave it

    async def _watch(self) -> None:
        is_known = True
        while True:
            try:
                await self._refresh()
            except ArchiveError as error:
                if is_known:
                    log.warning("the archive can't be read", extra={"reason": str(error)})
                is_known = False
            else:
                is_known = True
            await trio.sleep(_LOOK)

    async def _refresh(self) -> None:
        read = partial(self.archive.messages.current, self._manifest)
        self._manifest = await trio.to_thread.run_sync(read)

    # under the lease

    async def _run_under_lease(self) -> None:
        try:
            with self._holding:
                members = self._node.engine.members
                await run_under_lease(members, LEASE, lambda: self._node.name, self._hold)
        finally:
            self._ended.set()

    async def _hold(self, fence: int) -> None:
        """Seal for as long as nothing fails. Then another node gets its chance."""
        try:
            if not await self._is_able():
                return
            manifest = await claim(self.archive, self.history, fence)
            position = await self.history.position()
            if manifest.sealed > position.newest:
                return  # its ids come first
            # Before the first segment the log may have gaps already, left by retention rules.
            forgiven = 0 if manifest.segments else position.expired
            tenure = NodeTenure(self._node, manifest, self.archive.folder)
            sealer = Sealer(
                *(self.archive, self.history, self._policy, manifest, forgiven),
                *(-1, tenure, self._outage),
            )
        except Superseded:
            return
        except MistError as error:
            self._note_failure(error)
            await trio.sleep(_PAUSE)
            return
        except Exception:  # a bug of ours must not stop the server
            log.exception("the archive can't be taken over")
            self._failures += 1
            await trio.sleep(_PAUSE)
            return
        log.info("this node seals the archive", extra={"sealed": manifest.sealed, "fence": fence})
        try:
            self._sealer = sealer
            await sealer.run()
        except (ArchiveError, HistoryUnavailable) as error:
            log.info("the archive is left to another node", extra={"reason": str(error)})
            await trio.sleep(_PAUSE)
        finally:
            self._sealer = None
            self._failures += sealer.failures
            await sealer.aclose()

    def _note_failure(self, error: MistError) -> None:
        self._failures += 1
        self._outage.note(str(error))

    async def _is_able(self) -> bool:
        """Whether this node can go on with the archive. If not, others are given the chance."""
        mirror = self._node.mirror
        await self._refresh()
        manifest, position = self._manifest, await self.history.position()
        if not position.epoch or not has_erased(self._node, manifest, position.epoch):
            return False
        if manifest.sealed > position.newest and is_related(manifest, position):
            standing = await self._node.engine.standing()
            if standing.epoch == position.epoch and standing.offset <= mirror.offset:
                # No message of any epoch has these ids: the archive keeps what the log has lost.
                log.warning(
                    "the archive holds more than the engine's log; ids go on above it",
                    extra={"archive": manifest.sealed, "log": position.newest},
                )
                await self._give_ids(manifest.sealed - position.newest)
            return False  # the mirror is behind
        return self._has_all(manifest, position)

    def _has_all(self, manifest: Manifest, position: Position) -> bool:
        if not manifest.segments or position.expired <= manifest.sealed:
            self._passed = 0
            return True
        self._passed += 1
        if self._passed == 1:
            log.warning(
                "this node's mirror begins behind the end of the archive",
                extra={"archive": manifest.sealed, "mirror": position.expired + 1},
            )
        return self._passed > _PASSED

    async def _seal_on_request(self) -> None:
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            if self._sealer is not None:
                try:
                    await self._sealer.seal_now()
                except (ArchiveError, HistoryUnavailable):
                    pass  # logged; the tenure ends by it
                except Exception:  # a bug of ours must not stop the server
                    log.exception("sealing failed")
