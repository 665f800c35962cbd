"""docs/http-api.md, made from what the routes say of themselves.

python -m tests.http.reference      writes it again
"""

import json
from collections.abc import Iterator
from pathlib import Path

from mist.http.description import GROUPS
from mist.http.openapi import Body, Operation, Parameter

__all__ = ["PAGE", "reference"]

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"

_WHO = {"secret": "a service", "token": "a token", "ticket": "a ticket"}
_INTRODUCTION = """\
# HTTP API

Each route, made from `/openapi.json`, which has the types of all fields as well. What to use them
for is on the page [HTTP](http.md). Any request may get 400, 421, 429 and 500 as problems (RFC 9457)
with a stable `code`; one with credentials also 401, 403 and 503, and one with a body 403, 408, 413
and 415.
"""


def reference() -> str:
    """The page."""
    found = {path: methods for group in GROUPS for path, methods in group.items()}
    lines = [_INTRODUCTION]
    for path, methods in sorted(found.items()):
        for method, operation in methods.items():
            lines += _operation(method, path, operation)
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, operation: Operation) -> Iterator[str]:
    yield f"## {method.upper()} {path}\n"
    who = " or ".join(_WHO[each] for each in operation.who) or "anyone"
    details = f" {operation.details}" if operation.details else ""
    yield f"{operation.summary.rstrip('.')}.{details} For {who}.\n"
    if operation.parameters:
        yield "| parameter | in | meaning |"
        yield "|---|---|---|"
        yield from map(_parameter, operation.parameters)
        yield ""
    if operation.body is not None:
        yield from _body(operation.body)
    yield "| status | meaning |"
    yield "|---|---|"
    told = {status: answer.description for status, answer in operation.answers.items()}
    for status, text in sorted((told | dict(operation.problems)).items()):
        yield f"| {status} | {_cell(text)} |"
    yield ""
    for answer in operation.answers.values():
        if answer.example not in (None, {}):
            yield from _json(answer.example)


def _parameter(each: Parameter) -> str:
    needed = ", required" if each.required and each.place != "path" else ""
    return f"| `{each.name}` | {each.place}{needed} | {_cell(each.description)} |"


def _body(body: Body) -> Iterator[str]:
    kinds = " or ".join(f"`{kind}`" for kind in (body.media_type, *body.others))
    yield f"The body is {kinds}" + (":\n" if body.example is not None else ".\n")
    if body.example is not None:
        yield from _json(body.example)


def _json(example: object) -> Iterator[str]:
    if isinstance(example, str):
        yield f"```text\n{example.rstrip()}\n```\n"
        return
    yield f"```json\n{json.dumps(example, indent=2, ensure_ascii=False, default=str)}\n```\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(reference())
