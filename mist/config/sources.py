"""Sources of settings: flags, environment, a TOML file; parsing and merging them.

Every source is checked whole, also where another takes precedence: a typing error in the file
should not stay unnoticed until the flag that hides it is removed.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from mist.config.checks import ConflictError
from mist.config.config import CONFIG_FILE, OPTIONS, Config
from mist.config.kinds import without_password
from mist.config.options import Option
from mist.errors import ConfigError

__all__ = ["CLIENT_VARIABLES", "load_config", "load_with_sources"]

CLIENT_VARIABLES: Final = frozenset({"MIST_SERVER", "MIST_HOST", "MIST_TOKEN", "MIST_URL"})
"""Variables of the client commands, which a server ignores."""

# Which code runs is settled before there is a configuration; see `mist.index.narrow`.
_IGNORED: Final = CLIENT_VARIABLES | {"MIST_PURE"}

# What Kubernetes sets in every pod beside a Service called `mist` or `mist-…`. Without this
# a server would refuse to start in a common deployment. MIST_PORT is one of them only with a
# URL in it: MIST_PORT=1445 is a mistake.
_ORCHESTRATOR = re.compile(
    r"MIST_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?==\w+://)|"
    r"PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)="
)

_BY_NAME: Final[Mapping[str, Option]] = {option.name: option for option in OPTIONS}
_BY_ENV: Final[Mapping[str, Option]] = {option.env: option for option in OPTIONS}
_MAX_SHOWN: Final = 80  # characters of a bad value in an error


@attrs.frozen
class _Given:
    """One option as one source gives it.

    Attributes:
        option: which one.
        source: its name in that source: `MIST_LISTEN`, `mist.toml: listen`, `--listen`.
        texts: the values; exactly one unless the option is repeatable.
    """

    option: Option
    source: str
    texts: tuple[str, ...]


def load_config(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None = None,
) -> Config:
    """The configuration from flags over environment over file over defaults.

    Reads the TOML file and the secret file, nothing else. A repeatable option is taken from
    the highest source that names it; values of several sources are never merged.

    Args:
        flags: only what was given, by the names in `OPTIONS`. None, and an empty tuple of a
            repeatable option, mean not given, as click hands them over.
        environ: such as `os.environ`; only `MIST_…` is looked at.
        config_file: takes precedence over the flag `config`, which does over `MIST_CONFIG`.

    Raises:
        ConfigError: with one line that names the source, the value (unless it is a secret)
            and what is expected.
    """
    return load_with_sources(flags, environ, config_file)[0]


def load_with_sources(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None = None,
) -> tuple[Config, Mapping[str, str]]:
    """As `load_config`, with where each value that is not a default came from.

    Returns:
        The configuration; and by the names of fields `--listen`, `MIST_LISTEN` or
        `mist.toml: listen`.
    """
    from_flags = list(_from_flags(flags))
    from_environ = list(_from_environ(environ))
    file = config_file or _config_file(from_flags) or _config_file(from_environ)
    from_file = [] if file is None else list(_from_file(file))

    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for given in (*from_file, *from_environ, *from_flags):
        value = _parse(given)
        if given.option is not CONFIG_FILE:
            values[given.option.field] = value
            sources[given.option.field] = given.source
    return _build(values, sources), sources


def _build(values: dict[str, Any], sources: Mapping[str, str]) -> Config:
    try:
        return Config(**values, source_warnings=tuple(_source_warnings(sources)))
    except ConflictError as error:
        # Named as in the source that has to be changed: a flag, a variable, a file's key.
        named = [sources[field] for field in error.fields if field in sources]
        source = " and ".join(named or error.fields)
        raise ConfigError(f"{source}: {error.problem}") from error


def _source_warnings(sources: Mapping[str, str]) -> Iterator[str]:
    if sources.get("secret") == _BY_NAME["secret"].flag:
        yield (
            "--secret: other users of this machine can see it in the list of processes; "
            "use --secret-file or MIST_SECRET"
        )


def _config_file(given: list[_Given]) -> Path | None:
    for one in given:
        if one.option is CONFIG_FILE:
            path: Path = _parse(one)
            return path
    return None


# Sources


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in flags.items():
        option = _BY_NAME.get(name.replace("-", "_"))
        if option is None:
            known = [option.flag for option in OPTIONS]
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{_printable(flag)}: unknown option{_nearest(flag, known)}")
        if value is None or value in ((), []):
            continue
        items = value if isinstance(value, list | tuple) else (value,)
        if len(items) > 1 and not option.repeatable:
            raise ConfigError(f"{option.flag}: given more than once")
        yield _Given(option, option.flag, tuple(map(_text, items)))


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name, text in environ.items():
        if not name.startswith("MIST_"):
            continue
        option = _BY_ENV.get(name)
        if option is not None:
            yield _Given(option, name, _split(option, text))
        elif name not in _IGNORED and not _ORCHESTRATOR.match(f"{name}={text}"):
            known = _nearest(name, list(_BY_ENV))
            raise ConfigError(f"{_printable(name)}: unknown variable{known}")


def _from_file(path: Path) -> Iterator[_Given]:
    file = _printable(str(path))
    seen: dict[str, str] = {}
    for key, value in _read_toml(path, file).items():
        name = key.replace("-", "_")
        option = _BY_NAME.get(name)
        if option is None:
            known = _nearest(name, [name for name in _BY_NAME if name != CONFIG_FILE.name])
            raise ConfigError(f"{file}: {_shown(key)}: unknown key{known}")
        source = f"{file}: {key}"
        if option is CONFIG_FILE:
            raise ConfigError(f"{source}: a configuration file can't name another")
        if name in seen:
            raise ConfigError(f"{source}: given already, as {seen[name]}")
        seen[name] = key
        yield _Given(option, source, _toml_texts(option, source, value))


def _read_toml(path: Path, file: str) -> dict[str, Any]:
    import tomllib  # not without a file

    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problem = f"can't be read: {error.strerror or 'I/O error'}"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = f"is not UTF-8 (at line {line})"
    except tomllib.TOMLDecodeError as error:
        problem = f"is not TOML: {_printable(str(error))}"
    except (ValueError, RecursionError):  # a NUL in the path, 5000 digits, 1000 brackets
        problem = "is not TOML that can be read"
    # Raised outside the handlers, so that no text of the file, perhaps a secret, is chained.
    raise ConfigError(f"{file}: {problem}")


def _toml_texts(option: Option, source: str, value: object) -> tuple[str, ...]:
    if option.repeatable and isinstance(value, str):
        return _split(option, value)
    items = value if option.repeatable and isinstance(value, list) else [value]
    for item in items:
        # type() rather than isinstance(): a bool is an int, and `outbox_bytes = true` is wrong.
        if type(item) not in option.kind.toml:
            raise ConfigError(_bad(option, source, item))
    return tuple(map(_text, items))


# Texts and values


def _split(option: Option, text: str) -> tuple[str, ...]:
    if not option.repeatable:
        return (text,)
    # Empty stays one value, and a bad one: an unset variable expands to it.
    return tuple(filter(None, re.split(r"[,\s]+", text))) or ("",)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 64:
        return hex(value)  # str() refuses more than 4300 digits; no option takes this anyway
    return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)


def _parse(given: _Given) -> Any:
    option = given.option
    values = []
    for text in given.texts:
        try:
            values.append(option.kind.parse(text))
        except ValueError as error:
            line = _bad(option, given.source, text, str(error))
            raise ConfigError(line) from None  # the error may hold the value
    return tuple(values) if option.repeatable else values[0]


# Messages


def _bad(option: Option, source: str, value: object, reason: str = "") -> str:
    parts = [source] if option.hidden else [source, _shown(value)]
    expected = f"expected {option.kind.expected}"
    return ": ".join([*parts, f"{reason}; {expected}" if reason else expected])


def _shown(value: object) -> str:
    """A value as an error shows it: short, on one line, without a URL's password."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = without_password(value) if isinstance(value, str) else _text(value)
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return repr(short) if isinstance(value, str) else short


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _nearest(name: str, known: list[str]) -> str:
    import difflib  # not for settings that are there

    near = difflib.get_close_matches(name[:_MAX_SHOWN], known, n=1)
    return f"; did you mean {near[0]}?" if near else "; mist serve --help lists all options"
