"""`mist completion`, in a real bash; other shells get scripts that name the command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment, mist

BASH = shutil.which("bash")


def complete(folder: Path, *words: str) -> list[str]:
    """What bash offers when Tab is pressed behind these words."""
    program = folder / "mist"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mist "$@"\n')
    program.chmod(0o755)
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
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(PATH=f"{folder}:{os.environ['PATH']}"),
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    assert complete(tmp_path, "mist", "p") == ["ping", "pipeline", "publish"]
    assert complete(tmp_path, "mist", "history", "tr") == ["trim"]
    assert complete(tmp_path, "mist", "who", "--se") == ["--server", "--secret", "--secret-file"]
    assert complete(tmp_path, "mist", "serve", "--slow-consumer", "d") == ["drop", "disconnect"]
    assert complete(tmp_path, "mist", "serve", "--data", "x") == ["compopt -o", "dirnames", ""]


def test_bash_takes_the_script(tmp_path: Path) -> None:
    if BASH is None:
        pytest.skip("needs bash")
    script = "source <(mist completion bash); complete -p mist"
    (tmp_path / "mist").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mist "$@"\n')
    (tmp_path / "mist").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert (done.stdout.split()[-1], done.stderr) == ("mist", "")
    assert "_mist_completion" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts(shell: str) -> None:
    done = mist("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_MIST_COMPLETE={shell}_complete" in done.stdout
    assert "mist" in done.stdout


def test_another_shell_is_refused_with_those_there_are() -> None:
    done = mist("completion", "tcsh")
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
