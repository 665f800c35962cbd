"""Query strings: strict parsing, and the parameters of a subscription."""

import itertools
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs

import attrs
from starlette.requests import Request

from mist.commands import Since
from mist.errors import CommandError, EmptyTag, TooManySubscriptions
from mist.http.access import Asked, announce
from mist.http.openapi import Parameter, parameter
from mist.http.problems import Problem
from mist.message import ASK, Limits, TagSet, format_tags, parse_tag_list
from mist.protocols.positions import MAX_ALTERNATIVES, latest, position_from_text
from mist.sessions.session import Session

__all__ = ["CLIENT_ID", "LAST", "LATEST", "SINCE", "TAGS", "Query", "Wanted"]

_MAX_FIELDS: Final = 2 * MAX_ALTERNATIVES
_MAX_QUERY: Final = 16_384  # bytes, also where `--max-header` allows more

_LIST: Final = r"^(?![./>]|=/)[^ ,\u0000-\u001F\u007F-\u009F*]{1,63}$"
_PATTERN: Final = r"^[^ ,\u0000-\u001F\u007F-\u009F]{1,63}$"
_PLACE: Final = r"^(0|-?[1-9][0-9]{0,14}|[!-9;-~]{1,64}:(0|[1-9][0-9]{0,14}))$"

TAGS: Final = Parameter(
    "tags",
    "query",
    "A tag list: messages that carry all of these tags. Repeated: or all of those.",
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 20,  # more are accepted within the limit of the query; so many always fit
        "items": {"type": "string", "pattern": _LIST},
    },
    required=True,
    example=["news"],
)
SINCE: Final = parameter(
    "since",
    "After an id (`17`, or better `EPOCH:17`), or the last n that match (`-10`).",
    {"type": "string", "pattern": _PLACE},
    example="-10",
)
LATEST: Final = parameter(
    "latest",
    "Of each tag that matches, only the newest message: `order:*`. With `since`, of what comes "
    "after that.",
    {"type": "string", "pattern": _PATTERN},
    example="order:*",
)
CLIENT_ID: Final = parameter(
    "client",
    "An id chosen by the client, which messages can be addressed to. While it is in use, and "
    "for a minute after, it is reserved for its token.",
    {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
)
LAST: Final = parameter(
    "Last-Event-ID",
    "As browsers send it; takes precedence over `since`.",
    {"type": "string", "pattern": _PLACE},
    place="header",
)


class Query:
    """A request's query, parsed strictly: nothing is guessed or ignored.

    Raises:
        Problem: it is not UTF-8, is too long, or has too many fields (400).
    """

    def __init__(self, request: Request) -> None:
        raw: bytes = request.scope["query_string"]
        if len(raw) > _MAX_QUERY:
            raise Problem(400, "invalid_query", f"a query has at most {_MAX_QUERY} bytes")
        try:
            self._fields = parse_qs(
                raw.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_FIELDS,
            )
        except ValueError:  # its text would quote the query, which may hold a ticket
            raise Problem(400, "invalid_query", "the query can't be understood") from None

    @property
    def names(self) -> Sequence[str]:
        """The names of all fields, in order."""
        return list(self._fields)

    def all(self, name: str) -> Sequence[str]:
        """Every value of a field, in order."""
        return self._fields.get(name, ())

    def one(self, name: str) -> str | None:
        """The value of a field; None where it is absent.

        Raises:
            Problem: it is repeated (400).
        """
        values = self.all(name)
        if len(values) > 1:
            raise Problem(400, "invalid_query", f"give {name} once")
        return values[0] if values else None


@attrs.frozen
class Wanted:
    """What a request subscribes to.

    Attributes:
        tag_sets: at least one.
        since: where to start in the history; None is only new messages.
        client: the id that the client chose; None where it chose none.
    """

    tag_sets: Sequence[TagSet]
    since: Since | None
    client: str | None = None

    @classmethod
    def of(cls, request: Request, limits: Limits) -> "Wanted":
        """`?tags=a,b&tags=c&since=EPOCH:17`; Last-Event-ID, being newer, takes precedence.

        Raises:
            Problem: see `Query`; or Last-Event-ID is repeated (400).
            EmptyTag, InvalidTag, TooManyTags, TooManySubscriptions, InvalidPosition: invalid
                parameters.
        """
        query = Query(request)
        lists = query.all("tags")
        if not lists:
            raise EmptyTag
        if len(lists) > MAX_ALTERNATIVES:
            raise TooManySubscriptions
        tag_sets = [parse_tag_list(each.encode(), limits.subscription_tags, ASK) for each in lists]
        since = query.one("since")
        last = request.headers.getlist("last-event-id")
        if len(last) > 1:
            raise Problem(400, "invalid_query", "give Last-Event-ID once")
        place = last[0] if last and last[0] else since
        position = None if place is None else position_from_text(place.encode())
        pattern = query.one("latest")
        # A client that comes back with its last id follows from there.
        if pattern is not None and not (last and last[0]):
            position = _of_latest(pattern, position)
        return cls(tag_sets, position, query.one("client"))

    @classmethod
    def announce(cls, request: Request, limits: Limits) -> None:
        """Have authentication told what a request is about to subscribe to; see `of`.

        Of a query that is invalid it is told nothing: it is refused once the credential is known
        to be good, as it is where nobody is told.
        """

        def asked(request: Request) -> Asked:
            try:
                wanted = cls.of(request, limits)
            except (Problem, CommandError):
                return Asked()
            return Asked(wanted.client, format_tags(itertools.chain(*wanted.tag_sets)))

        announce(request, asked)

    def describe(self, session: Session) -> None:
        """Give a session the requested client id.

        Raises:
            ClientTaken: another token uses it.
            InvalidAudience: it is invalid.
        """
        if self.client:
            session.set_client_id(self.client)


def _of_latest(pattern: str, after: Since | None) -> Since:
    """Latest values, of what is behind a place. Raises InvalidPosition."""
    wanted = latest(pattern)
    if after is None:
        return wanted
    return attrs.evolve(after, latest=wanted.latest)
