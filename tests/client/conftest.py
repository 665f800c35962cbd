"""Tests whose module has `connect` of tests/client/loops.py run with clients of both loops."""

import inspect
from collections.abc import Iterator

import pytest

from tests.client import loops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs_clients = getattr(metafunc.module, "connect", None) is loops.connect
    if runs_clients and inspect.iscoroutinefunction(metafunc.function):
        kinds = ["trio"] if hasattr(metafunc.function, "trio_only") else ["trio", "asyncio"]
        metafunc.parametrize("loop", kinds, indirect=True)


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kind of loop that clients run in."""
    if getattr(request, "param", "trio") == "trio":
        yield
    else:
        with loops.asyncio_loop():
            yield
