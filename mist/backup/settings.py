"""Settings as a TOML file that `--config` reads: those that are not the defaults, no secrets."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime

from mist.config import CONFIG_FILE, OPTIONS, Config
from mist.config.kinds import SWITCH, without_password
from mist.config.options import Option

__all__ = ["settings_text"]


def settings_text(config: Config) -> str:
    """The file. A secret is left out, and a URL with a password is a comment without it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    folder = os.getcwd().encode(errors="backslashreplace").decode()
    lines = [
        f"# Settings of a server of mist, {now}; relative paths are in {folder}",
        *(line for option in OPTIONS for line in _line(option, config)),
    ]
    return "\n".join(lines) + "\n"


def _line(option: Option, config: Config) -> Iterator[str]:
    if option is CONFIG_FILE:
        return
    value = getattr(config, option.field)
    if option.hidden:
        if value is not None:
            yield f"# {option.name}: left out"
        return
    if value == option.default or value is None:
        return
    if option.repeatable:
        texts = [option.kind.show(each) for each in value]
        shown = f"[{', '.join(map(_quoted, texts))}]"
    else:
        texts = [option.kind.show(value)]
        shown = texts[0] if option.kind is SWITCH else _quoted(texts[0])
    if any(without_password(text) != text for text in texts if "://" in text):
        yield f"# {option.name}: left out, since it may have a password"
        return
    if any(map(_is_no_text, texts)):
        yield f"# {option.name}: left out, since it is not UTF-8"
        return
    yield f"{option.name} = {shown}"


def _is_no_text(text: str) -> bool:
    """Whether it has surrogates, as a path has for bytes that aren't UTF-8."""
    return any("\ud800" <= each <= "\udfff" for each in text)


def _quoted(text: str) -> str:
    # A JSON string is one of TOML, but for surrogates.
    return json.dumps(text, ensure_ascii=False)
