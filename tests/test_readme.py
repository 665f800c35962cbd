"""What the README says is so."""

import re
from pathlib import Path

from mist.config import CONFIG_FILE, OPTIONS
from mist.protocols.line.commands import WORDS

BAR = "\\|"  # a table's cell ends at a bare one
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def option_rows() -> list[str]:
    rows = []
    for option in (*(each for each in OPTIONS if each is not CONFIG_FILE), CONFIG_FILE):
        flag = f"`{option.flag} {option.metavar}`" if option.metavar else f"`{option.flag}`"
        meaning = option.help.replace("|", "\\|") + (" (repeatable)" if option.repeatable else "")
        rows.append(f"| {flag.replace('|', BAR)} | {option.default_text} | {meaning} |")
    return rows


def test_the_table_of_settings_is_that_of_the_program() -> None:
    missing = [row for row in option_rows() if row not in README]
    assert not missing, "paste:\n" + "\n".join(option_rows())


def test_every_command_of_the_line_protocol_is_named() -> None:
    missing = [word for word in WORDS if f"`{word.decode()}" not in README]
    assert not missing


def test_the_two_commands_are_there_and_ci_runs_the_second() -> None:
    serve = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/mist serve"
    assert f"\n    {serve}\n" in README
    tests = re.findall(r"^    (python3 -m venv .*pytest -n auto)$", README, re.MULTILINE)
    assert len(tests) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_files_that_it_names_exist() -> None:
    names = set(re.findall(r"`((?:examples|tests|mist)/[\w./]+)`", README))
    assert names
    assert not [name for name in names if not (ROOT / name).exists()]


def test_no_placeholder_is_left() -> None:
    assert "@@" not in README
