"""Options: the name of each in every source, how its value is written, its help text.

Options are described in the metadata of the fields of `Settings` (`about`) and read back from there
(`option_of`), so that a field and its option can't drift apart.
"""

from typing import Any

import attrs

from mist.config import kinds
from mist.config.kinds import Kind

__all__ = ["Option", "about", "option_of"]


@attrs.frozen
class Option:
    """One option of `mist serve`, the same in every source.

    Attributes:
        name: the key in a TOML file, `outbox_bytes`; flag and variable are made from it.
        field: the field of Settings that it sets.
        kind: how a value is written; for a repeatable option, one of its values.
        help: one sentence without a full stop, the unit in it.
        default: the value where no source names the option.
        default_text: the default for a help text; empty where nothing is set.
        repeatable: whether it holds a tuple: a flag given several times, a list in TOML,
            separated by commas or spaces in a variable.
        hidden: whether its value must never be shown.
    """

    name: str
    field: str
    kind: Kind[Any]
    help: str
    default: object = None
    default_text: str = ""
    repeatable: bool = False
    hidden: bool = False

    @property
    def flag(self) -> str:
        """`--outbox-bytes`."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """`MIST_OUTBOX_BYTES`."""
        return "MIST_" + self.name.upper()

    @property
    def metavar(self) -> str:
        """The placeholder of a value in help texts; empty for a switch."""
        return self.kind.metavar

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value."""
        return self.kind is kinds.SWITCH


def about(
    kind: Kind[Any],
    help_text: str,
    *,
    name: str | None = None,
    default_text: str | None = None,
    repeatable: bool = False,
    hidden: bool = False,
) -> dict[str, object]:
    """A field's metadata; `option_of` makes the Option from it."""
    return {
        "kind": kind,
        "help": help_text,
        "name": name,
        "default_text": default_text,
        "repeatable": repeatable,
        "hidden": hidden,
    }


def _show_default(kind: Kind[Any], default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, tuple):
        return " ".join(map(kind.show, default))
    return kind.show(default)


def option_of(field: "attrs.Attribute[Any]", default: object) -> Option:
    """The Option of a field whose metadata `about` made."""
    metadata = field.metadata
    text = metadata["default_text"]
    return Option(
        name=metadata["name"] or field.name,
        field=field.name,
        kind=metadata["kind"],
        help=metadata["help"],
        default=default,
        default_text=_show_default(metadata["kind"], default) if text is None else text,
        repeatable=metadata["repeatable"],
        hidden=metadata["hidden"],
    )
