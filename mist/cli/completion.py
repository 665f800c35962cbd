"""`mist completion`: what a shell needs to complete commands and options."""

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

_VARIABLE = "_MIST_COMPLETE"  # how a shell asks; click's own naming, which `main` expects


@click.command(
    epilog="""\b
Examples:
  source <(mist completion bash)                                    in this shell
  mist completion bash > ~/.local/share/bash-completion/completions/mist
  mist completion zsh > "${fpath[1]}/_mist"
  mist completion fish > ~/.config/fish/completions/mist.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in a shell.

    Bash has to be 4.4 or newer.
    """
    found = get_completion_class(shell)
    assert found is not None
    # Not its `source`, which runs the shell to see its version: this may run where it isn't.
    completer = found(context.find_root().command, {}, "mist", _VARIABLE)
    click.echo(completer.source_template % completer.source_vars())
