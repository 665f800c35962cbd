"""Admission: whether a WebSocket is accepted, and as whom, by what its handshake offers.

`handshake` has what that may be, and how a refusal is told.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from mist.auth import Record
from mist.auth.credentials import Login
from mist.engine.errors import EngineUnavailable
from mist.errors import ClientTaken, InvalidAudience, RegistryUnavailable
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.topics import TopicProtocol
from mist.protocols.topics.forms import TopicForm
from mist.sessions.close_reason import CloseReason
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.transports import handshake
from mist.transports.handshake import PATH, Offer, Origins, Refusal
from mist.transports.http1 import RequestHead

__all__ = ["SWITCHED", "Admission", "refuse"]

SWITCHED: Final = 101
"""Status of an answer behind which frames follow."""


class Admission:
    """See the module.

    Args:
        hub: what all sessions share.
        name: of the listener.
        origins: which pages may connect.
        query_token: whether a token may come in the URL.
        bring: awaited with a ticket before it is redeemed.
        redeem: takes a ticket and the request's Origin; the record of its token, or None where
            it is not good.
        is_local: whether the listener can be reached from this machine only. Then guble's
            services need no token, unless the server has a secret.
    """

    def __init__(
        self,
        hub: Hub,
        name: str,
        origins: Origins,
        *,
        query_token: bool,
        bring: Callable[[str], Awaitable[None]] | None,
        redeem: Callable[[str, str | None], Record | None],
        is_local: bool,
    ) -> None:
        self._hub = hub
        self._name = name
        self._origins = origins
        self._query_token = query_token
        self._bring = bring
        self._redeem = redeem
        self._is_local = is_local
        self._topic_form = TopicForm(hub.now)  # one for all, so that each is written once

    async def answer(
        self,
        session: CommandSession,
        head: RequestHead,
        refusal: Refusal | None,
        *,
        early: bool,
    ) -> int:
        """Accept or refuse, and queue the answer. From the look at the token on there is no await.

        Args:
            refusal: why it is refused whatever it says.
            early: whether anything has arrived behind the head. A client may say nothing more
                before it is answered (RFC 6455, section 4.1).

        Returns:
            The answer's status; 101 where frames follow.
        """
        asked = handshake.read_handshake(head)
        if isinstance(asked, Refusal) or early:
            return refuse(session, asked if isinstance(asked, Refusal) else handshake.BAD_REQUEST)
        key, subprotocols = asked
        offer = handshake.read_offer(
            head.target.decode("latin-1"),
            head.headers,
            subprotocols,
            query_token=self._query_token,
            is_credential=self._hub.credentials.accepts,
        )
        if offer.subprotocol == handshake.JSON:
            session.set_protocol(JsonFrameProtocol(self._hub.limits, unauthenticated=True))
        session.origin = offer.origin
        if refusal is None and offer.token is not None:
            try:
                await self._hub.credentials.prepare(offer.token, self._login(session, offer))
            except RegistryUnavailable:
                refusal = handshake.UNAVAILABLE
        if refusal is None and offer.ticket is not None and self._bring is not None:
            try:
                await self._bring(offer.ticket)
            except EngineUnavailable:
                refusal = handshake.UNAVAILABLE
        refusal = refusal or self._judge(session, offer)
        if refusal is not None and (offer.subprotocol is None or refusal is handshake.NOT_FOUND):
            return refuse(session, refusal)
        if refusal is None and offer.user is not None:
            session.set_protocol(self._topics(session, offer.user))
        session.outbox.reply(handshake.welcome_head(key, offer.answered))
        if refusal is not None:
            session.end(CloseReason(refusal.code, refusal.reason))
            return SWITCHED
        session.outbox.reply(session.protocol.greeting())
        session.outbox.flush()
        return SWITCHED

    def _judge(self, session: CommandSession, offer: Offer) -> Refusal | None:
        """Look an offer over; a good token is adopted, and its absence put off to a frame."""
        try:
            return self._look_over(session, offer)
        except RegistryUnavailable:
            return handshake.UNAVAILABLE
        except ClientTaken:
            return handshake.CLIENT_TAKEN
        except InvalidAudience:
            return handshake.BAD_REQUEST

    def _look_over(self, session: CommandSession, offer: Offer) -> Refusal | None:
        if offer.path != PATH and offer.user is None:
            return handshake.NOT_FOUND
        if offer.has_body:
            return handshake.BAD_REQUEST
        if not self._origins.allow(offer.origin):
            return handshake.FORBIDDEN_ORIGIN
        if offer.ambiguous:
            return handshake.TWO_CREDENTIALS
        if offer.client:
            session.set_client_id(offer.client)  # it has that before anybody is told of it
        if offer.ticket is not None:
            record = self._redeem(offer.ticket, offer.origin)
        elif offer.token is not None:
            record = self._hub.credentials.find(offer.token, self._login(session, offer))
        elif offer.subprotocol is not None and offer.user is None:
            return None
        elif self._is_service(offer):
            session.mark_authenticated()
            session.set_client_id(offer.client or _new_client_id())
            self._hub.sessions.attach(session)
            return None
        else:
            return self._unauthorized()
        if record is None or not record.tags:
            return self._unauthorized()
        if offer.user is not None and record.attributes.user not in ("", offer.user):
            return handshake.FORBIDDEN_USER
        if self._hub.token_limits.is_full(record, self._hub.sessions.count):
            return handshake.TOO_MANY
        if offer.user is not None and not (offer.client or record.attributes.client):
            session.set_client_id(_new_client_id())
        session.adopt(record)
        return None if session.ended is None else handshake.CLIENT_TAKEN

    def _login(self, session: CommandSession, offer: Offer) -> Login:
        return Login(self._name, session.peer, offer.origin, offer.client)

    def _is_service(self, offer: Offer) -> bool:
        """Whether a client without a token may do everything, as over TCP and HTTP.

        Its origin, if it has one, is allowed: that was looked at before.
        """
        return (
            offer.user is not None
            and self._is_local
            and offer.is_local
            and not self._hub.needs_secret
        )

    def _topics(self, session: CommandSession, user: str) -> TopicProtocol:
        """What understands a client of guble's."""
        outbox = session.outbox  # rather than the session, which knows its protocol
        return TopicProtocol(
            self._hub.limits,
            self._topic_form,
            user=lambda: outbox.attributes.user or user,
            application=session.attributes.client,
            clock=self._hub.now,
            stores=self._hub.sequencer is not None,
        )

    def _unauthorized(self) -> Refusal:
        self._hub.note_failed_auth(self._name, "token")
        return handshake.UNAUTHORIZED


def _new_client_id() -> str:
    """Of a client of guble's that has none."""
    return secrets.token_hex(10)


def refuse(session: CommandSession, refusal: Refusal) -> int:
    """Queue the answer to a handshake that is refused, and end the session. Its status."""
    session.outbox.reply(handshake.refusal_head(refusal.status))
    session.end(CloseReason(refusal.code, refusal.reason))
    return refusal.status
