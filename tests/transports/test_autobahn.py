"""RFC 6455 by a client that no one here wrote: the Autobahn test suite's fuzzing client.

It runs on Python 2.7 only, so it isn't among the dependencies. To run it here:

    python2.7 -m pip install --target FOLDER autobahntestsuite==0.8.2
    AUTOBAHN=FOLDER pytest --slow tests/transports/test_autobahn.py

Cases 1 to 7 and 10; 9 measures speed, 12 and 13 compression, which mist doesn't agree to.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import trio

from tests.transports.autobahn import TOKEN, serve

# The packages' namespaces need a site directory; a plain path doesn't do for Python 2.
RUN = (
    "import site, sys; site.addsitedir(sys.argv[1]); sys.path.insert(0, sys.argv.pop(1)); "
    "from autobahntestsuite.wstest import run; run()"
)


@pytest.mark.slow
async def test_no_case_of_the_fuzzing_client_fails(tmp_path: Path, nursery: trio.Nursery) -> None:
    folder, python = os.environ.get("AUTOBAHN"), shutil.which("python2.7")
    if not folder or not python:
        pytest.skip("needs python2.7, and AUTOBAHN set; see the top of this file")
    port = await nursery.start(serve, 0)
    url = f"ws://127.0.0.1:{port}/subscribe/websocket?x-auth-token={TOKEN}"
    specification = {
        "outdir": str(tmp_path / "out"),
        "servers": [{"agent": "mist", "url": url}],
        "cases": [f"{section}.*" for section in (1, 2, 3, 4, 5, 6, 7, 10)],
        "exclude-cases": [],
        "exclude-agent-cases": {},
    }
    (tmp_path / "spec.json").write_text(json.dumps(specification))
    command = [python, "-c", RUN, folder, "-m", "fuzzingclient", "-s", "spec.json"]
    with trio.fail_after(300):
        await trio.run_process(command, cwd=tmp_path, capture_stdout=True, capture_stderr=True)
    results = json.loads((tmp_path / "out" / "index.json").read_text())["mist"]
    assert len(results) > 200
    good = {"OK", "NON-STRICT", "INFORMATIONAL"}
    failed = {
        case: result
        for case, result in results.items()
        if result["behavior"] not in good or result["behaviorClose"] not in good
    }
    assert not failed
