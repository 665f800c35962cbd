"""RFC 6455 by a client that no one here wrote: the cases of the Autobahn test suite.

They run in a virtual environment of their own, which the test makes: neither the suite, which is
written for Python 2 (see `autobahn_client.py`), nor what it needs is among the dependencies.

    pytest --slow -s tests/transports/test_autobahn.py
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.transports.autobahn_server import TOKEN, serve

PACKAGES = ("autobahntestsuite==25.10.1", "autobahn[twisted]==26.10.2")
CLIENT = Path(__file__).with_name("autobahn_client.py")


async def output_of(*command: str | Path) -> str:
    """Run a command to its end; what it printed."""
    process = await trio.run_process(
        [str(word) for word in command], capture_stdout=True, capture_stderr=True
    )
    return process.stdout.decode()


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="converts by lib2to3, which 3.13 lacks")
async def test_no_case_of_the_fuzzing_client_fails(tmp_path: Path, nursery: trio.Nursery) -> None:
    python = tmp_path / "venv/bin/python"
    await output_of(sys.executable, "-m", "venv", tmp_path / "venv")
    await output_of(python, "-m", "pip", "install", "--quiet", *PACKAGES)
    # Without an import, which only Python 2 could do.
    finder = "import importlib.util as u; print(u.find_spec('autobahntestsuite').origin)"
    suite = Path((await output_of(python, "-c", finder)).strip()).parent
    port = await nursery.start(serve, 0)
    url = f"ws://127.0.0.1:{port}/subscribe/websocket?x-auth-token={TOKEN}"
    with trio.fail_after(300):
        results = json.loads(await output_of(python, CLIENT, suite, tmp_path / "work", url))
    outcomes = Counter(result["behavior"] for result in results.values())
    print(f"\nAutobahn: {len(results)} cases, {dict(outcomes)}")
    assert len(results) == 247
    good = {"OK", "NON-STRICT", "INFORMATIONAL"}
    failed = {
        case: result
        for case, result in results.items()
        if result["behavior"] not in good or result["behaviorClose"] not in good
    }
    assert not failed
