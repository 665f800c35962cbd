"""Fetching keys: when, how often, and what happens where that fails."""

import logging
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.auth.jwt.key_set import KeySet, Source
from mist.auth.jwt.keys import MAX_JWKS
from mist.auth.web import Web, WebError
from mist.errors import StartupError
from tests.auth.jwt.issuer import Site, fails, huge, jwks, site, slow, write_jwks


class Pages(Web):
    """A web without a network.

    Attributes:
        text: of the answer; an error to be raised.
        times: when it was asked; trio's seconds.
        seconds: that an answer takes.
    """

    def __init__(self, text: bytes | Exception) -> None:
        self.text = text
        self.times: list[float] = []
        self.seconds = 0.0
        self.status = 200

    @property
    def asked(self) -> int:
        """How often it was."""
        return len(self.times)

    async def get(self, *args: object, **options: object) -> tuple[int, bytes]:
        self.times.append(trio.current_time())
        await trio.sleep(self.seconds)
        if isinstance(self.text, Exception):
            raise self.text
        return self.status, self.text


def key_set(web: Web) -> KeySet:
    return KeySet([Source("https://u:p@id.example/jwks?key=hush", web)])


def silent() -> Pages:
    """A web that never answers; `Web.ask` gives up after 5 s."""
    web = Pages(WebError("timeout", "no answer in 5 s"))
    web.seconds = 5.0
    return web


