"""Lists that are given a page at a time: `?limit=100&after=…`."""

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
    "The most that the page may hold.",
    {"type": "integer", "minimum": 1, "maximum": MOST, "default": _DEFAULT},
)


def after_parameter(schema: Mapping[str, Any], example: str) -> Parameter:
    """What says where a page begins."""
    return parameter("after", "`next` of the page before.", schema, example=example)


@attrs.frozen
class Paging:
    """Which page is asked for.

    Attributes:
        limit: the most that it may hold.
        after: where the page before ended; None for the first page.
    """

    limit: int
    after: str | None

    @classmethod
    def of(cls, request: Request, after: re.Pattern[str]) -> "Paging":
        """What a request asks for.

        Args:
            after: what `after` has to look like.

        Raises:
            Problem: something is there twice, or is not what it should be (400).
        """
        query = Query(request)
        limit = limit_of(query)
        place = query.one("after")
        if place is not None and not after.fullmatch(place):
            raise Problem(400, "invalid_position", "after is no place in this list")
        return cls(limit, place)


def limit_of(query: Query) -> int:
    """The most that a page may hold.

    Raises:
        Problem: it is there twice, or is not what it should be (400).
    """
    text = query.one("limit")
    if text is None:
        return _DEFAULT
    if not _LIMIT.fullmatch(text) or int(text) > MOST:
        raise Problem(400, "invalid_limit", f"limit is a number from 1 to {MOST}")
    return int(text)
