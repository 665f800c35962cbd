"""Reload: what of other settings holds at once, what needs a restart, and what changes nothing."""

import math
import re
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
import trustme

from mist.auth.callout.logins import LoginCallout
from mist.auth.callout.questions import Questions
from mist.config import CONFIG_FILE, OPTIONS, Config, Option
from mist.errors import ConfigError, StartupError
from mist.reloading import RELOADED, Reloaded, Reloader, changes, settle, watch_certificate
from mist.server import Server
from mist.serving import serve
from tests.auth.callout.backend import Backend
from tests.auth.jwt.issuer import claims, sign, write_jwks
from tests.config.test_config import COMPANIONS, SAMPLES, load
from tests.http.client import request
from tests.servers import listeners, port_of, running
from tests.waiting import until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(
        tmp_path, listen=listeners("tcp", "http"), secret="s3cret-of-old", failed_auth_delay=0.0
    ) as server:
        with trio.fail_after(60):
            yield server


async def reload(server: Server, **changes: object) -> Reloaded:
    wanted = attrs.evolve(server.config, **changes)
    return await Reloader(server, lambda: wanted).reload()


async def status(server: Server, path: str = "/v1/stats", **headers: str) -> int:
    return (await request(server, "GET", path, headers=headers)).status


async def says(server: Server, line: bytes) -> bytes:
    """What a new connection over TCP is answered."""
    async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as stream:
        await stream.send_all(line)
        return bytes(await stream.receive_some())


def test_every_name_is_a_setting() -> None:
    assert {option.field for option in OPTIONS} >= RELOADED


def test_the_page_names_all_of_them() -> None:
    page = (Path(__file__).parents[1] / "docs" / "running.md").read_text()
    names = [option.name for option in OPTIONS if option.field in RELOADED]
    assert [name for name in names if f"`{name}`" not in page] == []


async def test_nothing_is_changed_where_nothing_is_other(server: Server) -> None:
    assert await reload(server) == Reloaded((), ())


REST = [each for each in OPTIONS if each.field not in RELOADED | {CONFIG_FILE.field}]


@pytest.mark.parametrize("option", REST, ids=lambda option: option.name)
def test_what_does_not_hold_at_once_is_named(option: Option) -> None:
    text, _ = SAMPLES[option.name]
    others = COMPANIONS.get(option.name, {})
    before = load(others)
    value: object = True if option.is_switch else (text,) if option.repeatable else text
    wanted, effective = settle(lambda: load({**others, option.name: value}), before)
    assert effective == before
    assert option.name in changes(effective, wanted)


async def test_another_secret_holds_for_those_who_come_then(server: Server) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0])) as old:
        await old.send_all(b"auth s3cret-of-old\nping\n")
        assert await old.receive_some() == b"pong\n"
        assert await reload(server, secret="another-s3cret") == Reloaded(("secret",), ())
        assert await says(server, b"auth s3cret-of-old\n") == b"error Unauthorized\n"
        assert await says(server, b"auth another-s3cret\nlist\n") == b"list \n"
        assert await status(server, authorization="Bearer s3cret-of-old") == 401
        assert await status(server, authorization="Bearer another-s3cret") == 200
        await old.send_all(b"list\n")
        assert await old.receive_some() == b"list \n"


