/** One connection in a dialog: its figures, its subscriptions, and the end of its session. */

import {sentenceOf} from "./api.js";
import {age, holderOf, TRANSPORTS} from "./connections.js";
import {byId, element, keepFocus, onClosed, pair, Rows, setHidden, setText} from "./dom.js";
import {brief, bytes, count, date, several, textOf} from "./format.js";

const PAGE = 50;

/** Why there are no newer figures, by the error's code; both are of nodes of an engine. */
const STALE = {
  node_silent: "Its node does not answer. These are the last figures received.",
  engine_unavailable: "Its node can't be asked: the engine does not answer. These are the last figures received.",
};

function subscription() {
  const node = element("li", "tags");
  let key = "";
  return {
    node,
    show({tags, name}) {
      if (key === JSON.stringify([tags, name])) return;
      key = JSON.stringify([tags, name]);
      node.replaceChildren(...tags.map((each) => element("span", "tag", each)));
      if (name !== undefined) node.append(element("small", "", `as ${name}`));
    },
  };
}

function pairsOf(each) {
  const {client, user, groups, site, ...others} = each.attributes;
  const known = [["User", user], ["Groups", groups], ["Client id", client], ["Site", site], ...Object.entries(others)];
  return [
    ["Node", each.node],
    ["Transport", TRANSPORTS[each.transport] ?? each.transport],
    ["Address", each.peer],
    ["Connected", `${age(each.since)} ago, ${date(new Date(1000 * each.since))}`],
    ["Token", each.token === null ? "none: a service" : [each.token_name, each.token].filter(Boolean).join(" · ")],
    ["Issued by", each.is_issued ? "somewhere else: a JWT, or --auth-url" : ""],
    ["Token expires", each.expires === null ? "" : date(new Date(1000 * each.expires))],
    ...known.map(([name, value]) => [name, value === undefined ? "" : textOf(value)]),
    ["Outbox", each.queued ? `${several(each.queued, "message")}, ${bytes(each.queued_bytes)}` : "empty"],
    ["Behind", each.behind ? `${several(each.owed, "message")}, from the history` : "no"],
    ["Sent", `${several(each.sent, "message")}, ${bytes(each.sent_bytes)}`],
    ["Dropped", count(each.dropped)],
  ].filter(([, text]) => text);
}

export class ConnectionDialog {
  #dialog = byId("connection");
  #pairs = new Rows(byId("connection-pairs"), 40, pair);
  #subscribed = new Rows(byId("connection-subscribed"), PAGE, subscription);
  #which = null;
  #starts = [];
  #next = null;
  #busy = false;

  /**
   * @param api requests.
   * @param confirm asks before a session is ended.
   * @param ended called once one has.
   */
  constructor(api, confirm, ended) {
    Object.assign(this, {api, confirm, ended});
    byId("connection-close").addEventListener("click", () => this.#dialog.close());
    byId("connection-end").addEventListener("click", () => this.#end());
    byId("connection-more").addEventListener("click", () => {
      if (this.#next === null) return;
      this.#starts.push(this.#next);
      this.refresh();
    });
    byId("connection-first").addEventListener("click", () => {
      this.#starts = [];
      this.refresh();
    });
    onClosed(this.#dialog, () => {
      this.#which = null;
      keepFocus("sessions-list");
    });
  }

  /** @param which as a list has it. */
  open(which) {
    this.#which = which;
    this.#starts = [];
    setText(byId("connection-title"), which.node ? `${which.name} at ${which.node}` : which.name);
    this.#say("");
    byId("connection-end").disabled = false;
    this.#pairs.show([]);
    this.#subscribed.show([]);
    this.#dialog.showModal();
    return this.refresh();
  }

  close() {
    this.#dialog.close();
  }

  #path(query = {}) {
    const {name, node} = this.#which;
    const all = new URLSearchParams({...(node ? {node} : {}), ...query});
    return `/v1/connections/${encodeURIComponent(name)}?${all}`;
  }

  /** Request it again, if it is open. */
  async refresh() {
    const which = this.#which;
    if (!which || this.#busy || byId("connection-end").disabled) return; // nothing comes of one that is gone
    this.#busy = true;
    const start = this.#starts.at(-1);
    try {
      const found = await this.api.get(this.#path({limit: PAGE, ...(start ? {after: start} : {})}));
      if (which !== this.#which) return;
      this.#show(found);
      this.#sayStale("");
    } catch (problem) {
      if (which !== this.#which) return;
      if (problem.status === 404) this.#gone("This connection has ended.");
      else if (problem.code in STALE) this.#sayStale(STALE[problem.code]);
    } finally {
      this.#busy = false;
    }
  }

  #show(found) {
    this.#next = found.next;
    this.#pairs.show(pairsOf(found));
    this.#subscribed.show(found.subscribed);
    const all = found.subscriptions;
    setText(byId("connection-count"), all ? `Subscribed to ${several(all, "tag set")}` : "No subscriptions");
    setHidden(byId("connection-more"), found.next === null);
    setHidden(byId("connection-first"), this.#starts.length === 0);
    setText(byId("connection-more"), `Next ${brief(PAGE)}`);
  }

  #gone(text) {
    const end = byId("connection-end");
    if (document.activeElement === end) byId("connection-close").focus();
    end.disabled = true;
    this.#say(text);
  }

  #say(text) {
    setText(byId("connection-said"), text);
  }

  /** The same of figures that are not newer, but not in place of what has become of an end. */
  #sayStale(text) {
    const said = byId("connection-said").textContent;
    if (!said || Object.values(STALE).includes(said)) this.#say(text);
  }

  async #end() {
    const which = this.#which;
    const path = this.#path();
    const certain = await this.confirm.ask({
      title: `End the session of ${which.name}?`,
      text: `${holderOf(which)}, ${which.peer}. It may connect again at once${
        which.token === null ? "." : "; to keep it away, revoke its token."}`,
      act: "End session",
    });
    if (!certain || which !== this.#which) return;
    const problem = await this.api.send("DELETE", path).then(() => null, (error) => error);
    if (which === this.#which) { // else another one is open by now
      if (problem === null) this.#gone("Ended.");
      else if (problem.status === 404) this.#gone("It had ended already.");
      else this.#say(sentenceOf(problem, "Not ended"));
      byId("connection-close").focus();
    }
    this.ended();
  }
}
