"""What all tests share: servers, the `--slow` switch, no skipping in CI, and who runs what of them.

With `-n`, pytest-xdist runs a file's tests in one process, so that what they share is made once.
"""

import gc
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings

from mist.server import Server
from tests.engine.postgres_server import PostgresServers
from tests.engine.redis_servers import RedisServers
from tests.java import need_java
from tests.processes import Process, serving
from tests.servers import running

# Machines that run tests are shared and noisy: a deadline would fail at random.
settings.register_profile("mist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mist")

# The collector would go through 13,000 tests again and again, a fifth of what most tests cost. So
# they are frozen once they are there (`pytest_collection_finish`), and it comes less often.
gc.disable()
gc.set_threshold(10_000, 10, 20)

# A shell has what it runs in the background ignore this, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW = "takes minutes; run with --slow"


@pytest.fixture
def server_settings() -> Mapping[str, Any]:
    """How `server` is started: arguments of `running`. A module overrides it for its tests."""
    return {}


@pytest.fixture
async def server(tmp_path: Path, server_settings: Mapping[str, Any]) -> AsyncIterator[Server]:
    """A real server in this process, on loopback. No test of it takes longer than two minutes."""
    async with running(tmp_path, **server_settings) as server:
        with trio.fail_after(120):
            yield server


@pytest.fixture
def no_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged as a warning or worse, neither by the test nor by its server's end.

    An async fixture could not do that for all tests of a module: pytest-trio runs only those
    which a test names.
    """
    yield
    records = caplog.get_records("call")
    assert [record for record in records if record.levelno >= logging.WARNING] == []


@pytest.fixture(scope="module")
def serve_options() -> Sequence[str]:
    """How `process` is started: options of `mist serve`. A module overrides it for its tests."""
    return ()


@pytest.fixture(scope="module")
def process(
    tmp_path_factory: pytest.TempPathFactory, serve_options: Sequence[str]
) -> Iterator[Process]:
    """A server in a process of its own, for all tests of a module: each names its own tags."""
    with serving(tmp_path_factory.mktemp("data"), *serve_options) as process:
        yield process


@pytest.fixture
def own_process(tmp_path: Path, serve_options: Sequence[str]) -> Iterator[Process]:
    """The same for one test, which may end it. Its data directory is `tmp_path / "data"`."""
    with serving(tmp_path / "data", *serve_options) as process:
        yield process


@pytest.fixture(scope="module")
def redis_servers() -> Iterator[RedisServers]:
    """Redis servers for all tests of a module: each has a realm of its own."""
    servers = RedisServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[PostgresServers]:
    """PostgreSQL servers for all tests of a process: each has a realm of its own."""
    servers = PostgresServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def java() -> None:
    """See `need_java`."""
    need_java()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each of several processes that collect all tests begin with others.

    Each module's assertions are rewritten by who imports it first, and kept beside its bytecode.
    That is two thirds of collecting in a fresh checkout; all would do it at the same time.
    """
    config = session.config
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in files[int(worker) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with suppress(Exception, pytest.skip.Exception):  # which collecting it says
            import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(config.rootpath, super()._split_scope(nodeid))

    return Scheduling(config, log)


@cache
def _scope(root: Path, file: str) -> str:
    """The files of a folder that start Java are as one file. So they share a process's Spark, of
    which there are not as many as processes; and they begin early, as files with many tests do:
    some take minutes. All of them one after another would take too long.
    """
    path = root / file
    java = file.startswith("tests/pipeline/") and re.search(r"\b(java|spark): ", path.read_text())
    return f"Java in {path.parent}" if java else file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason=_SLOW)
    for item in items:
        # By the marker: keywords are also the names of folders, such as that of a checkout.
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for report in _unexpected_skips(terminalreporter):
        terminalreporter.line(f"skipped in CI: {report.nodeid}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # A test that should run and can't is a hole that looks green; in CI it is a failure.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus == 0 and _unexpected_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _unexpected_skips(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    if os.environ.get("CI") != "true":
        return []
    skipped = reporter.stats.get("skipped", [])
    return [report for report in skipped if _SLOW not in str(report.longrepr)]
