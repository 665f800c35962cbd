"""docs/errors.md has every error that the server answers with."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mist
from mist import errors
from mist.errors import CommandError
from mist.http.problems import problem_of
from mist.transports import handshake

ROOT = Path(mist.__file__).parent
PAGE = (ROOT.parent / "docs" / "errors.md").read_text()

# What HTTP answers before the error of a session would.
ELSEWHERE = {"token_expired": 401, "token_revoked": 401, "idempotency_conflict": 422}


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def command_errors() -> list[type[CommandError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [each for each in found if issubclass(each, CommandError) and each is not CommandError]


def trees() -> Iterator[ast.AST]:
    for path in ROOT.rglob("*.py"):
        yield ast.parse(path.read_text())


def test_every_error_of_a_command_has_its_row() -> None:
    said = {row[0]: row[1:3] for row in rows("Of commands")}
    expected = {
        f"`{each.code}`": [
            each.message,
            str(ELSEWHERE.get(each.code) or problem_of(each()).status),
        ]
        for each in command_errors()
        if each.code != "history_damaged"
    }
    damaged = said.pop("`history_damaged`")
    assert damaged == ["History is unavailable", "503"]
    assert said == expected


def test_every_code_of_http_has_its_row() -> None:
    said = {
        (status, code)
        for status, codes, *_ in rows("Of HTTP alone")
        for code in re.findall(r"`(\w+)`", codes)
    }
    named = {each.code for each in command_errors()}
    used = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
                match [getattr(each, "value", None) for each in node.args[:2]]:
                    case [int(status), str(code)] if code not in named:
                        used.add((str(status), code))
    assert len(used) > 30
    assert used <= said


def test_every_close_code_has_its_row() -> None:
    said = {code for row in rows("Close codes") for code in re.findall(r"\d+", row[0])}
    refusals = [each for each in vars(handshake).values() if isinstance(each, handshake.Refusal)]
    used = {str(each.code) for each in refusals}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CloseReason":
                match node.args[0]:
                    case ast.Constant(value=int(code)):
                        used.add(str(code))
    assert len(used) > 10
    # The one that is never sent: it stands for a connection that broke.
    assert used - {"1006"} <= said
