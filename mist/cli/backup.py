"""`mist backup` and `mist restore`."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import click
import msgspec

from mist.backup.making import Made, make_backup
from mist.backup.manifest import BackupError, Manifest
from mist.backup.restoring import Restored, restore_backup
from mist.cli.exits import REFUSED, UNREACHABLE, USAGE, fail
from mist.cli.options import data_option, json_option, print_json
from mist.cli.paths import LocalPath
from mist.control import ControlError, NoServer, ask

__all__ = ["backup", "restore"]

_TOKENS_SECONDS = 120.0


@click.command(
    epilog="""\b
Examples:
  mist backup /var/backups/mist --data /var/lib/mist
  mist restore /var/backups/mist --data /var/lib/mist-restored"""
)
@click.argument("folder", metavar="DIR", type=LocalPath(file_okay=False))
@data_option
@click.option("--verify", is_flag=True, help="Check all of the history, not just what is new")
@json_option("One JSON object")
def backup(folder: Path, data: Path, verify: bool, as_json: bool) -> None:
    """Back up a running server into DIR, or bring the backup there up to date.

    History, tokens and their key, and settings without secrets. The server goes on meanwhile. What
    is written is checked; exit code 1 if anything is damaged. Run it as the server's user, on its
    machine. DIR holds the tokens' key: keep it as safe as the server.
    """
    try:
        made = make_backup(folder, partial(ask, data, timeout=_TOKENS_SECONDS), verify=verify)
    except NoServer as error:
        fail(f"{error}; that of a server that is stopped is copied as it is", UNREACHABLE)
    except (BackupError, ControlError) as error:
        fail(str(error), REFUSED)
    if as_json:
        result = {
            "backup": msgspec.to_builtins(made.manifest),
            "blocks": made.blocks,
            "written": made.written,
            "problems": made.problems,
            "seconds": round(made.seconds, 3),
        }
        print_json(result)
    else:
        _show_made(made)
    if made.problems:
        fail("the history is damaged; `mist history verify` tells where", REFUSED)


def _show_made(made: Made) -> None:
    manifest = made.manifest
    if manifest.engine is not None:
        click.echo(
            f"history: in {manifest.engine}: back that up as you do others; see docs/backup.md"
        )
    elif manifest.history is None:
        click.echo("history: none on a disk")
    else:
        found = manifest.history
        new = "all of it" if made.blocks is None else f"{made.blocks:,} blocks"
        click.echo(
            f"history: {found.messages:,} messages, up to id {found.newest} of epoch "
            f"{found.epoch}; {new} written, {made.written:,} bytes"
        )
    for problem in made.problems:
        click.echo(f"damaged: {problem}")
    if manifest.tokens is None:
        click.echo("tokens: none on a disk")
    else:
        click.echo(f"tokens: {manifest.tokens:,}, and their key")
    _show_archive(manifest)


def _show_archive(manifest: Manifest) -> None:
    if manifest.archive is not None:
        found = manifest.archive
        click.echo(
            f"archive: not copied: {found.segments:,} segments, {found.size:,} bytes, up to id "
            f"{found.sealed}, as {found.manifest} says"
        )


@click.command()
@click.argument("folder", metavar="DIR", type=LocalPath(file_okay=False))
@click.option(
    "--data",
    metavar="NEW",
    type=LocalPath(),
    required=True,
    help="The data directory to make; it must not be there, or be empty",
)
@json_option("One JSON object")
def restore(folder: Path, data: Path, as_json: bool) -> None:
    """Make a data directory of the backup in DIR.

    The history begins a new epoch, since clients may have seen later messages than the backup.
    """
    try:
        restored = restore_backup(folder, data)
    except BackupError as error:
        fail(str(error), USAGE)
    if as_json:
        plain = attrs.asdict(restored, recurse=False)
        print_json({name: msgspec.to_builtins(value) for name, value in plain.items()})
        return
    _show_restored(restored, folder, data)


def _show_restored(restored: Restored, folder: Path, data: Path) -> None:
    made = datetime.fromtimestamp(restored.manifest.made, UTC).isoformat(timespec="seconds")
    click.echo(f"backup of {made}, by mist {restored.manifest.mist}")
    found = restored.history
    if found is not None:
        click.echo(
            f"history: {found.messages:,} messages, up to id {found.newest} of epoch {found.epoch}"
        )
        click.echo(
            f"  it goes on in epoch {restored.epoch}: every client that resumes is told of a gap "
            f"(`recovered` is false), and begins with what is kept. Messages behind id "
            f"{found.newest} are lost; their ids are given again"
        )
    if restored.manifest.engine is not None:
        click.echo(f"history: not in the backup: restore {restored.manifest.engine} itself")
    if restored.tokens is not None:
        click.echo(
            f"tokens: {restored.tokens:,}, and their key. What was revoked after {made} is valid "
            "again: revoke it again"
        )
    _show_archive(restored.manifest)
    click.echo(f"settings: {folder / 'mist.toml'}, without secrets")
    click.echo(f"start it: mist serve --data {data}")
