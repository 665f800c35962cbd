"""Nodes of mist that act as one: two servers on a Redis, with nginx in front.

    python examples/nodes/run.py

It needs redis-server and nginx (Debian: apt-get install redis-server nginx-light), and starts all
four programs, with their data in a directory of its own that is removed at the end. Ctrl-C ends
them. Try what happens when one of the nodes is killed: it says how.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
HOST = "127.0.0.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="of nginx; others follow (8000)")
    parser.add_argument("--nodes", type=int, default=2, help="how many (2)")
    options = parser.parse_args()
    for program, package in (("redis-server", "redis-server"), ("nginx", "nginx-light")):
        if shutil.which(program) is None:
            sys.exit(f"run.py: {program} is missing; Debian: apt-get install {package}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="mist-nodes-") as name, ExitStack() as stack:
        try:
            run(Path(name), options.port, options.nodes, stack)
        except KeyboardInterrupt:
            print("stopping")


def run(folder: Path, port: int, count: int, stack: ExitStack) -> None:
    """Start everything, say how to use it, and watch over it."""
    site = f"http://{HOST}:{port}"
    redis = f"redis://{HOST}:{port + 1}"
    key = folder / "token.key"
    stack.enter_context(
        # `always`: what mist acknowledges survives a power cut. mist refuses a Redis that keeps
        # less than its --durability says.
        program("redis-server", "--bind", HOST, "--port", str(port + 1), "--dir", str(folder),
                "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    )  # fmt: skip
    # Tokens are digests under this key: all nodes need it, and the Redis never has it.
    mist("token", "key", str(key))
    nodes: dict[int, tuple[int, int]] = {}
    for number in range(1, count + 1):
        tcp, http = port + 10 * number, port + 10 * number + 1
        node = stack.enter_context(
            program(*MIST, "serve", "--engine", redis, "--token-key-file", str(key),
                    "--node", f"node-{number}", "--advertise", f"http://{HOST}:{http}",
                    "--data", str(folder / f"node-{number}"),
                    "--listen", f"tcp://{HOST}:{tcp}", "--listen", f"http://{HOST}:{http}",
                    "--allow-origin", site, "--trusted-proxy", HOST)
        )  # fmt: skip
        nodes[number] = tcp, node.pid
    for number in nodes:
        wait_until_ready(f"http://{HOST}:{port + 10 * number + 1}")
    servers = "\n".join(
        [f"        server {HOST}:{port + 10 * number + 1} max_fails=1 fail_timeout=2s;"
         for number in nodes]
    )  # fmt: skip
    configuration = (HERE / "nginx.conf").read_text()
    for word, value in {"folder": folder, "servers": servers, "port": port}.items():
        configuration = configuration.replace(f"{{{word}}}", str(value))
    (folder / "nginx.conf").write_text(configuration)
    nginx = stack.enter_context(
        program("nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf"))
    )
    wait_until_ready(site)
    print(f"the dashboard, HTTP and WebSockets, at any node: {site}")
    for number, (tcp, pid) in nodes.items():
        print(f"node-{number}, lines: tcp://{HOST}:{tcp}   kill it: kill -9 {pid}")
    first, last = nodes[1][0], nodes[count][0]
    print(
        "\nSubscribe at one node, and publish at another, or through nginx:\n\n"
        f"    mist subscribe order --server tcp://{HOST}:{first}\n"
        f"    mist publish order,eu hello --server tcp://{HOST}:{last}\n"
        f'    curl {site}/v1/messages --json \'{{"tags": ["order"], "data": "hello"}}\'\n'
        f"    mist nodes --server {site}\n",
        flush=True,
    )
    nginx.wait()
    sys.exit("run.py: nginx has ended")


MIST = (sys.executable, "-m", "mist")


def mist(*arguments: str) -> None:
    subprocess.run([*MIST, *arguments], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def program(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that is asked to stop at the end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(site: str) -> None:
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(f"{site}/readyz", timeout=1):
                return
        except OSError:  # 503 until it is ready
            time.sleep(0.1)
    sys.exit(f"run.py: {site} is not ready; see above")


if __name__ == "__main__":
    main()
