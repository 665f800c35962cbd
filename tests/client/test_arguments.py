"""Arguments that can't be right are refused with words that say why."""

import math
import re
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio

from mist.client import AccessDenied, BadArgument, Client, ConnectError, Rejected
from mist.client.arguments import credential_text, payload, tag_set, token_text
from mist.errors import DataTooLong, EmptyTag, InvalidTag, InvalidToken, TooManyTags
from mist.message import ASK, GRANT, PUBLISH, TagUse, check_tag, explain_invalid_tag
from tests.client.loops import connect
from tests.servers import listeners, running


@pytest.mark.parametrize(
    ("tags", "use", "words"),
    [
        (["ok", "a b"], PUBLISH, "'a b': a tag has no spaces and no commas"),
        (["a,b"], ASK, "'a,b': a tag has no spaces and no commas"),
        (["a\tb"], GRANT, r"'a\\tb': a tag has no control characters"),
        (
            ["ä" * 128],
            PUBLISH,
            f"'{'ä' * 60}…': it has 256 bytes in UTF-8, and a tag has at most 255",
        ),
        (["\ud800"], PUBLISH, r"'\\ud800': it is not valid Unicode"),
        (["..a"], GRANT, "'..a': tags that begin with .. are reserved"),
        ([">a"], ASK, "'>a': only a token's tag may begin with >, for the right to publish"),
        (["a*"], PUBLISH, "'a*': only a token's tag may end in *, for all tags with that prefix"),
        (["*"], PUBLISH, "'*': only a token's tag may end in *"),
        (["/a*"], ASK, "'/a*': only a token's tag may end in *"),
        (["=/a"], PUBLISH, "'=/a': only subscriptions and tokens name a channel alone"),
        (["/" * 33], PUBLISH, f"'{'/' * 33}': a topic has at most 32 levels"),
        (["=" + "/" * 33], GRANT, "a topic has at most 32 levels"),
        ([".a..b"], PUBLISH, "'.a..b': a subject has 1 to 20 tokens"),
        ([".a.>.b"], ASK, "'.a.>.b': a subject has 1 to 20 tokens"),
        ([">.a*"], GRANT, "'>.a*': a subject has 1 to 20 tokens"),
        ([".a", ".b"], PUBLISH, "at most one of a message's or subscription's tags is a subject"),
    ],
)
def test_an_invalid_tag_is_named_with_the_rule(tags: list[str], use: TagUse, words: str) -> None:
    with pytest.raises(InvalidTag) as caught:
        tag_set(tags, 64, use)
    assert str(caught.value).startswith("Invalid tag")
    assert words.replace("\\\\", "\\") in str(caught.value)


@pytest.mark.parametrize("use", [PUBLISH, ASK, GRANT])
@pytest.mark.parametrize("first", ["", ".", "..", "/", "=/", "=", ">", ">.", ">/", ">=/", "*", " "])
@pytest.mark.parametrize(
    "last", ["", "a", "*", ".a", ".*", ".>", "a*", "//", ",", "x" * 255, "/" * 40]
)
def test_what_is_explained_is_what_is_refused(use: TagUse, first: str, last: str) -> None:
    tag = first + last
    try:
        check_tag(tag, use)
    except InvalidTag:
        assert f"Invalid tag {tag[:20]!r}"[:-1] in explain_invalid_tag(["good", tag], use)
    except EmptyTag:
        assert tag == ""
    else:
        assert "Invalid tag '" not in explain_invalid_tag(["good", tag], use)


