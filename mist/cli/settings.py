"""The settings of a server as options: of `mist serve`, and of commands that look at them."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from mist.config import OPTIONS

__all__ = ["settings_options"]


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for every configuration option; the configuration parses and validates it."""
    for option in reversed(OPTIONS):
        settings: dict[str, Any] = {"help": option.help}
        if option.default_text:
            settings["help"] += f"  [default: {option.default_text}]"
        if option.is_switch:
            settings |= {"is_flag": True, "default": None}
        else:
            settings |= {"metavar": option.metavar, "multiple": option.repeatable}
            settings["shell_complete"] = _complete
        command = click.option(option.flag, option.name, **settings)(command)
    return command


def _complete(
    _context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """What a shell offers for a value: paths, or the values of a choice."""
    values = option.metavar or ""
    if values in ("FILE", "DIR"):
        return [CompletionItem(incomplete, type=values.lower())]
    choices = values.split("|") if "|" in values else []
    return [CompletionItem(each) for each in choices if each.startswith(incomplete)]
