"""The eraser: carries out the erasures that have arrived at a mirror, beside what else arrives.

An erasure is a record of the engine's log, so all mirrors erase the same. It may take long, and so
is noted with the mirror until it is done: a node that is stopped meanwhile goes on with it. What
else has to know of it, such as an archive, is told before.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from mist.change import Change
from mist.engine.node import Node
from mist.errors import MistError
from mist.history.erasure import Erased, Erasure, PendingErasure

__all__ = ["Erase", "Eraser"]

log = logging.getLogger("mist.engine")

_RETRY: Final = 1.0  # seconds
_REMEMBERED: Final = 100  # results


class Erase(Protocol):
    """See `mist.history.History.erase`."""

    async def __call__(self, erasure: Erasure, *, upto: int | None) -> Erased: ...


class Eraser:
    """See the module.

    Args:
        node: whose mirror it is.
        erase: what erases, as `History.erase`; None is the mirror's own.
        note: called with the offset of each erasure that was carried out, before it counts as such.
    """

    def __init__(
        self,
        node: Node,
        erase: Erase | None = None,
        note: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._mirror = node.mirror
        self._do = erase or node.history.erase
        self._note = note
        self._done: OrderedDict[int, Erased] = OrderedDict()
        self._changed = Change()

    @property
    def pending(self) -> int:
        """The offset of the first erasure that is not carried out yet; 0 where all are."""
        erasures = self._mirror.erasures
        return erasures[0].offset if erasures else 0

    async def run(self) -> None:
        """Erase until cancelled."""
        while True:
            while not self._mirror.erasures:
                await self._mirror.erasures_arrived.wait()
            try:
                await self._erase(self._mirror.erasures[0])
            except MistError as error:
                log.warning("an erasure is not carried out yet", extra={"reason": str(error)})
                await trio.sleep(_RETRY)

    async def _erase(self, pending: PendingErasure) -> None:
        erased = await self._do(pending.erasure, upto=pending.upto)
        if self._note is not None:
            await self._note(pending.offset)
        await self._mirror.erased(pending)
        self._done[pending.offset] = erased
        if len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
        self._changed.notify()

    async def finished(self, offset: int, check: Callable[[], None]) -> Erased:
        """Wait until the erasure of that record is carried out here.

        Args:
            check: called now and then, meanwhile. What it raises is passed on.

        Returns:
            What was erased; nothing where that is not known any more.
        """
        while self._mirror.offset < offset or 0 < self.pending <= offset:
            check()
            with trio.move_on_after(_RETRY):
                await self._changed.wait()
        return self._done.get(offset, Erased())
