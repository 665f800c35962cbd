"""What the README and the documentation say is so."""

import re
from pathlib import Path

import pytest

from mist.config import CONFIG_FILE, OPTIONS
from mist.protocols.line.commands import WORDS

BAR = "\\|"  # a table's cell ends at a bare one
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")))
}
PAGE_NAMES = {path.stem for path in DOCS.glob("*.md")}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def option_rows() -> list[str]:
    rows = []
    for option in (*(each for each in OPTIONS if each is not CONFIG_FILE), CONFIG_FILE):
        flag = f"`{option.flag} {option.metavar}`" if option.metavar else f"`{option.flag}`"
        meaning = option.help.replace("|", "\\|") + (" (repeatable)" if option.repeatable else "")
        rows.append(f"| {flag.replace('|', BAR)} | {option.default_text} | {meaning} |")
    return rows


def test_the_table_of_settings_is_that_of_the_program() -> None:
    page = PAGES["docs/settings.md"]
    missing = [row for row in option_rows() if row not in page]
    assert not missing, "paste:\n" + "\n".join(option_rows())


def test_every_command_of_the_line_protocol_is_named() -> None:
    page = PAGES["docs/line-protocol.md"]
    missing = [word for word in WORDS if f"`{word.decode()}" not in page]
    assert not missing


def test_the_two_commands_are_there_and_ci_runs_the_second() -> None:
    serve = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/mist serve"
    assert f"\n    {serve}\n" in README
    tests = re.findall(r"^    (python3 -m venv .*pytest -n auto)$", README, re.MULTILINE)
    assert len(tests) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 170


def test_every_page_is_in_the_table_of_contents_once() -> None:
    index = PAGES["docs/index.md"]
    listed = [
        line
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    assert sorted([*listed, "index"]) == sorted(path.stem for path in DOCS.glob("*.md"))


def test_the_first_page_says_what_is_on_each_page_of_a_group() -> None:
    groups = PAGES["docs/index.md"].split("\n## ")[1:]
    for group in groups:
        caption, _, rest = group.partition("\n")
        [toctree] = re.findall(r"^```\{toctree\}\n(.*?)^```", rest, re.DOTALL | re.MULTILINE)
        assert f":caption: {caption}\n" in toctree
        lines = re.findall(r"^- \[(.+)\]\((.+)\.md\): \S", rest, re.MULTILINE)
        assert [name for _, name in lines] == [
            line for line in toctree.split() if line in PAGE_NAMES
        ]
        for title, name in lines:
            assert PAGES[f"docs/{name}.md"].startswith(f"# {title}\n")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_exist(page: str) -> None:
    names = set(re.findall(r"`((?:examples|tests|mist|deploy)/[\w./]+)`", PAGES[page]))
    assert not [name for name in names if not (ROOT / name).exists()]


def anchors(text: str) -> set[str]:
    """What a link to a heading of a page may name, as where the files are shown."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in LINK.findall(PAGES[page]):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.is_file(), link
        assert not anchor or anchor in anchors(path.read_text()), link


def test_no_command_has_lost_its_indentation() -> None:
    """With fewer than four spaces before it, it is shown as a part of a paragraph."""
    lost = {
        page: found
        for page, text in PAGES.items()
        if (found := re.findall(r"^ {0,3}(?:\$ )?\.venv/bin/.*", text, re.MULTILINE))
    }
    assert not lost


def test_no_placeholder_is_left() -> None:
    assert not [page for page, text in PAGES.items() if "@@" in text]
