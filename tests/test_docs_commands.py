"""Commands that the documentation shows can be typed as they stand there.

Each is run here against a server, or has another test that runs it, or is named with a reason.
"""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from mist.cli import main
from tests.processes import Process, environment, serving

ROOT = Path(__file__).parent.parent
GENERATED = {"cli.md"}  # has usages, and examples of `--help`
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in GENERATED
]
COMMAND = re.compile(r"^    (?:\$ )?((?:(?:\.venv/bin/)?mist|curl) (?:.*\\\n)*.+)$", re.MULTILINE)
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0",
          "--listen", "http://127.0.0.1:0")  # fmt: skip

# What is run by a test of its own, or not at all: a pattern, and which test, or why.
ELSEWHERE = {
    r"mist serve": "each server of these tests",
    r"curl .*/v1/presence": "tests/sessions/test_presence.py",
    r"mist bench": "tests/cli/test_bench.py",
    r"mist pipeline": "tests/cli/test_pipeline.py",
    r"curl .*/message-bus|curl .*/api/message": "tests/test_docs_clients.py",
    r"mist restore": "tests/cli/test_backup.py",
    r"mist token key": "tests/cli/test_commands.py",
    r"curl -sN": "a stream, which does not end",
    r"curl --cacert": "test_tls_is_tried_as_it_stands_there",
}


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in COMMAND.findall(page.read_text()):
            yield page.name, found.removeprefix(".venv/bin/")


def is_elsewhere(command: str) -> bool:
    return any(re.search(pattern, command) for pattern in ELSEWHERE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    folder = tmp_path_factory.mktemp("documentation")
    options = ("--archive", str(folder / "mist-data" / "archive"),
               "--presence", "room:*", "--latest", "order:*")  # fmt: skip
    with serving(folder / "mist-data", *options, listen=LISTEN) as process:
        yield process, folder


@pytest.mark.parametrize(
    ("page", "command"), [each for each in commands() if not is_elsewhere(each[1])]
)
def test_a_command_does_what_it_should(
    server: tuple[Process, Path], page: str, command: str
) -> None:
    process, folder = server
    tcp, _, http = process.urls
    over_http = command.split()[:2] in (["mist", "nodes"], ["mist", "top"])
    env = environment(MIST_HOST=tcp, MIST_SERVER=http if over_http else tcp)

    def run(arguments: list[str]) -> str:
        program = [sys.executable, "-m", "mist"] if arguments[0] == "mist" else ["curl", "-sSf"]
        result = subprocess.run(
            [*program, *arguments[1:]],
            cwd=folder, env=env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout

    if "TOKEN" in command:
        command = command.replace("TOKEN", run(["mist", "token", "new", "order,news"]).strip())
    command = command.replace("\\\n", " ").replace("http://127.0.0.1:8080", http)
    arguments = shlex.split(command, comments=True)
    if arguments[1] == "subscribe":
        # It would not end; what it is subscribed to is published to it.
        run(["mist", "publish", arguments[2].split()[0], "shown", "--store"])
        arguments += ["--count", "1", *(() if "--since" in arguments else ("--since", "0"))]
        assert "shown" in run(arguments)
    else:
        run(arguments)


@pytest.mark.parametrize(
    ("page", "command"),
    [each for each in commands() if is_elsewhere(each[1]) and each[1].startswith("mist ")],
)
def test_what_is_run_elsewhere_has_such_options(page: str, command: str) -> None:
    """Parsed as the command line does it, up to where it would be run."""
    line = re.sub(r"\$\(.*?\)", "1", command.replace("\\\n", " "))
    arguments = shlex.split(line, comments=True)[1:]
    context: click.Context | None = None
    found: click.Command = main
    while isinstance(found, click.Group):
        context = found.make_context(found.name, arguments, parent=context)
        rest = [*context._protected_args, *context.args]
        if not rest and found.invoke_without_command:
            return
        _, below, arguments = found.resolve_command(context, rest)
        assert below is not None
        found = below
    context = found.make_context(found.name, arguments, parent=context)
    assert not context.args


def test_tls_is_tried_as_it_stands_there(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tls.md").read_text().split("\n## Trying it\n")[1]
    made, used = [
        textwrap.dedent(block) for block in re.findall(r"(?:^    .+\n)+", page, re.MULTILINE)
    ]
    before, serve = made.split("mist serve")
    folder: dict[str, Any] = {
        "cwd": tmp_path,
        "check": True,
        "capture_output": True,
        "text": True,
        "timeout": 60,
    }
    subprocess.run(["bash", "-ec", before], **folder)
    options = shlex.split(serve.replace("\\\n", " ").replace("127.0.0.1", "127.0.0.1:0"))
    listen, rest = options[:4], [str(tmp_path / it) if "." in it else it for it in options[4:]]
    with serving(tmp_path / "data", *rest, listen=listen) as process:
        tcp, http = (re.sub(r".*:", "", url) for url in process.urls)
        script = used.replace(":1445", f":{tcp}").replace(":8080", f":{http}")
        mist = f'mist() {{ "{sys.executable}" -m mist "$@"; }}\n'
        environ = environment(PYTHONPATH=str(ROOT))
        done = subprocess.run(["bash", "-ec", mist + script], env=environ, **folder)
        assert done.stdout.startswith("pong")
        assert done.stdout.endswith('{"status":"alive"}')
        refused = script.replace("SSL_CERT_FILE=cert.pem ", "")
        done = subprocess.run(
            ["bash", "-ec", mist + refused], env=environ, **{**folder, "check": False}
        )
        assert "self-signed certificate" in done.stderr


def test_what_is_run_elsewhere_is_so() -> None:
    every = [command for _, command in commands()]
    for pattern, where in ELSEWHERE.items():
        assert any(re.search(pattern, command) for command in every), pattern
        if where.startswith("tests/"):
            assert (ROOT / where).exists()
