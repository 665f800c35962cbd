"""Terms of a token: the text, and what can't be one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.errors import InvalidAudience, InvalidExpiry, InvalidName
from mist.terms import LAST_EXPIRY, MAX_NAME, Terms

names = st.text(min_size=1, max_size=MAX_NAME).filter(
    lambda text: text.isprintable() and text == text.strip()
)
expiries = st.integers(1, LAST_EXPIRY).map(float)


@given(st.none() | expiries | st.just(math.inf), st.none() | st.just("") | names)
def test_what_was_written_is_read(expires: float | None, name: str | None) -> None:
    terms = Terms(expires, name)
    if expires is None and name is None:
        assert terms.text == ""
    else:
        assert " " not in terms.text
        assert Terms.parse(terms.text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("expires=1798761600", Terms(1798761600.0)),
        ("expires=1798761600.25", Terms(1798761600.25)),
        ("name=nightly%20export", Terms(name="nightly export")),
        ("name=a&expires=9", Terms(9.0, "a")),
        ("expires=", Terms(math.inf)),
        ("name=&expires=", Terms(math.inf, "")),
    ],
)
def test_what_a_text_means(text: str, terms: Terms) -> None:
    assert Terms.parse(text) == terms


@pytest.mark.parametrize(
    "text",
    [
        *("", "&", "expires", "name", "expires=nan", "expires=inf", "expires=-1", "expires=1e9"),
        *("expires=0", "expires=253402300800", "expires=1;2", "expires=&expires=", "expires=1&"),
        *("expires=1&expires=", "name=a&name=", "name=a;b", "name=%0A", "name=%20a", "name=a%20"),
        *("name=%E2%80%AE", "name=%FF", "name=%", "user=1", "name=a&user=1", "expires=%D9%A1"),
        "name=" + (MAX_NAME + 1) * "a",
        "expires=" + 400 * "9",
    ],
)
def test_what_is_no_text_of_terms_is_refused(text: str) -> None:
    with pytest.raises((InvalidAudience, InvalidExpiry, InvalidName)):
        Terms.parse(text)


@pytest.mark.parametrize("expires", [0.0, -1.0, math.nan, -math.inf, LAST_EXPIRY + 1.0, 1e300])
def test_what_is_no_time_is_refused(expires: float) -> None:
    with pytest.raises(InvalidExpiry):
        Terms(expires)
