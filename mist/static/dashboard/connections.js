/** All connections of all nodes: searched, sorted, and a page at a time. */

import {serverTime} from "./clock.js";
import {byId, element, Rows, setHidden, setText} from "./dom.js";
import {brief, bytes, duration, several} from "./format.js";
import {Paging} from "./paging.js";

const PAGE = 20;

export const TRANSPORTS = {
  tcp: "TCP", tcps: "TCP with TLS", ws: "WebSocket", wss: "WebSocket with TLS", sse: "SSE",
  poll: "polling", nats: "NATS", bus: "MessageBus",
};

/** How to call the token of a connection; services have none. */
export const holderOf = ({token, token_name: name}) => name || token || "service";

/** Seconds since a time; how long that is, in words. */
export const age = (since) => (since ? duration(Math.max(0, serverTime() - since)) : "–");

function row(opened) {
  const name = element("button", "link mono");
  name.type = "button";
  const peer = element("small", "peer");
  const holder = element("td", "spare cut");
  const since = element("td", "number spare");
  const numbers = ["number spare", "number", "number", "number spare"].map((kind) => element("td", kind));
  const [subscriptions, queued, dropped, sent] = numbers;
  const head = element("th", "", name, peer);
  head.scope = "row";
  let shown = null;
  name.addEventListener("click", () => opened(shown));
  return {
    node: element("tr", "", head, holder, since, ...numbers),
    show(each) {
      shown = each;
      setText(name, each.name);
      setText(peer, [each.node, each.peer, each.behind ? "catching up" : ""].filter(Boolean).join(" · "));
      setText(holder, holderOf(each));
      setText(since, age(each.since));
      setText(subscriptions, brief(each.subscriptions));
      setText(queued, each.queued_bytes ? bytes(each.queued_bytes) : "empty");
      setText(dropped, brief(each.dropped));
      dropped.classList.toggle("bad", each.dropped > 0);
      setText(sent, brief(each.sent));
    },
  };
}

export class ConnectionList {
  #paging;
  #rows;

  /**
   * @param api requests.
   * @param opened called with the connection that the user opens.
   */
  constructor(api, opened) {
    const sort = byId("sessions-sort");
    this.#rows = new Rows(byId("sessions").querySelector("tbody"), PAGE, () => row(opened));
    this.#paging = new Paging("sessions", PAGE, (query) => {
      query.set("sort", sort.value);
      return api.get(`/v1/connections?${query}`);
    }, {
      rows: (found) => found.connections,
      taken: (found) => this.#taken(found),
      failed: (problem) => this.#failed(problem),
    });
    sort.addEventListener("change", () => this.#paging.restart());
  }

  refresh() {
    return this.#paging.refresh();
  }

  /** Refresh it where it is looked at. */
  follow() {
    this.#paging.follow();
  }

  #taken({connections, missing}) {
    this.#rows.show(connections);
    setHidden(byId("sessions"), connections.length === 0);
    const silent = missing?.length ? `${several(missing.length, "node")} did not answer.` : "";
    const none = this.#paging.search ? "No connection has this in its name, address or token."
      : silent ? "No connections at the nodes that answered."
      : "No connections yet.";
    this.#say(connections.length ? silent : `${none} ${silent}`);
  }

  #failed(problem) {
    if (problem.status === 503) this.#say("The other nodes can't be asked: the engine does not answer.");
    else if (problem.status === 400) this.#say(`That can't be searched for: ${problem.message}.`);
    // The rest is told by the poller.
  }

  #say(text) {
    setText(byId("sessions-said"), text);
    setHidden(byId("sessions-said"), !text);
  }
}
