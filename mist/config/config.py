"""Config: the settings of a server, checked against each other, and the table of its options."""

from collections.abc import Iterator
from typing import Final

import attrs

from mist.config import kinds
from mist.config.checks import find_conflicts, find_warnings, read_secret
from mist.config.options import Option, option_of
from mist.config.settings import Settings

__all__ = ["CONFIG_FILE", "OPTIONS", "Config"]


@attrs.frozen(kw_only=True)
class Config(Settings):
    """How a server is set up. `Config()` is a server for this machine alone.

    Attributes:
        secret_bytes: the effective secret, from `secret` or read from `secret_file` when the
            Config is made; None where there is none. Not an option.
        source_warnings: what `load_config` noticed about the sources of values.

    Raises:
        ConfigError: settings that contradict each other, or a secret that can't be read.
    """

    secret_bytes: bytes | None = attrs.field(
        init=False, repr=False, default=attrs.Factory(read_secret, takes_self=True)
    )
    source_warnings: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for conflict in find_conflicts(self, has_secret=self.secret_bytes is not None):
            raise conflict

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know when the server starts, a line each. Holds no secret."""
        warnings = find_warnings(self, has_secret=self.secret_bytes is not None)
        return (*self.source_warnings, *warnings)


def _options() -> Iterator[Option]:
    defaults = Config()
    for field in attrs.fields(Config):
        if field.metadata:
            yield option_of(field, getattr(defaults, field.name))


CONFIG_FILE: Final = Option(
    "config", "", kinds.path(), "TOML file with any of these options as keys"
)
"""The one option that is no setting: where settings are read from. Not allowed in the file."""

OPTIONS: Final[tuple[Option, ...]] = (*_options(), CONFIG_FILE)
"""Every option of `mist serve`, in the order of its help text."""
