"""What axe-core, as npm has it, finds wrong with a page in a real browser.

It is pinned by `tests/npm/package-lock.json`, and installed by `npm ci --prefix tests/npm`, which
`.ci/run` does too. It looks from a world of its own: the page's clock, its policy and its scripts
are not touched.
"""

import json
from typing import Any

from tests.chromium import Page
from tests.node import FOLDER, find_node

_RUN = """
(async () => {
  const {passes, violations} = await axe.run(document);
  return [passes.length, violations.flatMap(({id, help, nodes}) =>
    nodes.map(({html, failureSummary}) => `${id}: ${help}: ${html}: ${failureSummary}`))];
})()
"""
_FEWEST = 15  # rules that find something to look at on any page of ours


async def violations(page: Page) -> list[str]:
    """What breaks one of axe's rules, its advice on good practice included, as it says it."""
    find_node("axe-core")
    tree = await page.call("Page.getFrameTree")
    world = await page.call(
        "Page.createIsolatedWorld", frameId=tree["frameTree"]["frame"]["id"], worldName="axe"
    )

    async def evaluate(source: str) -> Any:
        result = await page.call(
            "Runtime.evaluate",
            contextId=world["executionContextId"],
            expression=source,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, json.dumps(result["exceptionDetails"])
        return result["result"].get("value")

    await evaluate((FOLDER / "node_modules" / "axe-core" / "axe.min.js").read_text() + ";0")
    passed, found = await evaluate(_RUN)
    assert passed >= _FEWEST, f"only {passed} rules had something to look at"
    return list(found)
