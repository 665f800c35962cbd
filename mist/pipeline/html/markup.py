"""HTML built from elements, which escapes all data.

    h("td", tag, class_="name")     → <td class="name">a&lt;b</td>

What is a plain `str` is text and is escaped; only what `h` made, an `Html`, is not. So there
is no place in the pages where escaping could be forgotten: tags, subscriptions, names of
publishers and paths are plain strings wherever they go.
"""

import html
import re
from typing import Final

__all__ = ["Html", "h", "join", "name", "visible"]

# What would break a line, reverse it or hide: controls, marks of direction, what is invisible,
# and halves of surrogate pairs, which no encoding takes.
UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
VOID: Final = frozenset({"br", "col", "hr", "meta", "link"})


class Html(str):
    """Markup. To be made by `h` and `join` alone."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with characters that can't be seen, or that turn others around, spelled out.

    `"a\\u202eb"` → `"a\\\\u202eb"`: two tags that differ look different.
    """
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def h(tag: str, /, *children: str | None, **attributes: object) -> Html:
    """An element.

    Args:
        tag: its name, a constant.
        children: text, or elements; None is nothing.
        attributes: `class_="x"` is class, `aria_label="…"` aria-label, `viewBox` itself. One
            that is None or False is left out, True has no value.
    """
    opening = f"<{tag}{''.join(map(_attribute, attributes.items()))}>"
    if tag in VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """One after the other."""
    return Html("".join(_text(child) for child in children if child is not None))


def name(text: str) -> Html:
    """A name out of data, such as a tag, that keeps its direction of writing to itself."""
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