def test_other_arguments_are_refused_in_words() -> None:
    def refused(error: type[Exception], words: str, call: Callable[[], object]) -> None:
        with pytest.raises(error, match=f"^{re.escape(words)}$"):
            call()

    refused(EmptyTag, "Empty tag: at least one tag is needed", lambda: tag_set([], 2))
    refused(EmptyTag, "Empty tag: a tag has at least one character", lambda: tag_set(["a", ""], 2))
    refused(
        TooManyTags,
        "Too many tags: 3, and at most 2 are allowed",
        lambda: tag_set(["c", "d", "e"], 2),
    )
    refused(TypeError, "tags must be strings, not int", lambda: tag_set([1], 2))  # type: ignore[list-item]
    refused(
        TypeError, "tags are a list or a set of strings, not one string", lambda: tag_set("a", 2)
    )
    refused(TypeError, "data must be str or bytes, not int", lambda: payload(7, 9))  # type: ignore[arg-type]
    refused(TypeError, "data must be str or bytes, not dict", lambda: payload({}, 9))  # type: ignore[arg-type]
    refused(
        DataTooLong,
        "Data too long: 1,001 bytes, and at most 1,000 are allowed",
        lambda: payload("x" * 1001, 1000),
    )
    refused(TypeError, "a token must be a string, not bytes", lambda: token_text(b"T"))  # type: ignore[arg-type]
    with pytest.raises(InvalidToken, match="1 to 255 bytes") as caught:
        token_text("secret word")
    assert "secret" not in str(caught.value)


def test_data_of_any_kind_of_bytes_is_taken() -> None:
    assert payload(bytearray(b"a"), 9) == payload(memoryview(b"a"), 9) == payload("a", 9) == b"a"


CALLS: list[Callable[[Client], Awaitable[object]]] = [
    lambda client: client.publish(["a"], 7),  # type: ignore[arg-type]
    lambda client: client.store(["a"], None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_client_says_what_data_is(
    tmp_path: object, call: Callable[[Client], Awaitable[object]]
) -> None:
    async with running(tmp_path) as server, connect(server.urls[0]) as client:  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="data must be str or bytes, not"):
            await call(client)
        await client.publish(["a"], bytearray(b"data"))
        await client.flush()


@pytest.mark.parametrize("to", ["users=7", {"users": [7]}])
async def test_a_client_says_what_an_audience_is(tmp_path: object, to: object) -> None:
    async with running(tmp_path) as server, connect(server.urls[0]) as client:  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"^to must be a mist\.audience\.Audience, not (str|dict)$"
        ):
            await client.publish(["a"], "x", to=to)  # type: ignore[arg-type]


TAGGED: list[Callable[[Client], Awaitable[object]]] = [
    lambda client: client.publish(["a b"], "x"),
    lambda client: client.store(["a b"], "x"),
    lambda client: client.register(["a b"], "t"),
    lambda client: client.set(["a b"], "t"),
]


@pytest.mark.parametrize("call", TAGGED)
async def test_a_client_names_the_tag_and_the_rule(
    tmp_path: object, call: Callable[[Client], Awaitable[object]]
) -> None:
    words = "Invalid tag 'a b': a tag has no spaces and no commas"
    async with running(tmp_path) as server, connect(server.urls[0]) as client:  # type: ignore[arg-type]
        with pytest.raises(InvalidTag, match=words):
            await call(client)
        with pytest.raises(InvalidTag, match=words):
            async with client.subscribe(["a b"]):
                pass


async def test_numbers_that_can_not_be_right_are_refused_at_once(tmp_path: object) -> None:
    options: list[tuple[str, object, str]] = [
        ("buffer", 0, "buffer must be more than 0"),
        ("keepalive_seconds", 0, "keepalive_seconds must be more than 0"),
        ("keepalive_seconds", None, "keepalive_seconds must be a number, not NoneType"),
        ("backoff_base", -1, "backoff_base must not be less than 0"),
        ("backoff_cap", "1", "backoff_cap must be a number, not str"),
    ]
    for name, value, words in options:
        with pytest.raises((BadArgument, TypeError), match=f"^{words}$"):
            async with connect("tcp://127.0.0.1:1", **{name: value}):
                pass
    queues: list[tuple[object, str]] = [
        (0, "queue must be more than 0"),
        (-1, "queue must be more than 0"),
        (math.nan, "queue must be more than 0"),
        (None, "queue must be a number, not NoneType"),
        (True, "queue must be a number, not bool"),
    ]
    async with running(tmp_path) as server, connect(server.urls[0]) as client:  # type: ignore[arg-type]
        for queue, words in queues:
            with pytest.raises((BadArgument, TypeError), match=f"^{words}$"):
                async with client.subscribe(["a"], queue=queue):  # type: ignore[arg-type]
                    pass


