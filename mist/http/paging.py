"""Paging of lists: `?limit=100&after=…`."""

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from starlette.requests import Request

from mist.http.openapi import Parameter, parameter
from mist.http.problems import Problem
from mist.http.queries import Query

__all__ = ["LIMIT", "MOST", "Paging", "after_parameter", "limit_of"]

MOST: Final = 1_000
_DEFAULT: Final = 100
_LIMIT: Final = re.compile(r"[1-9][0-9]{0,3}")

LIMIT: Final = parameter(
    "limit",
    "Most entries of the page.",
    {"type": "integer", "minimum": 1, "maximum": MOST, "default": _DEFAULT},
)


def after_parameter(schema: Mapping[str, Any], example: str) -> Parameter:
    """The parameter that says where a page begins."""
    return parameter("after", "`next` of the page before.", schema, example=example)


@attrs.frozen
class Paging:
    """The requested page.

    Attributes:
        limit: most entries of the page.
        after: where the page before ended; None for the first page.
    """

    limit: int
    after: str | None

    @classmethod
    def of(cls, request: Request, after: re.Pattern[str]) -> "Paging":
        """The page that a request asks for.

        Args:
            after: pattern of valid values of `after`.

        Raises:
            Problem: a parameter is repeated or invalid (400).
        """
        query = Query(request)
        limit = limit_of(query)
        place = query.one("after")
        if place is not None and not after.fullmatch(place):
            raise Problem(400, "invalid_position", "after is not a position in this list")
        return cls(limit, place)


def limit_of(query: Query) -> int:
    """The maximum number of entries of a page.

    Raises:
        Problem: it is repeated or invalid (400).
    """
    text = query.one("limit")
    if text is None:
        return _DEFAULT
    if not _LIMIT.fullmatch(text) or int(text) > MOST:
        raise Problem(400, "invalid_limit", f"limit is a number from 1 to {MOST}")
    return int(text)