async def test_an_unknown_key_has_the_sets_fetched_once_for_all(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(40)
    assert web.asked == 1
    web.text, web.seconds = jwks("rsa", "ed"), 2.0
    async with trio.open_nursery() as logins:
        for _ in range(100):
            logins.start_soon(keys.look_for, "ed", "EdDSA")
    assert web.asked == 2
    assert keys.find("ed", "EdDSA")
    assert keys.generation == 2


async def test_a_reload_has_the_sets_fetched_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(1)
    web.text = jwks("ed")
    keys.renew()
    await trio.sleep(1)
    assert web.asked == 2
    assert keys.find("ed", "EdDSA")


async def test_unknown_keys_are_not_fetched_more_often_than_every_half_minute(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(31)
    for _ in range(590):
        await keys.look_for("forged", "RS256")
        await trio.sleep(0.1)
    assert web.asked == 3


async def test_peers_that_go_do_not_have_more_fetched(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(31)
    web.seconds = 3.0
    for _ in range(20):
        with trio.move_on_after(0.1):
            await keys.look_for("forged", "RS256")
    assert web.asked == 2


async def test_keys_are_fetched_again_now_and_then_and_withdrawn_ones_forgotten(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa", "ed"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(1)
    assert keys.find("ed", "EdDSA")
    web.text = jwks("rsa")
    await trio.sleep(600)
    assert not keys.find("ed", "EdDSA")
    assert keys.fetches == {"changed": 2}


@pytest.mark.parametrize(
    "failure", [WebError("timeout", "no answer in 5 s"), b"{}", b" " * (MAX_JWKS + 1), b"<html>"]
)
async def test_a_set_that_fails_leaves_the_last_keys(
    failure: bytes | WebError,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    web = Pages(jwks("rsa"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(1)
    web.text = failure
    await trio.sleep(3_000)
    assert keys.find("rsa", "RS256")
    assert keys.complete
    assert keys.fetches["failed"] == 5
    [line] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "https://id.example/jwks can't be used" in line.getMessage()
    assert "hush" not in caplog.text
    web.text = jwks("ed")
    await trio.sleep(600)
    assert keys.find("ed", "EdDSA")
    assert not keys.find("rsa", "RS256")


async def test_a_set_that_was_never_there_is_fetched_soon_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    web = Pages(jwks("rsa"))
    web.status = 503
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(60)
    assert not keys.complete
    assert 6 < web.asked < 12
    web.status = 200
    await trio.sleep(10)
    assert keys.complete


async def test_one_of_several_sets_may_fail(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, bad = Pages(jwks("rsa")), Pages(b"")
    keys = KeySet([Source("https://a", good), Source("https://b", bad)])
    nursery.start_soon(keys.run)
    await trio.sleep(1)
    assert keys.find("rsa", "RS256")
    assert not keys.complete


async def test_each_set_is_fetched_at_its_own_times(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, bad = Pages(jwks("rsa")), Pages(b"")
    keys = KeySet([Source("https://a", good), Source("https://b", bad)])
    began = trio.current_time()
    nursery.start_soon(keys.run)
    await trio.sleep(1_205)
    assert [time - began for time in good.times] == [0, 600, 1_200]
    assert [time - began for time in bad.times] == [0, 1, 3, 8, *range(18, 1_205, 10)]


async def test_unknown_keys_have_no_set_fetched_too_often_where_another_never_answers(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, bad = Pages(jwks("rsa")), silent()
    keys = KeySet([Source("https://a", good), Source("https://b", bad)])
    began = trio.current_time()
    nursery.start_soon(keys.run)
    while trio.current_time() < began + 300:
        await keys.look_for("forged", "RS256")
        await trio.sleep(0.5)
    assert 5 <= good.asked <= 10
    assert min(later - time for time, later in pairwise(good.times)) >= 30
    # 5 s without an answer, and the pause behind them.
    assert [time - began for time in bad.times] == [0, 6, 13, 23, *range(38, 300, 15)]


async def test_a_new_key_is_found_while_another_set_does_not_answer(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, bad = Pages(jwks("rsa")), silent()
    keys = KeySet([Source("https://a", good), Source("https://b", bad)])
    nursery.start_soon(keys.run)
    await trio.sleep(40)
    assert bad.times[-1] == trio.current_time() - 2  # it is still waited for
    good.text = jwks("rsa", "ed")
    with trio.fail_after(1):
        await keys.look_for("ed", "EdDSA")
    assert keys.find("ed", "EdDSA")
    assert good.asked == 2


async def test_a_set_that_comes_late_is_fetched_as_the_others_from_then_on(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, late = Pages(jwks("rsa")), silent()
    keys = KeySet([Source("https://a", good), Source("https://b", late)])
    nursery.start_soon(keys.run)
    await trio.sleep(60)
    late.text, late.seconds = jwks("ed"), 0.0
    await trio.sleep(15)
    assert keys.complete
    asked = late.asked
    # An answer that it had is enough, whatever comes later.
    late.text = WebError("connection", "refused")
    await trio.sleep(500)
    assert late.asked == asked
    await trio.sleep(600)
    assert late.asked == asked + 1
    assert keys.complete


async def test_a_reload_has_all_sets_fetched_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good, bad = Pages(jwks("rsa")), Pages(b"")
    keys = KeySet([Source("https://a", good), Source("https://b", bad)])
    nursery.start_soon(keys.run)
    await trio.sleep(60)
    keys.renew()
    await wait_all_tasks_blocked()
    assert good.times[-1] == bad.times[-1] == trio.current_time()


async def test_a_token_without_a_name_of_its_key_is_tried_with_few() -> None:
    names = ["rsa", "other", "ed", "p256"]
    source = Source("https://a", Pages(jwks(*names, "rsa", "rsa", "rsa", "rsa")))
    keys = KeySet([source])
    await keys.fetch()
    assert len(keys.find("", "RS256")) == 4
    assert len(keys.find("", "ES256")) == 1
    assert keys.find("", "HS256") == keys.find("", "none") == []


async def test_a_file_has_to_be_there_at_the_start_and_may_change(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    source = Source(path, Pages(b""))
    with pytest.raises(StartupError, match=r"jwks.json can't be used"):
        await source.open()
    write_jwks(path, "rsa")
    await source.open()
    assert [key.kid for key in source.keys] == ["rsa"]
    write_jwks(path, "ed")
    assert await source.fetch() is True
    path.unlink()
    assert await source.fetch() is None
    assert [key.kid for key in source.keys] == ["ed"]


# over a real connection


async def test_keys_come_over_http() -> None:
    with site(jwks("rsa", "ed")) as it:
        async with Web(2, proxies=False) as web:
            source = Source(it.url, web)
            assert await source.fetch() is True
            assert await source.fetch() is False
    assert [key.kid for key in source.keys] == ["rsa", "ed"]


def redirects(it: Site) -> None:
    it.status, it.headers["location"] = 302, it.url


def compressed(it: Site) -> None:
    it.headers["content-encoding"] = "gzip"


@pytest.mark.parametrize("damage", [redirects, compressed, huge, fails])
async def test_an_answer_that_cannot_be_used_is_refused(damage: object) -> None:
    assert callable(damage)
    with site(jwks("rsa")) as it:
        damage(it)
        async with Web(2, proxies=False) as web:
            assert await Source(it.url, web).fetch() is None
    assert len(it.asked) == 1


async def test_an_answer_that_is_too_late_is_refused() -> None:
    with site(jwks("rsa")) as it:
        slow(it)
        async with Web(2, proxies=False) as web:
            with pytest.raises(WebError, match=r"no answer in 0.2 s"):
                await web.get(it.url, seconds=0.2, most=1_000)


async def test_a_server_that_is_not_there_is_no_mistake_of_ours() -> None:
    async with Web(2, proxies=False) as web:
        with pytest.raises(WebError, match="ConnectError"):
            await web.get("http://127.0.0.1:1/", seconds=2, most=1_000)


async def test_a_mistake_costs_one_fetch(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    web = Pages(RuntimeError("of a library"))
    keys = key_set(web)
    nursery.start_soon(keys.run)
    await trio.sleep(0.5)
    assert keys.fetches == {"failed": 1}
    assert "could not be fetched" in caplog.text
    web.text = jwks("rsa")
    await trio.sleep(5)
    assert keys.find("rsa", "RS256")