async def test_a_tls_context_that_can_not_be_used_is_refused_at_once() -> None:
    for context, words in (
        ("ca.pem", "ssl_context must be an ssl.SSLContext, not str"),
        (True, "ssl_context must be an ssl.SSLContext, not bool"),
        (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "ssl_context is one for servers"),
    ):
        raised = pytest.raises((BadArgument, TypeError), match=f"^{words}")
        with trio.fail_after(5), raised:
            async with connect("tcps://127.0.0.1:1", ssl_context=context, wait=True):  # type: ignore[arg-type]
                pass


async def test_a_tls_context_for_a_url_without_tls_is_refused() -> None:
    context = ssl.create_default_context()
    for url, token in (("tcp://h", None), ("ws://h", "T"), ("tcp+unix:///s", None)):
        with pytest.raises(BadArgument, match=r"^an ssl_context is for tcps:// and wss://"):
            async with connect(url, token=token, ssl_context=context):
                pass


async def test_an_http_url_is_told_which_listeners_there_are() -> None:
    for url in ("http://h", "https://h:8080/v1"):
        with pytest.raises(BadArgument, match="an HTTP URL: this client connects to tcp:// or ws"):
            async with connect(url):
                pass


async def test_where_nobody_listens_it_asks_whether_a_server_runs(tmp_path: object) -> None:
    for url, where in {
        "tcp://127.0.0.1:1": "127.0.0.1:1: connection refused",
        "ws://localhost:1": "localhost:1: connection refused",
        f"tcp+unix://{tmp_path}/none.sock": f"{tmp_path}/none.sock: no such file or directory",
    }.items():
        with pytest.raises(ConnectError) as caught:
            async with connect(url, token="T" if url.startswith("ws") else None):
                pass
        assert str(caught.value) == f"{where}; is `mist serve` running?"


async def test_another_listener_than_the_url_says_is_asked_about(tmp_path: object) -> None:
    given = listeners("tcp", "ws", "http", "nats")
    async with running(tmp_path, listen=given, history="none") as server:  # type: ignore[arg-type]
        ports = [url.rpartition(":")[2] for url in server.urls]
        for port in ports[1:]:
            with pytest.raises(ConnectError) as caught:
                async with connect(f"tcp://127.0.0.1:{port}", secret="s", connect_seconds=0.5):
                    pass
            assert str(caught.value).endswith(f"; is 127.0.0.1:{port} a tcp listener of mist?")


async def test_a_token_that_is_not_known_is_told_of(tmp_path: object) -> None:
    async with running(tmp_path) as server:  # type: ignore[arg-type]
        with pytest.raises(AccessDenied) as caught:
            async with connect(server.urls[1], token="nosuch"):
                pass
    assert str(caught.value) == "access denied: the token is unknown, or was revoked"


async def test_where_no_host_is_it_does_not_ask() -> None:
    with pytest.raises(ConnectError) as caught:
        async with connect("tcp://no-such-host.invalid"):
            pass
    assert "no-such-host.invalid:1445: " in str(caught.value)
    assert "mist serve" not in str(caught.value)


@pytest.mark.parametrize("host", ["höst_1", "ä..b", "ä" * 70, "\ud800"])
async def test_what_can_be_no_host_name_is_refused(host: str) -> None:
    with pytest.raises(Rejected, match=":1445: not a host name: "):
        async with connect(f"tcp://{host}", wait=True):
            pass


def test_a_token_to_log_in_with_may_be_a_jwt() -> None:
    for text in ("T", "ä", "x" * 255, "e" * 256, "e" * 8_192):
        assert credential_text(text) == text
    for text in ("", "a b", "e" * 8_193, "e" * 300 + " ", "e" * 300 + "\n", "ä" * 200):
        with pytest.raises(InvalidToken) as caught:
            credential_text(text)
        assert "eee" not in str(caught.value)
