"""Words that this code base has replaced by the field's terms do not come back."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = ("*.py", "*.js", "*.ts", "*.html", "*.css", "*.md")

# A pattern that is found nowhere, in names or in prose, and what is written instead.
REPLACED = {
    # names
    r"\bstrangers?\b|_strangers?\b": "unauthenticated peer",
    r"\b[Rr]osters?\b": "attribute index",
    r"\bscreening\b": "validation",
    r"\bDialogue\b|\bdialogue\b": "command dispatch",
    r"\bPacer\b|\bpacing\b": "flush scheduler",
    r"\bShelf\b|\bshelf\b": "block store",
    r"\bWorkshop\b": "executor",
    r"\bSurvey\b|\bsurvey\b": "log metadata",
    r"\bLedger\b": "usage accounting",
    r"\b[Ll]anes?\b": "named subscription",
    r"\b[Cc]ompanions?\b": "side tables",
    r"\b[Kk]inship\b": "lineage",
    r"\b[Cc]ensus\b": "session aggregates",
    r"\b[Nn]udges?\b": "wake-ups",
    r"\bkeeper\b": "maintenance task",
    r"\bdoubtful\b": "unconfirmed",
    r"\bLadder\b": "transport fallback",
    r"\bOutgoing\b": "send buffer",
    r"\bAsking\b": "subscribe request",
    # phrases
    r"\bat (?:every|another|any) door\b|\bdoors\b": "endpoints, protocols",
    r"\briddles?\b": "ambiguous",
    r"\bshan't\b|\bwhosoever\b|\bwhereof\b|\bthereof\b|\btherein\b": "plain English",
    r"\bsees? (?:its|their|the|all) [\w ]{0,20}\boff\b|\bdepartures\b": "graceful shutdown",
    r"\bpatience\b|\bPATIENCE\b": "timeout",
    r"\bdata folder\b": "data directory",
    r"\b(?:to|can|could) be had\b": "available",
    r"\b[Ww]hoever\b": "the peer, the caller, the publisher",
    r"\b[Ll]ast words\b": "the last output, the refusal",
    r"\bput back to an earlier\b": "restored",
    r"\bcarry out\b": "handle",
}

# The same, in these places; elsewhere some still stand.
PLACES = ("mist/client", "mist/cli", "mist/static", "examples", "docs", "README.md", "CHANGELOG.md")
IN_PLACES = {
    r"\b(?:some|every)body\b": "a client, all clients",
    r"\bcarried out\b|\bcarries out\b": "handled",
    r"\bgoodbye\b": "closing handshake",
}


def texts(*places: str) -> Iterator[tuple[Path, str]]:
    """The files below these places, with what they hold."""
    for place in places:
        path = ROOT / place
        found = [path] if path.is_file() else [each for kind in KINDS for each in path.rglob(kind)]
        for each in sorted(found):
            yield each, each.read_text()


def places_of(pattern: str, *places: str) -> list[str]:
    wanted = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in texts(*places)
        for match in wanted.finditer(text)
    ]


def test_every_kind_of_file_is_read() -> None:
    found = {path.suffix for path, _ in texts("mist", "examples", "docs", "README.md")}
    assert found == {kind.removeprefix("*") for kind in KINDS}


@pytest.mark.parametrize(("pattern", "instead"), REPLACED.items())
def test_a_replaced_word_is_nowhere(pattern: str, instead: str) -> None:
    found = places_of(pattern, "mist", "examples", "docs", "README.md", "CHANGELOG.md")
    assert not found, f"write: {instead}"


@pytest.mark.parametrize(("pattern", "instead"), IN_PLACES.items())
def test_a_replaced_word_is_in_none_of_these_places(pattern: str, instead: str) -> None:
    assert not places_of(pattern, *PLACES), f"write: {instead}"
