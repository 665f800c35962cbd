/** The nodes that act as one with this server, where it has an engine. */

import {byId, element, Rows, setHidden, setText} from "./dom.js";
import {brief, count, duration, several} from "./format.js";

const MAX_ROWS = 20;
const SLOW = 1; // seconds of lag that are worth a look

const REASONS = {
  draining: "shutting down",
  catching_up: "catching up",
  history_unavailable: "history can't be written",
  registry_unavailable: "tokens unreachable",
};

/** `[state, text]` of a node's badge. */
function condition({status, reason, age}) {
  if (status === "ready") return ["good", "ready"];
  if (status === "silent") return ["bad", `silent for ${duration(age)}`];
  return ["warn", REASONS[reason] ?? "not ready"];
}

function nodeRow() {
  const name = element("span", "mono");
  const about = element("small", "peer");
  const badge = element("span", "badge");
  const numbers = ["", " spare", "", " spare", " spare"].map((more) => element("td", `number${more}`));
  const [lag, newest, sessions, tagSets, up] = numbers;
  const version = element("td", "spare", "");
  const head = element("th", "", name, about);
  head.scope = "row";
  return {
    node: element("tr", "", head, element("td", "", badge), ...numbers, version),
    show(each) {
      setText(name, each.name);
      const more = [each.here ? "this one" : "", each.advertise ?? ""].filter(Boolean).join(" · ");
      setText(about, more);
      setHidden(about, !more);
      const [state, text] = condition(each);
      badge.dataset.state = state;
      setText(badge, text);
      setText(lag, `${each.lag < 9.95 ? each.lag.toFixed(1) : count(Math.round(each.lag))} s`);
      lag.classList.toggle("bad", each.lag >= SLOW);
      setText(newest, count(each.newest));
      setText(sessions, brief(each.sessions));
      setText(tagSets, brief(each.tag_sets));
      setText(up, duration(each.uptime));
      setText(version, each.version);
    },
  };
}

export class Nodes {
  #rows = new Rows(byId("nodes").querySelector("tbody"), MAX_ROWS, nodeRow);

  /** Show or hide all of it. */
  set present(present) {
    setHidden(byId("nodes-card"), !present);
  }

  /** @param found the response of `/v1/nodes`. */
  show({nodes}) {
    const isReady = ({status}) => status === "ready";
    const others = nodes.filter((each) => !isReady(each));
    const wrong = others.length;
    // Where not all fit, those that are worth a look come first.
    this.#rows.show(nodes.length > MAX_ROWS ? [...others, ...nodes.filter(isReady)] : nodes);
    setHidden(byId("nodes"), false);
    setHidden(byId("nodes-empty"), true);
    const more = nodes.length > MAX_ROWS ? `; ${MAX_ROWS} of them here${wrong ? ", those first" : ""}` : "";
    const all = nodes.length === 1 ? "one node" : several(nodes.length, "node");
    setText(byId("nodes-count"), `${all}${wrong ? `, ${wrong} not ready` : ""}${more}`);
  }

  /** The engine doesn't answer, so nothing is known of the others. */
  showMissing() {
    setHidden(byId("nodes"), true);
    setHidden(byId("nodes-empty"), false);
    setText(byId("nodes-count"), "");
  }
}
