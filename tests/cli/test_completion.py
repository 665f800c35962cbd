"""`mist completion`, in a real bash, zsh and fish."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment, mist

BASH, ZSH, FISH = (shutil.which(name) for name in ("bash", "zsh", "fish"))


def run_shell(folder: Path, shell: str | None, *arguments: str) -> str:
    """What a shell prints that finds `mist` on its PATH, and no settings of a user's."""
    program = folder / "mist"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mist "$@"\n')
    program.chmod(0o755)
    assert shell is not None
    done = subprocess.run(
        [shell, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(PATH=f"{folder}:{os.environ['PATH']}", HOME=str(folder)),
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def complete(folder: Path, *words: str) -> list[str]:
    """What bash offers when Tab is pressed behind these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    # What bash itself does on Tab; compopt is refused outside of it, and of no use here.
    script = f"""
        source <(mist completion bash)
        compopt() {{ echo "compopt $*"; }}
        COMP_WORDS=({quoted})
        COMP_CWORD={len(words) - 1}
        _mist_completion mist
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return run_shell(folder, BASH, "--norc", "-c", script).split("\n")[:-1]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    assert complete(tmp_path, "mist", "p") == ["ping", "pipeline", "publish"]
    assert complete(tmp_path, "mist", "history", "tr") == ["trim"]
    assert complete(tmp_path, "mist", "who", "--se") == ["--server", "--secret", "--secret-file"]
    assert complete(tmp_path, "mist", "serve", "--slow-consumer", "d") == ["drop", "disconnect"]
    assert complete(tmp_path, "mist", "serve", "--data", "x") == ["compopt -o", "dirnames", ""]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_takes_the_script(tmp_path: Path) -> None:
    script = "source <(mist completion bash); complete -p mist"
    told = run_shell(tmp_path, BASH, "--norc", "-c", script)
    assert told.split()[-1] == "mist"
    assert "_mist_completion" in told


# What zsh itself does on Tab; what adds to its list of choices is refused outside of it.
ZSH_TAB = """
    _describe() { print -r -- ${${(P)3}%%:*} }
    compadd() { print -r -- ${(P)argv[-1]} }
    _path_files() { print -r -- paths "$@" }
    tab() { words=("$@"); CURRENT=$#; $_comps[mist] }
"""


@pytest.mark.skipif(ZSH is None, reason="needs zsh")
def test_zsh_completes_commands_options_and_values(tmp_path: Path) -> None:
    script = f"""
        autoload -Uz compinit; compinit -u -D
        source <(mist completion zsh)
        {ZSH_TAB}
        tab mist p
        tab mist history tr
        tab mist who --se
        tab mist serve --slow-consumer d
        tab mist serve --data x
    """
    assert run_shell(tmp_path, ZSH, "-fc", script).splitlines() == [
        "ping pipeline publish",
        "trim",
        "--server --secret --secret-file",
        "drop disconnect",
        "paths -/",
    ]


@pytest.mark.skipif(ZSH is None, reason="needs zsh")
def test_zsh_takes_the_script_from_a_folder_of_functions(tmp_path: Path) -> None:
    script = f"""
        mkdir $HOME/functions; fpath=($HOME/functions $fpath)
        mist completion zsh > "${{fpath[1]}}/_mist"
        autoload -Uz compinit; compinit -u -D
        {ZSH_TAB}
        tab mist history tr
        tab mist history tr
        tab mist history ver
    """
    assert run_shell(tmp_path, ZSH, "-fc", script) == "trim\ntrim\nverify\n"


@pytest.mark.skipif(FISH is None, reason="needs fish")
def test_fish_completes_commands_options_and_values(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = ("mist p", "mist history tr", "mist who --se", "mist serve --slow-consumer d",
             f"mist serve --data {tmp_path}/d")  # fmt: skip
    script = "mist completion fish | source\n"
    script += "".join(f"echo (complete -C '{line}' | cut -f 1)\n" for line in lines)
    assert run_shell(tmp_path, FISH, "--no-config", "-c", script).splitlines() == [
        "ping pipeline publish",
        "trim",
        "--secret --secret-file --server",
        "disconnect drop",
        f"{tmp_path}/data/",
    ]


def test_another_shell_is_refused_with_those_there_are() -> None:
    done = mist("completion", "tcsh")
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
