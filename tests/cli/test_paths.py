"""Every option of a command that names a file or directory takes paths of this machine only."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mist.cli import main
from mist.cli.paths import LocalPath
from mist.config import OPTIONS
from mist.config.paths import EXPECTED


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def path_options() -> Iterator[tuple[str, ...]]:
    """(command…, flag) of all options that name paths, found by their placeholders."""
    of_server = {option.flag for option in OPTIONS if option.kind.expected == EXPECTED}
    for path, command in commands(main):
        for parameter in command.params:
            flag = parameter.opts[-1]
            metavar = getattr(parameter, "metavar", None) or ""
            named = metavar in ("DIR", "FILE") or isinstance(parameter.type, click.Path)
            if named or (path == ("serve",) and flag in of_server):
                yield (*path, flag)


PATH_OPTIONS = list(path_options())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; a server that is wrongly started ends at once."""

    async def refuse(*_: object) -> None:
        raise AssertionError("the server was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mist.serving.serve", refuse)
    return tmp_path


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner(env=variables).invoke(main, arguments, prog_name="mist")


def test_the_options_are_found() -> None:
    assert len(PATH_OPTIONS) > 60
    for expected in (
        ("serve", "--archive"),
        ("publish", "--secret-file"),
        ("history", "tail", "--data"),
        ("pipeline", "export", "--out"),
        ("pipeline", "stream", "--checkpoint"),
        ("pipeline", "erase", "--receipt"),
        ("pipeline", "report", "billing", "--html"),
        ("bench", "history", "--folder"),
    ):
        assert expected in PATH_OPTIONS


@pytest.mark.parametrize("option", PATH_OPTIONS, ids=" ".join)
def test_a_scheme_that_cannot_be_written_is_refused_in_one_line(
    here: Path, option: tuple[str, ...]
) -> None:
    *command, flag = option
    flags = (flag,) if flag.startswith("-") else ()  # or it is an argument
    done = run(*command, *flags, "s3a://key:hidden@bucket/x")
    assert done.exit_code == 2
    said, silent = done.stderr, done.stdout
    if command == ["config", "check"]:  # what it finds is what it prints
        said, silent = silent, said
    (line,) = said.splitlines()
    assert f"{flag}: " in line
    assert "s3a:// is not supported; expected a path, or file:///PATH" in line
    assert "hidden" not in line
    assert silent == ""
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("variable", ["MIST_ARCHIVE", "MIST_DATA"])
def test_a_variable_is_refused_as_well(here: Path, variable: str) -> None:
    done = run("pipeline", "compact", **{variable: "hdfs://name/x"})
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert f"{variable}: hdfs:// is not supported; expected" in line
    assert list(here.iterdir()) == []


def test_a_file_url_is_the_path_in_it(here: Path) -> None:
    done = run("pipeline", "compact", "--archive", f"file://{here}/a%20b")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith(
        f"mist pipeline compact: no archive at {here}/a b"
    )


def test_a_file_that_has_to_exist_is_found_by_its_url(here: Path) -> None:
    (here / "secret").write_text("s")
    kind = LocalPath(exists=True, dir_okay=False)
    assert kind.convert(f"file://{here}/secret", None, None) == here / "secret"
    with pytest.raises(click.BadParameter, match="does not exist"):
        kind.convert(f"file://{here}/none", None, None)
