"""Dialing: TLS with its certificate, and Unix sockets."""

import ssl
from pathlib import Path

import pytest
import trio
import trustme

from mist.client import ConnectError, Rejected
from mist.config import Listen
from tests.client.loops import connect
from tests.servers import listeners, running


async def test_tls_carries_both_and_checks_the_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    listen = listeners("tcps", "wss")
    with trio.fail_after(10):
        async with running(tmp_path / "data", listen=listen, tls_cert=cert, tls_key=key) as server:
            tcps, wss = server.urls
            async with connect(tcps, ssl_context=trusting) as client:
                await client.register(["a"], "T")
                async with (
                    connect(wss, token="T", ssl_context=trusting) as browser,
                    browser.subscribe(["a"]) as subscription,
                ):
                    await client.publish(["a"], "x")
                    assert (await anext(subscription)).text == "x"
            with pytest.raises(Rejected, match="its certificate is not trusted: "):
                async with connect(tcps, wait=True):
                    pass


async def test_lines_without_tls_at_a_listener_with_it_are_asked_about(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    pem = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    listen = listeners("tcps")
    with trio.fail_after(10):
        async with running(tmp_path / "data", listen=listen, tls_cert=pem, tls_key=pem) as server:
            (url,) = server.urls
            where = url.removeprefix("tcps://")
            advice = f"^connection lost: .+; is {where} a tcp listener of mist\\?$"
            with pytest.raises(ConnectError, match=advice):
                async with connect(f"tcp://{where}"):
                    pass


async def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    path = str(tmp_path / "mist.sock")
    with trio.fail_after(10):
        async with (
            running(tmp_path, listen=(Listen("tcp+unix", path=path),)),
            connect(f"tcp+unix://{path}") as client,
        ):
            await client.ping()
