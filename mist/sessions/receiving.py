"""Receiving: what arrives from a peer is handled in order, command by command, in turns.

A transport feeds it what it reads (`CommandSession.receive`), and `dispatch` handles each command.
Here the kind of a command matters for three reasons only: publishes, most of the traffic, skip the
dispatch; changes of the token registry are collected, so that a run of them waits for the disk
once; and so are changes of queue groups, which other nodes have to hear of before the next command.
"""

import logging
from typing import Final

import trio

from mist.commands import (
    Command,
    Pause,
    Publish,
    RegistryChange,
    SubscribeNamed,
    UnsubscribeNamed,
)
from mist.errors import MistError, RegistryUnavailable
from mist.replies import Done, Failed
from mist.sessions.dispatch import DispatchingSession
from mist.sessions.token_list import count_weak

__all__ = ["CommandSession"]

log = logging.getLogger("mist.sessions")

_CHANGES: Final = 500  # of the registry, made as one: 5 ms
_MEASURED: Final = 16  # flushes; the chunk after as many is measured, at a cost not seen


class CommandSession(DispatchingSession):
    """See the module. Made as a `DispatchingSession`."""

    __slots__ = ()

    async def receive(self, data: bytes) -> bool:
        """Handle the commands in what has arrived, then flush every outbox they concerned.

        Stops where a command ends the session, which the caller sees by `ended`. Cancellation
        leaves the commands that came before it handled. While the server shuts down, nothing more
        is handled; see `mist.transports.graceful_shutdown`.

        Returns:
            whether other sessions had their turn meanwhile; else the caller, in its loop, has to
            give them one.
        """
        if self.hub.ending:
            await trio.sleep_forever()  # until the session ends
        publisher = self._publisher
        turns = self.hub.turns
        self.handling = True
        began, published = 0.0, False
        # With a history the sequencer's task writes what this publishes, and measures it.
        if not self.hub.broker.flushes % _MEASURED and publisher is None:
            began = self.hub.meters.clock()
        try:
            start = await turns.begin(self.account, late=not self.live)
            commands = self.protocol.receive(data)
            if self.allowance is not None or self.unauthenticated:
                commands = self.hub.token_limits.commands(self, len(data), commands)
            for command in commands:
                if isinstance(command, Publish) and not self.unauthenticated and not self._changes:
                    # Nearly always, and often all that there is.
                    if publisher is None:
                        await self._publish_live(command)
                        published = True
                    else:
                        await self._publish_stored(publisher, command)
                    # Each may be short, and all that a chunk has of them long.
                    if turns.spent(start):
                        await self.hub.flush_scheduler.rest(self.account, late=not self.live)
                        if self.ended is not None:
                            break
                    continue
                if isinstance(command, Pause):  # which waits for nothing that was published
                    if turns.spent(start):
                        await self.hub.flush_scheduler.rest(self.account, late=not self.live)
                    if self.ended is not None:
                        break
                    continue
                if publisher is not None:  # only with a history is there anything to wait for
                    await self._catch_up(publisher)
                if self._changes:
                    if isinstance(command, RegistryChange) and len(self._changes) < _CHANGES:
                        self._changes.append(command)  # the first of the run was dispatched
                        if turns.spent(start):
                            await self.hub.flush_scheduler.rest(self.account, late=not self.live)
                        continue
                    await self._change_registry()
                if self._queues_changed and not self._belongs(command):
                    await self._settle_queues()
                await self.dispatch(command)
                if self._changes:
                    continue  # held back until the run ends
                if turns.spent(start):
                    await self.hub.flush_scheduler.rest(self.account, late=not self.live)
                if self.ended is not None:
                    break
            else:
                if self._changes:
                    await self._change_registry()
                if self._queues_changed:
                    await self._settle_queues()
                if publisher is not None and publisher.full:
                    await publisher.settle()
        finally:
            try:
                answered = None if published else self.outbox
                rested = await self.hub.flush_scheduler.pause(self.name, answered)
            finally:
                self.handling = False
                self.live = not self.unauthenticated and not self.outbox.paused
        if began and published:
            self.hub.meters.publish_to_write.end(began)
        return rested

    def _belongs(self, command: Command) -> bool:
        """Whether a command belongs to a run of changes of which other nodes hear at once."""
        return isinstance(command, UnsubscribeNamed) or (
            isinstance(command, SubscribeNamed) and not self._leaving
        )

    async def _settle_queues(self) -> None:
        """Go on once all nodes know of the members of queue groups that came, and of those that
        leave. Replies behind it can be told from outside: what is published then is theirs.
        """
        assert self.hub.nodes is not None
        try:
            await self.hub.nodes.queue_members.settled()
        finally:
            leaving, self._leaving = self._leaving, []
            self._queues_changed = False
            for named in leaving:
                self.named_subscriptions.drop(named)

    async def _change_registry(self) -> None:
        """Make the changes that were held back, as one."""
        changes, self._changes = self._changes, []
        # Deliveries shall not wait for the registry's disk.
        self.hub.flush_scheduler.flush()
        try:
            outcomes = await self.hub.registry.execute(changes)
        except RegistryUnavailable as error:
            for command in changes:
                self._answer(command, Failed(error))
            return
        await self.hub.token_changes.settled()
        if weak := count_weak(changes):
            log.warning("weak tokens, which may be guessed", extra={"tokens": weak})
        for command, outcome in zip(changes, outcomes, strict=True):
            reply = Failed(outcome) if isinstance(outcome, MistError) else Done()
            self._answer(command, reply)
