"""The reference of the HTTP API is that of the program."""

from tests.http.reference import PAGE, reference


def test_the_page_is_what_the_routes_say() -> None:
    assert PAGE.read_text() == reference(), "run: python -m tests.http.reference"
