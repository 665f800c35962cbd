"""docs/tutorial.md from its first line to its last, in an empty directory."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.chromium import Page, chromium, open_page
from tests.processes import environment

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
PORTS = (1445, 8888, 8080, 8000)


def commands(start: str) -> list[str]:
    """The commands of the block that has one which begins with this, as they stand there."""
    for block in re.findall(r"(?:^    .+\n)+", PAGE, re.MULTILINE):
        lines = [line.strip() for line in block.splitlines()]
        if any(line.startswith(start) for line in lines):
            return lines
    raise AssertionError(start)


def file(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@contextmanager
def free_ports(number: int) -> Iterator[list[int]]:
    """Ports that nobody listens at, and that this process keeps others from being given."""
    held = [socket.socket() for _ in range(number)]
    try:
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


@attrs.frozen
class Reader:
    """Does what the tutorial says, with ports of its own.

    Attributes:
        folder: where the reader is.
        ports: what stands for those in the text.
    """

    folder: Path
    ports: dict[str, str]

    def adapted(self, text: str) -> str:
        for theirs, own in self.ports.items():
            text = text.replace(f"127.0.0.1:{theirs}", f"127.0.0.1:{own}")
        return text.replace("--bind 127.0.0.1 8000", f"--bind 127.0.0.1 {self.ports['8000']}")

    def arguments(self, command: str) -> list[str]:
        program, *rest = shlex.split(self.adapted(command))
        match program:
            case ".venv/bin/mist":
                program_arguments = [sys.executable, "-m", "mist"]
            case ".venv/bin/python":
                program_arguments = [sys.executable]
            case _:
                program_arguments = [program]
        if rest[:1] == ["serve"]:
            schemes = zip(("tcp", "ws", "http"), PORTS, strict=False)
            for scheme, port in schemes:
                rest += ["--listen", f"{scheme}://127.0.0.1:{self.ports[str(port)]}"]
        return [*program_arguments, *rest]

    def _environment(self) -> dict[str, str]:
        return environment(
            MIST_HOST=self.adapted("tcp://127.0.0.1:1445"),
            PYTHONPATH=str(Path(__file__).parents[2]),
        )

    def run(self, command: str) -> str:
        """What a command prints. It has to succeed."""
        result = subprocess.run(
            self.arguments(command),
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    @contextmanager
    def running(self, command: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that goes on, killed at the end of the block."""
        with subprocess.Popen(
            self.arguments(command),
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def serving(self) -> Iterator["subprocess.Popen[str]"]:
        with self.running(commands(".venv/bin/mist serve")[-1]) as process:
            lines = [line(process) for _ in range(3)]
            assert [each.split("://")[0] for each in lines] == [
                f"listening on {scheme}" for scheme in ("tcp", "ws", "http")
            ]
            yield process


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stored(process: "subprocess.Popen[str]", number: int) -> list[dict[str, object]]:
    """The next orders that the shop says are stored."""
    lines: list[str] = []
    while len(lines) < number:
        if (said := line(process)).startswith("stored "):
            lines.append(said)
        else:
            # On its way when the server was killed.
            assert said.startswith("unknown ")
    return [json.loads(each.removeprefix("stored ").replace("'", '"')) for each in lines]


def numbers(rows: Sequence[str]) -> list[int]:
    return [int(row.split()[1].rstrip(":")) for row in rows]


def first_orders(reader: Reader, count: int) -> list[int]:
    """The numbers of the first orders of the EU that are kept."""
    subscribe = commands(".venv/bin/mist subscribe order,eu")[0]
    said = reader.run(f"{subscribe} --since 0 --count {count}")
    return [json.loads(json.loads(each)["data"])["number"] for each in said.splitlines()]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    with free_ports(len(PORTS)) as own:
        ports = dict(zip(map(str, PORTS), map(str, own), strict=True))
    made = Reader(tmp_path, ports)
    (tmp_path / "orders.py").write_text(made.adapted(file("python")))
    (tmp_path / "board.html").write_text(made.adapted(file("html")))
    return made


@asynccontextmanager
async def board(browser: str, reader: Reader, token: str) -> AsyncIterator[Page]:
    with reader.running(commands(".venv/bin/python -m http.server")[0]):
        async with open_page(browser) as page:
            url = reader.adapted("http://127.0.0.1:8000/board.html#") + token
            with trio.fail_after(20):
                while True:
                    try:
                        stream = await trio.open_tcp_stream("127.0.0.1", int(reader.ports["8000"]))
                    except OSError:
                        await trio.sleep(0.05)
                    else:
                        await stream.aclose()
                        break
            await page.open(url)
            yield page


async def test_the_tutorial(browser: str, reader: Reader, java: None) -> None:
    with reader.serving() as server:
        assert reader.run(commands(".venv/bin/mist publish")[0]) == ""
        with reader.running(commands(".venv/bin/python orders.py")[0]) as shop:
            before = stored(shop, 3)
            assert [each["number"] for each in before] == [1, 2, 3]
            with reader.running(commands(".venv/bin/mist subscribe order,eu")[0]) as subscriber:
                while "us" not in {each["region"] for each in before}:
                    before += stored(shop, 1)
                shown = line(subscriber)
                assert "eu" in shown
                assert "us" not in shown
            token = reader.run(commands(".venv/bin/mist token create")[0]).strip()
            async with board(browser, reader, token) as page:
                await page.until("document.querySelectorAll('#board li').length > 1")
                assert await page.text("#state") == "open"
                server.kill()
                server.wait()
                await page.until("document.querySelector('#state').textContent.startsWith('wait')")
                with reader.serving():
                    await page.until("document.querySelector('#state').textContent === 'open'")
                    newest = numbers(await page.texts("#board li"))[0]
                    order = {"number": 0, "region": ""}
                    while order["number"] < newest + 6 or order["region"] != "eu":
                        (order,) = await trio.to_thread.run_sync(stored, shop, 1)
                    last = order["number"]
                    await page.until(
                        "[...document.querySelectorAll('#board li')].some("
                        f"(row) => row.textContent.startsWith('number {last}:'))"
                    )
                    shown_numbers = numbers(await page.texts("#board li"))
                    assert shown_numbers == sorted(set(shown_numbers), reverse=True)
                    kept = first_orders(reader, len(shown_numbers))
                    # The page began with the last ten: on a slow machine there are more before.
                    while earlier := [each for each in kept if each < shown_numbers[-1]]:
                        if len(kept) == len(shown_numbers) + len(earlier):
                            break
                        kept = first_orders(reader, len(shown_numbers) + len(earlier))
                    assert shown_numbers[::-1] == kept[len(earlier) :]
                    revoke = commands(".venv/bin/mist token revoke")[0]
                    reader.run(revoke.replace("TOKEN", token))
                    await page.until(
                        "document.querySelector('#state').textContent.startsWith('closed')"
                    )
                    assert await page.text("#state") in PAGE
                    sealing, report = commands("curl")
                    reader.run(sealing)
                    assert (reader.folder / "mist-data" / "archive").is_dir()
                    counted = await trio.to_thread.run_sync(reader.run, report)
                    assert "messages" in counted
                    volume = (reader.folder / "volume.html").read_text()
                    assert "<h1>Volume</h1>" in volume
                    assert "eu" in volume
