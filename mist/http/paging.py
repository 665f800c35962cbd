"""Lists that are given a page at a time: `?limit=100&after=…`."""

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from starlette.requests import Request

from mist.http.openapi import Parameter, parameter
from mist.http.problems import Problem

__all__ = ["LIMIT", "MOST", "Paging", "after_parameter"]

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
        limit = _one(request, "limit")
        if limit is not None and (not _LIMIT.fullmatch(limit) or int(limit) > MOST):
            raise Problem(400, "invalid_limit", f"limit is a number from 1 to {MOST}")
        place = _one(request, "after")
        if place is not None and not after.fullmatch(place):
            raise Problem(400, "invalid_position", "after is no place in this list")
        return cls(_DEFAULT if limit is None else int(limit), place)


def _one(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise Problem(400, "invalid_query", f"{name} is there twice")
    return values[0] if values else None
