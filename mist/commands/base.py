"""What all commands have in common."""

import attrs

__all__ = ["BaseCommand"]


@attrs.define(kw_only=True)
class BaseCommand:
    """What all commands have.

    Attributes:
        ref: whatever the protocol wants to see again beside the reply, such as a request
            number. No other layer looks at it.
    """

    ref: object = None
