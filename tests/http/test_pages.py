"""The pages that the server brings itself: what is served, as what, and nothing else."""

import gzip
import json
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.http import pages
from mist.server import Server
from tests.http.client import connect, request
from tests.servers import listeners, running

STATIC = files("mist") / "static"
POLICY = "default-src 'self'; connect-src 'self' {websocket}; frame-ancestors 'none'"
JAVASCRIPT = "text/javascript; charset=utf-8"


def policy(server: Server) -> str:
    return POLICY.format(websocket=server.urls[1].replace("http://", "ws://"))


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": listeners("tcp", "http"), "secret": "canary"}


@pytest.mark.parametrize(
    ("path", "file", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/mist.js", "mist.min.js", JAVASCRIPT),
        ("/mist.min.js.map", "mist.min.js.map", "application/json"),
        ("/mist.d.ts", "mist.d.ts", "application/typescript; charset=utf-8"),
        ("/static/dashboard.css", "dashboard.css", "text/css; charset=utf-8"),
        ("/static/favicon.svg", "favicon.svg", "image/svg+xml"),
        ("/static/dashboard/main.js", "dashboard/main.js", JAVASCRIPT),
    ],
)
async def test_a_file_is_served_to_anyone_under_the_policy(
    server: Server, path: str, file: str, kind: str
) -> None:
    response = await request(server, "GET", path)
    assert response.status == 200
    assert response.body == (STATIC / file).read_bytes()
    assert response.headers["content-type"] == kind
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["content-security-policy"] == policy(server)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


async def test_every_module_that_a_page_imports_is_served(server: Server) -> None:
    modules = [each.name for each in (STATIC / "dashboard").iterdir()]
    assert "main.js" in modules
    async with connect(server) as client:
        for name in modules:
            response = await client.request("GET", f"/static/dashboard/{name}")
            assert (response.status, response.headers["content-type"]) == (200, JAVASCRIPT)


async def test_what_a_browser_has_is_not_sent_again(server: Server) -> None:
    async with connect(server) as client:
        etag = (await client.request("GET", "/")).headers["etag"]
        for condition in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            response = await client.request("GET", "/", {"If-None-Match": condition})
            assert (response.status, response.body) == (304, b"")
            assert response.headers["etag"] == etag
            assert response.headers["content-security-policy"] == policy(server)
        for condition in ('"other"', etag.strip('"'), ""):
            response = await client.request("GET", "/", {"If-None-Match": condition})
            assert response.status == 200


async def test_a_file_comes_compressed_to_who_takes_it_so(server: Server) -> None:
    plain = await request(server, "GET", "/mist.js")
    packed = await request(server, "GET", "/mist.js", {"Accept-Encoding": "gzip, deflate, br"})
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["content-length"] == str(len(packed.body))
    assert "content-encoding" not in plain.headers
    for response in (plain, packed):
        assert response.headers["vary"] == "Accept-Encoding, Origin"
    # Each has an ETag of its own, which is that of no other.
    assert plain.headers["etag"] != packed.headers["etag"]
    for headers, status in (
        ({"Accept-Encoding": "gzip", "If-None-Match": packed.headers["etag"]}, 304),
        ({"Accept-Encoding": "gzip", "If-None-Match": plain.headers["etag"]}, 200),
        ({"If-None-Match": packed.headers["etag"]}, 200),
    ):
        assert (await request(server, "GET", "/mist.js", headers)).status == status


async def test_a_small_file_is_not_compressed(server: Server) -> None:
    response = await request(server, "GET", "/static/favicon.svg", {"Accept-Encoding": "gzip"})
    assert response.headers["vary"] == "Origin"
    assert "content-encoding" not in response.headers


async def test_what_is_not_made_of_the_source_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(str(STATIC), tmp_path / "static")
    (tmp_path / "static" / "mist.js").write_text("export const changed = 1;\n")
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "static")
    async with running(tmp_path / "data", listen=listeners("http")) as server:
        assert (await request(server, "GET", "/mist.js")).body == b"export const changed = 1;\n"


async def test_files_that_differ_have_etags_that_differ(server: Server) -> None:
    paths = ("/", "/mist.js", "/static/dashboard.css")
    etags = [(await request(server, "GET", path)).headers["etag"] for path in paths]
    assert len(set(etags)) == len(paths)


async def test_head_tells_the_size_and_sends_nothing(server: Server) -> None:
    whole = await request(server, "GET", "/mist.js")
    async with connect(server) as client:
        await client.connection.send_all(
            b"HEAD /mist.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        received = b""
        while chunk := await client.receive_some():
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"content-length: {len(whole.body)}".encode() in head
    assert body == b""


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/dashboard",
        "/static/dashboard/",
        "/static/index.html",  # it has one address, and that is /
        "/static/mist.js",
        "/static/package.json",  # for npm
        "/index.html",
        "/static/nothing.js",
        "/static/../pages.py",
        "/static/../../hub.py",
        "/static/%2e%2e/pages.py",
        "/static/..%2f..%2fhub.py",
        "/static/..%5c..%5chub.py",
        "/static/dashboard/../../../auth/registry.py",
        "/static//etc/passwd",
        "/static/%2fetc/passwd",
        "/static/dashboard//main.js",
        "/static/./dashboard.css",
        "/static/dashboard.css%00.js",
        "/static/dashboard.css%3fx",
        "/static/DASHBOARD.CSS",
        "/static/dashboard.css/",
        "//mist.js",
    ],
)
async def test_no_other_path_leads_anywhere(server: Server, path: str) -> None:
    response = await request(server, "GET", path)
    assert response.status == 404
    assert json.loads(response.body)["code"] == "not_found"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_pages_are_only_read(server: Server, method: str) -> None:
    response = await request(server, method, "/", json={})
    assert response.status == 405


async def test_a_query_changes_nothing(server: Server) -> None:
    plain = await request(server, "GET", "/")
    asked = await request(server, "GET", "/?secret=canary&<script>")
    assert asked.body == plain.body


async def test_pages_hold_nothing_of_the_server(server: Server) -> None:
    async with connect(server) as client:
        for path in ("/", "/mist.js", "/static/dashboard/main.js"):
            assert b"canary" not in (await client.request("GET", path)).body


async def test_the_page_needs_no_inline_script_or_style_and_no_other_host(server: Server) -> None:
    text = (await request(server, "GET", "/")).body.decode()
    assert "<style" not in text
    assert " style=" not in text
    assert not re.search(r"<[^>]*\son\w+=", text)
    assert text.count("<script") == text.count('<script type="module" src="static/') == 1
    assert "//" not in text


async def test_many_readers_get_the_same(server: Server) -> None:
    bodies: list[bytes] = []

    async def read() -> None:
        bodies.append((await request(server, "GET", "/mist.js")).body)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(read)
    assert bodies == [(STATIC / "mist.min.js").read_bytes()] * 50
