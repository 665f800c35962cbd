"""HTML built from elements, which escapes all data.

    h("td", tag, class_="name")     → <td class="name">a&lt;b</td>

A plain `str` is text and is escaped; only an `Html`, which `h` returns, is not. So escaping can't
be forgotten: tags, subscriptions, names of publishers and paths are plain strings everywhere.
"""

import html
import re
from typing import Final

__all__ = ["Html", "h", "join", "name", "visible"]

# Characters that would break, reverse or hide text: controls, marks of direction, invisible ones,
# and lone surrogates, which can't be encoded.
UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
VOID: Final = frozenset({"br", "col", "hr", "meta", "link"})


class Html(str):
    """Markup, made by `h` and `join` only."""

    __slots__ = ()


def visible(text: str) -> str:
    """Spell out the characters of a text that are invisible or change its direction.

    `"a\\u202eb"` → `"a\\\\u202eb"`: two tags that differ look different.
    """
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def h(tag: str, /, *children: str | None, **attributes: object) -> Html:
    """An element.

    Args:
        tag: its name, a constant.
        children: text or elements; None is left out.
        attributes: `class_="x"` is class, `aria_label="…"` aria-label, `viewBox` itself. None and
            False leave the attribute out, True gives it no value.
    """
    opening = f"<{tag}{''.join(map(_attribute, attributes.items()))}>"
    if tag in VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """Concatenate children."""
    return Html("".join(_text(child) for child in children if child is not None))


def name(text: str) -> Html:
    """A name from data, such as a tag, isolated from the writing direction of its context."""
    return h("bdi", text, class_="name")


def _text(child: str) -> str:
    return child if isinstance(child, Html) else html.escape(visible(child))


def _attribute(item: tuple[str, object]) -> str:
    key, value = item
    if value is None or value is False:
        return ""
    words = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {words}"
    return f' {words}="{html.escape(visible(str(value)))}"'
