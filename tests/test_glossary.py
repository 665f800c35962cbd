"""The terms of the field are found where they are implemented."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
# A heading, one paragraph, and the module.
ENTRY = re.compile(r"^## (.+)\n\n(?:.+\n)+\nModule: `(.+)`$", re.MULTILINE)
ENTRIES = ENTRY.findall(GLOSSARY)

# A standard term, and the module whose docstring has to name it.
STANDARD = {
    "backpressure": "mist/client/send_buffer.py",
    "rate limit": "mist/http/rates.py",
    "graceful shutdown": "mist/transports/graceful_shutdown.py",
    "heartbeat": "mist/client/supervisor.py",
    "dispatch": "mist/sessions/dispatch.py",
    "validation": "mist/broker/validation.py",
    "recovery": "mist/sessions/recovery.py",
    "queue group": "mist/broker/named_subscriptions.py",
    "backoff": "mist/client/backoff.py",
    "targeted delivery": "mist/audience.py",
    "named subscription": "mist/broker/named_subscriptions.py",
    "sequencer": "mist/sessions/sequencer.py",
    "recipients": "mist/broker/matches.py",
}


def whole(term: str) -> re.Pattern[str]:
    """The term as whole words, singular or plural, also across the end of a line."""
    words = r"\s+".join(map(re.escape, term.split()))
    return re.compile(rf"(?<![\w-]){words}s?(?![\w-])", re.IGNORECASE)


def docstring(module: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""


def test_a_term_is_found_whole_and_in_any_case_only() -> None:
    assert whole("rate limit").search("Rate\n    limits of requests")
    assert not whole("rate limit").search("a separate limit")
    assert not whole("session").search("session-bound")


def test_every_heading_is_an_entry_in_alphabetical_order() -> None:
    headings = re.findall(r"^## (.+)$", GLOSSARY, re.MULTILINE)
    assert [term for term, _ in ENTRIES] == headings == sorted(headings, key=str.lower)
    assert 15 <= len(headings) <= 25


def test_the_readme_links_the_glossary() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("term", "module"), ENTRIES)
def test_a_glossary_term_is_in_the_module_it_names(term: str, module: str) -> None:
    assert whole(term).search(docstring(module))


@pytest.mark.parametrize(("term", "module"), STANDARD.items())
def test_a_standard_term_is_in_the_module_that_does_it(term: str, module: str) -> None:
    assert whole(term).search(docstring(module))
