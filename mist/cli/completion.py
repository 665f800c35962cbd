"""`mist completion`: what a shell needs to complete commands and options."""

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

_VARIABLE = "_MIST_COMPLETE"  # how a shell asks; click's own naming, which `main` expects

# Whether zsh has called the script as a function, rather than read it. Click asks whether that was
# loaded just now, which is so once: of a script in a folder of functions every second Tab failed.
_IS_LOADED = "$zsh_eval_context[-1] == loadautofunc"
_IS_CALLED = "$funcstack[1] == _mist"


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
    script = completer.source_template % completer.source_vars()
    click.echo(script.replace(_IS_LOADED, _IS_CALLED))
