"""The URL under which a server is known."""

import pytest

from mist.config import Config
from mist.config.public_url import PublicUrl
from mist.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url", "host"),
    [
        ("https://example.com", "https://example.com", "example.com"),
        ("HTTPS://Example.com:443/", "https://example.com", "example.com"),
        ("https://example.com:8443/mist/", "https://example.com:8443/mist", "example.com"),
        ("http://[2001:DB8::1]:80/a/b-c_d.e~f", "http://[2001:db8::1]/a/b-c_d.e~f", "2001:db8::1"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1"),
    ],
)
def test_it_is_read(text: str, url: str, host: str) -> None:
    found = PublicUrl.parse(text)
    assert (str(found), found.host) == (url, host)
    assert PublicUrl.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["example.com", "wss://example.com", "https:example.com", "https://", "https:///mist",
     "https://user@example.com", "https://example.com?x", "https://example.com/a?x",
     "https://example.com/#", "https://example.com//a", "https://example.com/..",
     "https://example.com/a/../b", "https://example.com/%2e", "https://*.example.com",
     "https://example.com/" + "a" * 201, "https://example.com/a b", "https://exa mple.com"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        PublicUrl.parse(text)


def test_what_others_reach_needs_a_secret() -> None:
    public = PublicUrl.parse("https://example.com")
    with pytest.raises(ConfigError, match=r"public_url: https://example\.com can be reached"):
        Config(public_url=public)
    for more in ({"secret": "s"}, {"insecure": True}):
        config = Config(public_url=public, server_names=("other.example",), **more)  # type: ignore[arg-type]
        assert config.names == ("other.example", "example.com")
        assert config.origins == ("https://example.com",)
    assert Config(public_url=PublicUrl.parse("http://localhost:8000")).names == ("localhost",)
