"""`mist config show`: every setting, and where its value came from."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import click

from mist.cli.exits import USAGE, fail
from mist.cli.options import json_option, print_json
from mist.cli.settings import settings_options
from mist.config import CONFIG_FILE, OPTIONS, Config, Option, load_with_sources
from mist.config.kinds import without_password
from mist.errors import ConfigError

__all__ = ["Shown", "show", "shown_settings"]

_HIDDEN: Final = "(hidden)"
_DERIVED: Final = {"tokens": "tokens_url", "history": "history_url"}  # defaults that are made out


@attrs.frozen
class Shown:
    """A setting, as it is shown.

    Attributes:
        name: as a key of the file.
        value: as it would be written; None where nothing is set; never a secret.
        source: `default`, `file`, `environment` or `flag`.
        origin: where exactly: `--listen`, `MIST_LISTEN`, `mist.toml: listen`.
    """

    name: str
    value: str | list[str] | None
    source: str
    origin: str | None


@click.command()
@click.option("--given", is_flag=True, help="Only what is not a default")
@json_option("One JSON object")
@settings_options
def show(given: bool, as_json: bool, **flags: object) -> None:
    """Print every setting, and where its value is from.

    Flags come before variables, variables before the file of --config, the file before defaults.
    Secrets are not shown, nor are passwords in URLs.
    """
    try:
        config, sources = load_with_sources(flags, os.environ)
    except ConfigError as error:
        fail(str(error), USAGE)
    found = [each for each in shown_settings(config, sources) if not given or each.origin]
    if as_json:
        print_json({"settings": [attrs.asdict(each) for each in found]})
        return
    widest = max((len(each.name) for each in found), default=0)
    for each in found:
        value = each.value
        text = "-" if value is None else " ".join(value) if isinstance(value, list) else value
        click.echo(f"{each.name:<{widest}}  {text}  ({each.origin or 'default'})")


def shown_settings(config: Config, sources: Mapping[str, str]) -> Iterator[Shown]:
    """All settings in the order of the help text.

    Args:
        sources: of the values that are not defaults, see `load_with_sources`.
    """
    for option in OPTIONS:
        if option is not CONFIG_FILE:
            origin = sources.get(option.field)
            yield Shown(option.name, _value(config, option), _source(origin), origin)


def _value(config: Config, option: Option) -> str | list[str] | None:
    value = getattr(config, option.field)
    if value is None and option.name in _DERIVED:
        value = getattr(config, _DERIVED[option.name])
    if value is None:
        return None
    if option.hidden:
        return _HIDDEN
    if option.repeatable:
        return [_text(option, each) for each in value]
    return _text(option, value)


def _text(option: Option, value: Any) -> str:
    return without_password(option.kind.show(value))


def _source(origin: str | None) -> str:
    if origin is None:
        return "default"
    if origin.startswith("--"):
        return "flag"
    # A file's name ends in a colon and the key.
    return "file" if ": " in origin else "environment"
