"""The configurations of nginx and Caddy, with the real programs, TLS, and mist.js behind them."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trustme

from mist.config import Config
from tests.node import run_script, script_running
from tests.ports import free_port
from tests.processes import Process, environment, mist, serving
from tests.static.pages import STATIC
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "proxy"
SECRET = "s3cret"
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
OPTIONS = (*LISTEN, "--trusted-proxy", "127.0.0.1", "--tokens", "memory://")
PREFIXES = ("", "/mist")
START = """
import assert from "node:assert/strict";
const {connect} = await import(module);
const {WebSocket} = await import("ws");
const backoff = {baseSeconds: 0.05, capSeconds: 0.2};
const open = (options) => connect(url, {token: "T", backoff, WebSocket, ...options});
const taken = (client, count) => new Promise((resolve) => {
  const got = [];
  client.subscribe(["a"], ({data}) => got.push(data) === count && resolve(got));
});
"""


@attrs.frozen
class Site:
    """A proxy, and mist behind it.

    Attributes:
        url: of the proxy, without a path.
        process: mist.
        context: with which the proxy's certificate is trusted.
        reload: has the proxy read its configuration again, and returns once it is in effect.
    """

    url: str
    process: Process
    context: ssl.SSLContext
    reload: Any

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, body: object = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.headers, answer.read()

    def json(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        return json.loads(self.ask(path, headers)[2])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("mist")
    secret = folder / "secret"
    secret.write_text(SECRET)
    with serving(folder / "data", *OPTIONS, "--secret-file", str(secret)) as process:
        made = mist("token", "register", "a,>a", "T", "--host", process.urls[0], MIST_SECRET=SECRET)
        assert made.returncode == 0, made.stderr
        yield process


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def site(
    request: pytest.FixtureRequest, process: Process, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    upstream = process.urls[1].removeprefix("http://")
    with proxy(request.param, folder, upstream) as (url, reload):
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        yield Site(url, process, context, reload)


@contextmanager
def proxy(kind: str, folder: Path, upstream: str) -> Iterator[tuple[str, Any]]:
    """A proxy with a certificate that Node trusts meanwhile: its URL, and what reloads it."""
    if shutil.which(kind) is None:
        assert os.environ.get("CI") != "true", f"in CI there has to be {kind}"
        pytest.skip(f"no {kind}; Debian: apt-get install nginx-light caddy")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "pem"))
    port = free_port()
    run = {"nginx": nginx, "caddy": caddy}[kind]
    with pytest.MonkeyPatch.context() as patch, run(folder, port, upstream) as reload:
        patch.setenv("NODE_EXTRA_CA_CERTS", str(folder / "ca.pem"))
        wait_until(lambda: answers(port))
        yield f"https://localhost:{port}", reload


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def filled(name: str, replaced: Mapping[str, str]) -> str:
    """An example, with what every reader has to replace replaced; each is there."""
    text = (EXAMPLES / name).read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


@contextmanager
def nginx(folder: Path, port: int, upstream: str) -> Iterator[Any]:
    (folder / "mist.conf").write_text(
        filled(
            "nginx.conf",
            {
                "server 127.0.0.1:8080;": f"server {upstream};",
                "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
                "server_name example.com;": "server_name localhost;",
                "/etc/ssl/example.com.pem": f"{folder}/pem",
                "/etc/ssl/example.com.key": f"{folder}/key",
            },
        )
    )
    temporary = "\n".join(
        f"{each}_temp_path {folder}/{each};"
        for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Else its workers are somebody who can't write to our folder.
    user = "user root;" if os.geteuid() == 0 else ""
    main = folder / "nginx.conf"
    main.write_text(
        f"{user} worker_processes 1; daemon off; pid {folder}/pid;\n"
        f"error_log {folder}/error.log notice;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}\ninclude {folder}/mist.conf;\n}}\n"
    )
    command = ["nginx", "-p", folder, "-e", "stderr", "-c", main]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as popen:

        def reload() -> None:
            began = (folder / "error.log").read_text().count("gracefully shutting down")
            popen.send_signal(signal.SIGHUP)
            wait_until(
                lambda: (folder / "error.log").read_text().count("gracefully shutting down") > began
            )

        try:
            yield reload
        finally:
            popen.terminate()


@contextmanager
def caddy(folder: Path, port: int, upstream: str) -> Iterator[Any]:
    admin = f"127.0.0.1:{free_port()}"
    config = folder / "Caddyfile"
    config.write_text(
        f"{{\n\tadmin {admin}\n\tauto_https disable_redirects\n\tskip_install_trust\n}}\n"
        + filled(
            "Caddyfile",
            {
                "reverse_proxy 127.0.0.1:8080": f"reverse_proxy {upstream}",
                "\nexample.com {": f"\nhttps://localhost:{port} {{",
                "/etc/ssl/example.com.pem": f"{folder}/pem",
                "/etc/ssl/example.com.key": f"{folder}/key",
            },
        )
    )
    variables = environment(XDG_DATA_HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    chosen = ["--config", config, "--adapter", "caddyfile"]
    with subprocess.Popen(
        ["caddy", "run", *chosen], stderr=subprocess.DEVNULL, env=variables
    ) as popen:

        def reload() -> None:
            command = ["caddy", "reload", "--force", "--address", admin, *chosen]
            subprocess.run(command, check=True, capture_output=True, env=variables, timeout=30)

        try:
            yield reload
        finally:
            popen.kill()  # else it would wait for connections to end


def run(site: Site, prefix: str, script: str) -> list[object]:
    module = (STATIC / "mist.js").as_uri()
    return run_script(START + script, package="ws", module=module, url=site.url + prefix)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_transport_delivers_at_once_and_publishes(site: Site, prefix: str) -> None:
    found = run(site, prefix, """
      for (const transport of ["websocket", "sse", "polling"]) {
        const client = open({transports: [transport]});
        const got = taken(client, 2);
        await client.subscribe(["a"], () => {}).ready;
        const first = await client.publish(["a"], "one");
        assert.equal((await client.publish(["a"], "two")).id, first.id + 1);
        assert.deepEqual(await got, ["one", "two"]);
        say(client.transport);
        client.close();
      }
    """)  # fmt: skip
    assert found == ["websocket", "sse", "polling"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_endpoints_are_where_the_proxy_has_them(site: Site, prefix: str) -> None:
    base = site.url + prefix
    # What a client says of itself counts for nothing.
    for headers in (
        {},
        {
            "X-Forwarded-For": "192.0.2.1",
            "X-Forwarded-Proto": "http",
            "X-Forwarded-Host": "evil.example",
            "X-Forwarded-Prefix": "/evil",
            "Forwarded": "for=192.0.2.1;host=evil.example",
            "X-Real-IP": "192.0.2.1",
        },
    ):
        found = site.json(f"{prefix}/v1/endpoints", headers)
        assert found["stream"] == f"{base}/v1/stream"
        assert found["websocket"] == f"wss{base.removeprefix('https')}/subscribe/websocket"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_dashboard_has_all_its_files(site: Site, prefix: str) -> None:
    status, headers, page = site.ask(f"{prefix}/")
    assert status == 200
    assert f"wss://localhost:{site.url.rpartition(':')[2]}" in headers["Content-Security-Policy"]
    names = re.findall(r'(?:src|href)="([^"#]+)"', page.decode())
    assert "static/dashboard/main.js" in names
    main = site.ask(f"{prefix}/static/dashboard/main.js")[2].decode()
    names += [f"static/dashboard/{each}" for each in re.findall(r'from "\./([^"]+)"', main)]
    assert len(names) > 8
    for name in names:
        assert site.ask(f"{prefix}/{name}")[0] == 200, name


def test_services_publish_and_strangers_do_not(site: Site) -> None:
    body = {"tags": ["b"], "data": "x"}
    assert site.ask("/v1/messages", {"Authorization": f"Bearer {SECRET}"}, body)[0] == 200
    assert site.ask("/v1/messages", {}, body)[0] == 401
    long = {"tags": ["b"], "data": "x" * 1_000_000}
    assert site.ask("/v1/messages", {"Authorization": f"Bearer {SECRET}"}, long)[0] == 200
    assert site.ask("/v1/messages", {"X-Auth-Token": "t" * 8_192}, body)[0] == 401
    assert site.ask("/healthz")[0] == site.ask("/mist/readyz")[0] == 200


def test_a_client_that_leaves_its_stream_is_gone(site: Site) -> None:
    """At once, and not when mist next writes something, as late as the second comment after it.

    It would be present until then, and count for its token and address.
    """
    credential = {"X-Auth-Token": "T"}
    request = urllib.request.Request(f"{site.url}/v1/stream?tags=a", headers=credential)
    service = {"Authorization": f"Bearer {SECRET}"}

    def streams() -> int:
        found = site.json("/v1/connections", service)["connections"]
        return len([each for each in found if each["transport"] == "sse"])

    wait_until(lambda: not streams())
    with urllib.request.urlopen(request, timeout=20, context=site.context) as answer:
        assert answer.status == 200
        wait_until(lambda: streams() == 1)
    wait_until(lambda: not streams(), seconds=12)  # a comment comes every 15 s


@pytest.mark.parametrize("prefix", PREFIXES)
def test_its_url_without_the_last_slash_leads_to_the_dashboard(site: Site, prefix: str) -> None:
    status, _, page = site.ask(prefix)
    assert (status, b"<title>mist</title>" in page) == (200, True)


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_an_idle_connection_is_let_go_before_mist_would(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request may be on its way as mist closes it, which is a 502 for one that publishes."""
    line = {"nginx": r"keepalive_timeout (\d+)s;", "caddy": r"\tkeepalive (\d+)s"}[kind]
    files = {"nginx": ["nginx.conf"], "caddy": ["Caddyfile", "../../deploy/compose/Caddyfile"]}
    texts = [(EXAMPLES / name).read_text() for name in files[kind]]
    found = [re.search(line, text) for text in texts]
    assert all(each and int(each[1]) < Config().handshake_seconds for each in found)
    filled_by = filled
    monkeypatch.setattr(  # sooner, so that nobody has to wait for it
        "tests.examples.test_proxy.filled",
        lambda name, replaced: re.sub(
            r"(keepalive\w*) \d+s", r"\1 50ms", filled_by(name, replaced)
        ),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        with proxy(kind, tmp_path, f"127.0.0.1:{server.getsockname()[1]}") as (url, _):
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            asking = threading.Thread(
                target=lambda: urllib.request.urlopen(url, timeout=30, context=context).read()
            )
            asking.start()
            upstream, _ = server.accept()
            with upstream:
                upstream.settimeout(30)
                assert b"close" not in upstream.recv(65_536).lower()
                upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
                assert upstream.recv(1) == b""  # it ends it, not we
            asking.join()


def test_a_reload_of_the_proxy_loses_nothing(site: Site) -> None:
    script = """
      const clients = ["websocket", "sse", "polling"].map((each) => open({transports: [each]}));
      const gaps = [];
      const done = [];
      for (const client of clients) {
        client.on("gap", (gap) => gaps.push(gap.reason));
        done.push(taken(client, 40));
        await client.subscribe(["a"], () => {}).ready;
      }
      const ids = [];
      for (let n = 0; n < 40; n += 1) {
        ids.push((await clients[n % 3].publish(["a"], String(n))).id);
        if (n === 5) say("begun");
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      for (const got of done) assert.deepEqual(await got, [...Array(40).keys()].map(String));
      assert.deepEqual(ids, ids.map((_, n) => ids[0] + n));
      assert.deepEqual(gaps, []);
      for (const client of clients) client.close();
    """
    module = (STATIC / "mist.js").as_uri()
    with script_running(START + script, package="ws", module=module, url=site.url) as running:
        assert running.next() == "begun"
        site.reload()
        assert list(running) == []


@pytest.mark.parametrize("kind", ["nginx", pytest.param("caddy", marks=pytest.mark.slow)])
def test_mist_drains_behind_the_proxy(kind: str, tmp_path: Path) -> None:
    """A WebSocket is closed as going away, and a client goes on at the server that comes next."""
    tcp, http = free_port(), free_port()
    listen = ("--listen", f"tcp://127.0.0.1:{tcp}", "--listen", f"http://127.0.0.1:{http}")
    options = (*listen, "--trusted-proxy", "127.0.0.1", "--secret", SECRET)
    with proxy(kind, tmp_path, f"127.0.0.1:{http}") as (url, _), ExitStack() as stack:
        script = """
          const client = open({transports: ["websocket"]});
          const got = taken(client, 2);
          await client.subscribe(["a"], () => {}).ready;
          await client.publish(["a"], "before");
          client.on("state", ({state, error}) => { if (state === "waiting") say(error.code); });
          client.on("gap", ({reason}) => say(reason));
          say("open");
          await new Promise((resolve) => client.on("subscribed", ({again}) => again && resolve()));
          await client.publish(["a"], "after");
          assert.deepEqual(await got, ["before", "after"]);
          client.close();
        """
        with serving(tmp_path / "data", *options) as first:
            register = ("token", "register", "a,>a", "T", "--host", first.urls[0])
            assert mist(*register, MIST_SECRET=SECRET).returncode == 0
            module = (STATIC / "mist.js").as_uri()
            running = stack.enter_context(
                script_running(START + script, package="ws", module=module, url=url)
            )
            assert running.next() == "open"
            assert first.stop() == 0
            began = time.monotonic()
            with serving(tmp_path / "data", *options):
                told = list(running)
            assert time.monotonic() - began < 60
            assert told[0] == "going_away"
            assert "history" not in told
