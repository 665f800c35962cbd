"""Publishing one message and saying what came of it, as `POST /v1/messages` does, in a session.

The session waits for the outcome before it handles the next command, so a peer has one message in
flight, and what it sends meanwhile waits in its connection. Messages of many peers are stored
together (group commit).
"""

from functools import partial

from mist.broker.attribute_index import for_site
from mist.commands import PublishOnce
from mist.errors import HistoryUnavailable, KeyConflict, NotAllowed, NotGranted
from mist.history import Key
from mist.history.idempotency import key_name
from mist.message import Envelope, format_tags
from mist.replies import Done, Stored
from mist.sessions.batching import Checked
from mist.sessions.session import Session

__all__ = ["publish_once"]


async def publish_once(session: Session, command: PublishOnce) -> Done | Stored:
    """Publish a message for a session; once, where it has a key.

    Returns:
        `Stored`, with the message's id, where there is a history: the message is durable then.

    Raises:
        NotAllowed: the token may publish nothing at all.
        NotGranted: it may not publish this one, or was revoked meanwhile.
        KeyConflict: the key was used for another message.
        HistoryUnavailable: nothing was published; also where too much waits to be stored.
        CommandError: `command.error`; or the tags match too much.
    """
    record, hub = session.record, session.hub
    if record is not None and not record.grant.publishes:
        raise NotAllowed
    if command.error is not None:
        raise command.error
    key = None
    if command.key:
        # As over HTTP, so that a publish may be repeated there, and here what was begun there.
        owner = "service" if record is None else f"token {record.id}"
        key = Key(key_name(owner, command.key), command.digest)
    sequencer = hub.sequencer
    if sequencer is None:
        await _publish_live(session, command, key)
        return Done()
    first: int | None
    if key is None:
        first = await _store(session, command, None)
    else:
        first = await sequencer.keys_in_flight.once(key, partial(_store, session, command, key))
    if first is None:
        raise KeyConflict
    return Stored(first)


async def _publish_live(session: Session, command: PublishOnce, key: Key | None) -> None:
    hub = session.hub
    with Checked(hub.broker) as checked:
        await _check(session, command, checked)
        # From here to the publishing without an await; once that has begun, it is done.
        fresh: list[Key] = []
        if key is not None and not hub.keys_in_memory.once(key, lambda: fresh.append(key)):
            raise KeyConflict
        if key is None or fresh:
            await hub.publish_checked(checked, _envelopes(session, command), session.account)


async def _store(session: Session, command: PublishOnce, key: Key | None) -> int:
    """Publish durably; the message's id. With a key it may run when the session has ended."""
    hub = session.hub
    with Checked(hub.broker) as checked:
        await _check(session, command, checked)
        if hub.sequencer is not None and hub.sequencer.congested:
            raise HistoryUnavailable("too much is waiting to be stored")
        publisher = "" if session.record is None else session.record.id
        return await hub.store_checked(checked, publisher, key, _envelopes(session, command))


async def _check(session: Session, command: PublishOnce, checked: Checked) -> None:
    """Check the message, and then the right to publish it, which holds until the next await.

    Raises:
        NotGranted, TooManyMatches: see `publish_once`.
    """
    messages = [(format_tags(command.tags).encode(), command.data)]
    await session.hub.check(checked, messages, session.account)
    record = session.record
    if record is None:
        return
    # A session that has ended may have lost its token. Its peer, if there is one, asks again.
    if session.ended is not None or not record.grant.may_publish(command.tags):
        raise NotGranted


def _envelopes(session: Session, command: PublishOnce) -> list[Envelope | None]:
    audience = command.audience
    site = session.attributes.site
    if site:
        audience = for_site(audience, site)
    return [] if audience is None else [Envelope(audience=audience)]
