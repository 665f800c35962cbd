"""The fields of a JSON frame, and what is said of one that isn't what it should be."""

from typing import Any, TypeGuard

from mist.errors import CommandError

__all__ = ["BadField", "Request", "is_texts"]

Request = dict[str, Any]
"""A frame's object, as decoded."""


class BadField(CommandError):
    """A field of a frame that isn't what it should be."""

    code = "bad_field"


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Whether a field is a list of strings, perhaps of none."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
