"""What tests of the dashboard share: figures and a clock of their own, and how to look at one."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mist.server import Server
from tests.chromium import Page
from tests.http.client import http_address
from tests.servers import listeners

# Before the page's own scripts: what it says to the console, and what its policy forbids.
WATCH = """
window.said = [];
for (const kind of ["error", "warn"]) console[kind] = (...all) => window.said.push(all.join(" "));
addEventListener("securitypolicyviolation", (event) => window.said.push(event.blockedURI), true);
performance.setResourceTimingBufferSize(5000);
"""


# A clock that a test turns, and a server whose figures it makes. `advance` lets seconds pass,
# `sleep` lets them pass unseen.
FAKE = """
(() => {
  const begun = 1_900_000_000_000;
  let now = begun;
  let made = 0;
  const timers = new Map();
  Date.now = () => now;
  performance.now = () => now - begun;
  const add = (act, wait = 0, every = 0) => {
    timers.set(++made, {act, due: now + wait, every});
    return made;
  };
  window.setTimeout = (act, wait) => add(act, wait);
  window.setInterval = (act, wait) => add(act, wait, wait);
  window.clearTimeout = window.clearInterval = (timer) => timers.delete(timer);
  const settle = async () => { for (let turn = 0; turn < 12; turn += 1) await null; };
  window.advance = async (seconds) => {
    for (let quarter = 0; quarter < 4 * seconds; quarter += 1) {
      now += 250;
      for (const [timer, {act, due, every}] of [...timers]) {
        if (due > now || !timers.has(timer)) continue;
        if (every) timers.set(timer, {act, due: due + every, every});
        else timers.delete(timer);
        act();
      }
      await settle();
    }
    const drawn = () => new Promise((resolve) => requestAnimationFrame(resolve));
    await drawn();
    await drawn();
  };
  window.sleep = (seconds) => { now += 1000 * seconds; };
  window.looks = 0;
  window.born = -100;  // the server's start, seconds of the page's clock
  window.up = () => performance.now() / 1000 - window.born;
  window.more = {};
  window.recorded = null;  // makes the answer of /v1/stats/history
  window.stats = () => ({
    time: Date.now() / 1000, started: begun / 1000 + born, uptime: up(), version: "1.2.3",
    published: Math.round(100 * up()), delivered: Math.round(500 * up()),
    delivered_bytes: Math.round(50_000 * up()), rejected: 0, unmatched: 0, dropped: {},
    connections: {tcp: 5}, lifetime: 9, tag_sets: 3, auth_failures: {}, loop_lag: 0.002,
    cpu_seconds: 0.25 * up(), resident_bytes: 50e6, history: null, slowest: [], top_tags: [],
    ...window.more,
  });
  window.fails = null;
  window.fetch = async (path) => {
    const headers = new Headers();
    if (path === "./v1/nodes" && window.nodes) {
      return {ok: true, status: 200, headers, json: async () => window.nodes};
    }
    if (path === "./v1/stats/history" && window.recorded) {
      const recorded = window.recorded();
      return {ok: true, status: 200, headers, json: async () => recorded};
    }
    const list = window.lists?.[path.split("?")[0]];
    if (list) return {ok: true, status: 200, headers, json: async () => list};
    if (path !== "./v1/stats") return {ok: false, status: 404, headers, json: async () => ({})};
    window.looks += 1;
    if (window.fails) throw new TypeError(window.fails);
    return {ok: true, status: 200, headers, json: async () => window.stats()};
  };
})();
"""


# What that server has recorded: of each two seconds but those that it slept, seconds of its uptime.
RECORDED = """
(() => {
  window.slept = [-1, -1];
  window.bounds = [0.001, 0.01, 0.1];
  // Each second ten messages were written in 1 to 10 ms, until `quiet`, and one in 10 to 100 ms.
  window.quiet = Infinity;
  window.counts = (uptime) => {
    const seconds = Math.floor(Math.min(uptime, window.quiet));
    return [0, 10 * seconds, seconds, 0];
  };
  window.recorded = () => {
    const all = [];
    for (let at = Math.max(0, up() - 600); at <= up(); at += 2) {
      if (at < slept[0] || at > slept[1]) all.push(at);
    }
    const every = all.filter((_, index) => index % 5 === 0);
    const column = (of) => all.map(of);
    const histogram = {bounds, counts: every.map(window.counts)};
    return {
      started: 1_900_000_000 + born, step: 2, uptime: all,
      published: column((each) => Math.round(100 * each)),
      delivered: column((each) => Math.round(500 * each)),
      delivered_bytes: column((each) => Math.round(50_000 * each)),
      rejected: column(() => 0), unmatched: column(() => 0), dropped: column(() => 0),
      connections: column(() => 5), loop_lag: column(() => 0.002),
      cpu_seconds: column((each) => 0.25 * each),
      latency: {uptime: every, publish_to_write: histogram, commit: histogram, append: null},
    };
  };
  const stats = window.stats;
  window.stats = () => {
    const histogram = {bounds, counts: window.counts(up())};
    return {...stats(), latency: {publish_to_write: histogram, commit: histogram, append: null}};
  };
  window.born = -1000;
})();
"""


# Has the page wait for answers to DELETE until `answer()`.
HELD = """
(() => {
  const {fetch} = window;
  const held = new Promise((resolve) => { window.answer = resolve; });
  window.fetch = async (path, request) => {
    const response = await fetch(path, request);
    if (request.method === "DELETE") {
      window.arrived = true;
      await held;
    }
    return response;
  };
})()
"""


# Looked at and drawn: nothing is about to move away from under a click.
LIVE = (
    "document.getElementById('state').dataset.state === 'live'"
    " && document.getElementById('uptime').textContent !== '\N{EN DASH}'"
)


RESTARTED = "document.querySelector('.plot .restarted').textContent"


LISTENING = "document.querySelector('#subscribe-state').textContent.startsWith('listening')"


MARKUP = "<img src=x onerror=hacked=1><script>hacked=1</script>\"'&amp;${hacked=1}"


SETTINGS: dict[str, Any] = {"listen": listeners("tcp", "http"), "history": "memory://"}


def url_of(server: Server) -> str:
    host, port = http_address(server)
    return f"http://{host}:{port}/"


Open = Callable[..., AbstractAsyncContextManager[Page]]


async def tile(page: Page, name: str) -> str:
    """What a person reads in a tile."""
    found = await page.texts(".tile")
    [text] = [each for each in found if each.split("\n")[0] == name]
    return text.partition("\n")[2].replace("\n", " ")


def tile_is(name: str, condition: str) -> str:
    """That the number in a tile, as `it`, fulfils a condition."""
    return (
        "[...document.querySelectorAll('.tile')].some((tile) =>"
        f" tile.querySelector('dt').textContent === '{name}'"
        f" && ((it) => {condition})(tile.querySelector('.number').textContent))"
    )


async def fill(page: Page, field: str, text: str) -> None:
    await page.click(field)
    await page.evaluate("document.activeElement.select()")
    await page.type(text)


async def key(page: Page, name: str) -> None:
    codes = {"ArrowLeft": 37, "ArrowRight": 39}
    code = {"windowsVirtualKeyCode": codes[name]} if name in codes else {}
    for kind in ("keyDown", "keyUp"):
        await page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, **code)


async def pieces(page: Page, line: str) -> int:
    """Of how many parts a line consists."""
    return int(
        await page.evaluate(
            f"document.querySelector({line!r}).getAttribute('d').split('M').length - 1"
        )
    )


async def lowest(page: Page, line: str) -> float:
    """Where a line is lowest; screens count downwards."""
    return float(
        await page.evaluate(
            f"Math.max(...[...document.querySelector({line!r}).getAttribute('d')"
            ".matchAll(/ ([-0-9.]+)/g)].map((each) => Number(each[1])))"
        )
    )


# A node; `more` says what is different about it.
NODES = """
window.node = (name, more = {}) => ({
  id: name, name, here: false, status: "ready", reason: null, age: 0.1, version: "1.2.3",
  advertise: null, uptime: 90061, lag: 0, offset: 12, newest: 1234567, registry: 0, sessions: 2,
  lifetime: 9, tag_sets: 3, connections: {tcp: 2}, ...more});