async def test_another_secret_in_the_same_file_is_one(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the-first-one\n")
    async with running(tmp_path / "data", secret_file=file) as server:
        file.write_text("the-second-one\n")
        assert await reload(server) == Reloaded(("secret_file",), ())
        assert server.hub.is_secret("the-second-one")


async def test_other_origins_may_connect_then(server: Server) -> None:
    async def is_allowed() -> bool:
        found = await request(server, "GET", "/healthz", headers={"Origin": "https://a.example"})
        return "access-control-allow-origin" in found.headers

    assert not await is_allowed()
    assert (await reload(server, allow_origin=("https://a.example",))).changed == ("allow_origin",)
    assert await is_allowed()


async def test_other_limits_hold_then(server: Server) -> None:
    secret = {"Authorization": "Bearer s3cret-of-old"}
    assert await says(server, b"auth s3cret-of-old\nstore a 123456789\nping\n") != b""
    reloaded = await reload(server, max_data=8, max_line=200, max_connections=7, max_body=10)
    assert set(reloaded.changed) == {"max_data", "max_line", "max_connections", "max_body"}
    answer = await says(server, b"auth s3cret-of-old\n" + b"publish a " + b"x" * 300 + b"\nping\n")
    assert answer.startswith(b"error Line too long")
    body = {"tags": ["a"], "data": "x" * 20}
    response = await request(server, "POST", "/v1/messages", headers=secret, json=body)
    assert response.status == 413


async def test_requests_about_tokens_may_have_as_many_tags_then(server: Server) -> None:
    secret = {"Authorization": "Bearer s3cret-of-old"}

    async def put(count: int) -> int:
        json = {"tags": [f"t{n}" for n in range(count)]}
        return (await request(server, "PUT", "/v1/tokens", headers=secret, json=json)).status

    assert [await put(64), await put(65)] == [201, 400]
    await reload(server, max_token_tags=70)
    assert [await put(70), await put(71)] == [201, 400]
    await reload(server, max_token_tags=3)
    assert [await put(3), await put(4)] == [201, 400]


async def test_a_token_may_have_as_many_polls_then(tmp_path: Path) -> None:
    token = {"x-auth-token": "a-token-that-nobody-guesses"}
    async with running(tmp_path, history="memory://", listen=listeners("http")) as server:

        async def poll(seconds: int) -> int:
            return await status(server, f"/v1/poll?tags=a&timeout={seconds}", **token)

        body = {"tags": ["a"], "token": token["x-auth-token"]}
        assert (await request(server, "PUT", "/v1/tokens", json=body)).status == 201
        await reload(server, max_connections_per_address=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, 30)
            await until(lambda: server._endpoints.streams._by_token)
            assert await poll(0) == 429
            await reload(server, max_connections_per_address=2)
            assert await poll(0) == 200
            nursery.cancel_scope.cancel()


async def test_another_retention_holds_but_for_what_an_archive_is_sealed_by(tmp_path: Path) -> None:
    async with running(tmp_path, history="memory://", listen=listeners("tcp")) as server:
        assert await reload(server, keep_bytes=1 << 20) == Reloaded(("keep_bytes",), ())
        assert server.config.policy.max_bytes == 1 << 20
    before = load({"archive": "archive"})
    wanted, effective = settle(lambda: load({"archive": "archive", "keep_bytes": "1MiB"}), before)
    assert effective == before
    assert changes(effective, wanted) == ["keep_bytes"]


async def test_the_keys_of_issuers_are_fetched_again(tmp_path: Path) -> None:
    keys = write_jwks(tmp_path / "jwks.json", "rsa")
    settings = {
        "listen": listeners("http"),
        "history": "memory://",
        "jwt_jwks": (str(keys),),
        "jwt_issuer": ("https://id.example",),
        "jwt_audience": ("mist",),
    }
    async with running(tmp_path, failed_auth_delay=0.0, **settings) as server:

        async def answers() -> list[int]:
            """Those to tokens that are signed with either key."""
            tokens = [sign(key=key) for key in ("rsa", "ed")]
            path = "/v1/poll?tags=room:1&timeout=0"
            return [await status(server, path, authorization=f"Bearer {each}") for each in tokens]

        [authority] = server.hub.credentials.authorities
        await until(lambda: authority.counts["jwks"].get("unchanged"))
        write_jwks(keys, "ed")
        assert await answers() == [200, 401]
        assert await reload(server) == Reloaded((), ())
        await until(lambda: authority.counts["jwks"].get("changed"))
        assert await answers() == [401, 200]


async def test_tokens_of_other_issuers_may_grant_as_many_tags_then(tmp_path: Path) -> None:
    keys = write_jwks(tmp_path / "jwks.json", "rsa")
    settings = {
        "listen": listeners("http"),
        "history": "memory://",
        "jwt_jwks": (str(keys),),
        "jwt_issuer": ("https://id.example",),
        "jwt_audience": ("mist",),
        "max_tags_per_token": 2,
    }
    async with running(tmp_path, failed_auth_delay=0.0, **settings) as server:
        callout = LoginCallout(
            Questions(
                Backend(lambda question: {"tags": question["credential"].split(",")}),
                None,
                server.hub.now,
            ),
            server.hub.registry,
            2,
            server.hub.now,
            steady=server.hub.now,
            in_use=lambda record: False,
            replace=lambda old, new: None,
        )
        server.hub.credentials._callout = callout
        tags = [f"room:{n}" for n in range(1, 5)]
        tokens = {n: sign(claims(mist={"tags": tags[:n]})) for n in (2, 3, 4)}

        async def answers(*counts: int) -> list[int]:
            """Those to tokens with so many tags, from either issuer."""
            found = []
            for count in counts:
                path = "/v1/poll?tags=room:1&timeout=0"
                found.append(await status(server, path, authorization=f"Bearer {tokens[count]}"))
                found.append(await status(server, path, **{"x-auth-token": ",".join(tags[:count])}))
            return found

        async with trio.open_nursery() as nursery:
            nursery.start_soon(callout.run)
            await trio.testing.wait_all_tasks_blocked()
            assert await answers(2, 3) == [200, 200, 401, 503]
            await reload(server, max_tags_per_token=3)
            assert await answers(3, 4) == [200, 200, 401, 503]
            nursery.cancel_scope.cancel()


async def test_a_bad_setting_changes_nothing(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    before = server.config

    def read() -> Config:
        raise ConfigError("mist.toml: secret: too short")

    with pytest.raises(StartupError, match="too short"):
        await Reloader(server, read).reload()
    assert server.config is before
    assert [each.getMessage() for each in caplog.records] == ["settings are not reloaded"]


async def test_the_secret_stays_while_an_exposed_listener_does(tmp_path: Path) -> None:
    listen = (attrs.evolve(listeners("tcp")[0], host="0.0.0.0"),)
    async with running(tmp_path, listen=listen, secret="s3cret-of-old") as server:
        with pytest.raises(ConfigError, match="secret"):
            await reload(server, secret=None, listen=listeners("tcp"))
        assert server.hub.needs_secret


class Tls:
    """A certificate's files, and the serial number of what a server shows."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.context = ssl.create_default_context()
        self.authority.configure_trust(self.context)
        self.chain, self.key = folder / "chain.pem", folder / "key.pem"
        self.issue()

    def issue(self, *, days: float = 300.0) -> None:
        """A new one, which ends in so many days."""
        end = datetime.now(UTC) + timedelta(days=days)
        issued = self.authority.issue_cert("127.0.0.1", not_after=end)
        self.chain.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    async def shown(self, url: str) -> object:
        port = port_of(url)
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=self.context)
        await stream.do_handshake()
        found = stream.getpeercert()
        await trio.aclose_forcefully(stream)
        return found["serialNumber"]


@pytest.mark.parametrize("scheme", ["tcps", "https"])
async def test_a_renewed_certificate_is_shown_to_those_who_come_then(
    tmp_path: Path, scheme: str
) -> None:
    tls = Tls(tmp_path)
    settings = {"listen": listeners(scheme), "tls_cert": tls.chain, "tls_key": tls.key}
    async with running(tmp_path / "data", **settings) as server:
        first = await tls.shown(server.urls[0])
        tls.issue()
        assert await tls.shown(server.urls[0]) == first
        assert await reload(server) == Reloaded((), ())
        second = await tls.shown(server.urls[0])
        assert second != first
        tls.key.write_text("no key")
        with pytest.raises(StartupError, match="no usable certificate"):
            await reload(server, max_connections=7)
        assert server.config.max_connections != 7
        assert await tls.shown(server.urls[0]) == second


async def test_a_certificate_is_taken_where_its_files_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Tls(tmp_path)
    settings = {"listen": listeners("tcps"), "tls_cert": tls.chain, "tls_key": tls.key}
    async with running(tmp_path / "data", **settings) as server, trio.open_nursery() as nursery:
        nursery.start_soon(watch_certificate, server, 0.01)
        first = await tls.shown(server.urls[0])
        context = server.certificate and server.certificate.context
        tls.key.write_text("half of two")
        await until(lambda: "not renewed" in caplog.text)
        assert await tls.shown(server.urls[0]) == first
        assert server.certificate is not None
        assert server.certificate.context is context
        tls.issue()
        await until(lambda: server.certificate and server.certificate.context is not context)
        assert await tls.shown(server.urls[0]) != first
        nursery.cancel_scope.cancel()


async def test_a_certificate_that_ends_soon_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    def told() -> list[str]:
        return [
            record.reason
            for record in caplog.records
            if record.getMessage() == "the certificate has to be renewed"
        ]

    tls = Tls(tmp_path)
    tls.issue(days=20)
    settings = {"listen": listeners("tcps", "http"), "tls_cert": tls.chain, "tls_key": tls.key}
    async with running(tmp_path / "data", **settings, open_metrics=True) as server:
        assert server.certificate is not None
        assert math.isfinite(server.certificate.ends)
        nursery.start_soon(watch_certificate, server, 0.01)
        await until(told)
        metrics = (await request(server, "GET", "/metrics")).body.decode()
        (line,) = re.findall(r"^mist_certificate_expiry_timestamp_seconds (.+)$", metrics, re.M)
        assert float(line) == server.certificate.ends
        assert 19.9 < (float(line) - time.time()) / 86_400 < 20.1
        tls.issue(days=-1)
        await until(lambda: len(told()) > 1)
        before = server.certificate.digest
        tls.issue()
        await until(lambda: server.certificate and server.certificate.digest != before)
        tls.issue(days=10)
        await until(lambda: len(told()) > 2)
        nursery.cancel_scope.cancel()
    soon, ended, again = told()
    assert soon.startswith(f"{tls.chain} ends at ")
    assert ended.startswith(f"{tls.chain} ended at ")
    assert again.startswith(f"{tls.chain} ends at ")


async def test_what_the_command_line_runs_looks_after_its_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    tls = Tls(tmp_path)
    config = Config(
        data=tmp_path / "data",
        listen=listeners("tcps"),
        tls_cert=tls.chain,
        tls_key=tls.key,
        tokens="memory://",
        history="none",
    )

    def is_renewed() -> bool:
        mock_clock.jump(10)  # past the next look
        return "the certificate is renewed" in caplog.text

    caplog.set_level("INFO")
    urls: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, config, urls.append)
        await until(lambda: urls)
        first = await tls.shown(urls[0])
        tls.issue()
        await until(is_renewed)
        assert await tls.shown(urls[0]) != first
        nursery.cancel_scope.cancel()
