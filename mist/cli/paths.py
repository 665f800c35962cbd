"""The type of every option that names a file or directory; see `mist.config.paths`."""

from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource

from mist.config.paths import EXPECTED, parse_path

__all__ = ["LocalPath"]


class LocalPath(click.Path):
    """A path on this machine, also as `file://`; other schemes are refused.

    Args:
        options: as for `click.Path`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; what is checked of it is checked after `file://` is gone."""
        try:
            path = parse_path(str(value))
        except ValueError as error:
            reason = f"{error}; " if str(error) else ""
            raise _BadPath(f"{reason}expected {EXPECTED}", ctx, param) from None
        return super().convert(path, param, ctx)


class _BadPath(click.BadParameter):
    """One line on standard error, without the usage: scripts read it."""

    def show(self, file: IO[Any] | None = None) -> None:
        assert self.ctx is not None
        click.echo(
            f"{self.ctx.command_path}: {self._option()}: {self.message}",
            file=file,
            err=file is None,
        )

    def _option(self) -> str:
        """Its name in the source that has to be changed: a flag, or a variable."""
        assert self.ctx is not None
        assert self.param is not None
        variable = self.param.envvar
        source = self.ctx.get_parameter_source(self.param.name or "")
        if source is ParameterSource.ENVIRONMENT and isinstance(variable, str):
            return variable
        return self.param.opts[-1]