window.show = (...nodes) => {
  window.more.nodes = nodes.length;
  window.nodes = {engine: true, nodes};
  return advance(1.25);
};
"""


BUSY = (
    NODES
    + """
window.nodes = {engine: true, nodes: [
  node("a-very-long-name-of-a-node-".repeat(3), {here: true, uptime: 1e8, newest: 9e15,
    advertise: `https://${"very-long-".repeat(20)}.example`, sessions: 2e9, tag_sets: 2e9}),
  node("behind", {status: "not_ready", reason: "catching_up", lag: 86400}),
  node("dead", {status: "silent", age: 9.5}),
]};
window.more = {
  nodes: 3,
  connections: {tcp: 9000, ws: 1000}, dropped: {full: 12, unframable: 3, "something-new": 1},
  rejected: 4, unmatched: 5, published: 3e9, delivered: 4e12, delivered_bytes: 5e14,
  history: {epoch: "0123456789abcdef", first: 123456789012, newest: 223456789012,
            messages: 1e11, bytes: 1e13, failing: true},
  slowest: Array.from({length: 20}, (_, each) => ({
    name: `tcp-${each}00000`, transport: "tcp", peer: "2001:db8:1234:5678:9abc:def0:1234:5678",
    token: null, subscriptions: 3, queued: 99999, queued_bytes: 8e6 - each * 4e5, sent: 1e9,
    sent_bytes: 1e12, dropped: 1234567, behind: true})),
  top_tags: Array.from({length: 20}, (_, each) => ({
    tag: `${"a-very-long-tag:".repeat(8)}${each}`, published_rate: 12345.6})),
};
advance(5)
"""
)


# Each with what is wrong about it; what a person would look for with a screen reader.
FAULTS = """
(() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const named = (it) => it.getAttribute("aria-label")
    || (it.getAttribute("aria-labelledby") ?? "").split(" ")
      .map((id) => document.getElementById(id)?.textContent ?? "").join("").trim()
    || [...(it.labels ?? [])].map((each) => each.textContent).join("").trim()
    || (it.matches("button, a, summary") && it.textContent.trim());
  const kinds = "button, a, input, select, textarea, [role=slider], form, section, [tabindex]";
  for (const it of all(kinds)) {
    if (it.matches("section#notice")) continue;
    if (!named(it)) faults.push(`no name: ${it.outerHTML.slice(0, 99)}`);
  }
  if (all("h1").length !== 1) faults.push("not one h1");
  let level = 0;
  for (const it of all("h1, h2, h3, h4")) {
    const here = Number(it.tagName[1]);
    if (here > level + 1) faults.push(`skips a level: ${it.textContent}`);
    level = here;
  }
  if (document.documentElement.lang !== "en") faults.push("no language");
  if (!document.title) faults.push("no title");
  if (all("main:not([hidden])").length !== 1) faults.push("not one main");
  for (const it of all("table")) {
    if (!it.caption) faults.push(`no caption: ${it.id}`);
    if (it.querySelector("thead th:not([scope=col])")) faults.push(`no scope: ${it.id}`);
  }
  for (const it of all("img:not([alt])")) faults.push(`no alt: ${it.src}`);
  for (const it of all("svg:not([aria-hidden=true])")) faults.push("a drawing that is read");
  const ids = all("[id]").map((it) => it.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  if (!all("[role=status]").some((it) => it.id === "state")) faults.push("a state nobody hears");
  for (const it of all("[aria-labelledby], [aria-describedby], label[for]")) {
    for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
      const id = it.getAttribute(name);
      if (id && !document.getElementById(id)) faults.push(`nothing is ${id}`);
    }
  }
  return faults;
})()
"""


# Contrast of every text that is to be seen, as of WCAG 2.1, 1.4.3.
FAINT = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((total, each, index) => total + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (it) => {
    for (let each = it; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  let looked = 0;
  for (const it of document.querySelectorAll("body *")) {
    const own = [...it.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!own || it.closest("script, noscript, option") || !it.checkVisibility()) continue;
    const style = getComputedStyle(it);
    const [one, other] = [rgba(it instanceof SVGElement ? style.fill : style.color), behind(it)]
      .map(light);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    looked += 1;
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${it.textContent.slice(0, 40)}`);
  }
  return looked > 100 ? faint : ["looked at too little"];
})()
"""


async def sign_in(page: Page, secret: str) -> None:
    await page.until("!document.getElementById('gate').hidden")
    await fill(page, "#secret", secret)
    await page.press("Enter")
    await page.until(LIVE)


def wide(selector: str) -> str:
    """What is to be seen beyond the right edge of the screen."""
    return (
        f"[...document.querySelectorAll('{selector}')].filter((each) => each.checkVisibility()"
        " && !each.closest('.unseen') && each.getBoundingClientRect().right > innerWidth + 1)"
        ".map((each) => each.outerHTML)"
    )
