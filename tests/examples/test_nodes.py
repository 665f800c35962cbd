"""The example of nodes: one command, a real Redis and nginx, and a node that is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mist.client import connect
from tests.ports import free_port
from tests.processes import environment, mist

EXAMPLE = Path(__file__).parents[2] / "examples" / "nodes" / "run.py"


@attrs.frozen
class Site:
    """The example, as it runs.

    Attributes:
        url: of nginx.
        nodes: each one's line protocol, and its process.
        lines: what it has printed.
    """

    url: str
    nodes: list[tuple[str, int]]
    lines: list[str]

    def ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())


@pytest.fixture
def site() -> Iterator[Site]:
    missing = [each for each in ("redis-server", "nginx") if shutil.which(each) is None]
    if missing:
        assert os.environ.get("CI") != "true", f"in CI there has to be {missing}"
        pytest.skip(f"no {missing}; Debian: apt-get install redis-server nginx-light")
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "--port", str(free_port())],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("    mist nodes"):
                break
        url = lines[0].rpartition(" ")[2]
        nodes = [
            (found[1], int(found[2]))
            for line in lines
            if (found := re.match(r"node-\d, lines: (\S+) .* kill -9 (\d+)$", line))
        ]
        yield Site(url, nodes, lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


async def test_a_node_is_killed_and_nobody_misses_anything(site: Site) -> None:
    """What a reader does who follows what it prints."""
    (first, _), (second, killed) = site.nodes
    websocket = site.url.replace("http://", "ws://")
    token = mist("token", "new", "order", "--host", first).stdout.split()[0]
    with trio.fail_after(60):
        async with connect(first) as one, connect(second) as two:
            # On the node that is killed, or on the other one: that is nginx's choice.
            async with connect(websocket, token=token) as browser:
                got = []
                async with browser.subscribe({"order"}, since=0) as messages:
                    await one.store({"order"}, "1")
                    await two.store({"order"}, "2")
                    os.kill(killed, signal.SIGKILL)
                    assert await one.store({"order"}, "3") == 3
                    assert site.ask("/v1/messages", {"tags": ["order"], "data": "4"}) == {"id": 4}
                    async for message in messages:
                        got.append(message.data)
                        if len(got) == 4:
                            break
                assert got == [b"1", b"2", b"3", b"4"]
    states = {each["name"]: each["status"] for each in site.ask("/v1/nodes")["nodes"]}
    assert states["node-1"] == "ready"
    assert [each["data"] for each in site.ask("/v1/messages?tags=order&since=0")["messages"]] == [
        "1",
        "2",
        "3",
        "4",
    ]
