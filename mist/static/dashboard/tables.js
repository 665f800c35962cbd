/** Tables: connections, losses, history and server; and what tables have in common. */

import {TRANSPORTS} from "./connections.js";
import {byId, element, pair, prose, Rows, setHidden, setText} from "./dom.js";
import {brief, bytes, compact, count, date, NOTHING, several} from "./format.js";
import {sum} from "./recorder.js";

export const MAX_ROWS = 10; // the server sends a few more
const MIN_SCALE = 65_536; // bytes of a full bar, if the outbox limit is unknown

export const body = (id) => byId(id).querySelector("tbody");

export function showTable(rows, id, items) {
  rows.show(items);
  setHidden(byId(id), items.length === 0);
  setHidden(byId(`${id}-empty`), items.length > 0);
}

/** A row header. */
export function rowHead(...content) {
  const made = element("th", "", ...content);
  made.scope = "row";
  return made;
}

export function tagsOf(tags) {
  return element("span", "tags", ...tags.map((each) => element("span", "tag", each)));
}

/** A cell with a bar, which shows no more than the number beside it. */
export function bar(className) {
  const fill = element("span", "fill");
  const whole = element("span", "bar", fill);
  whole.setAttribute("aria-hidden", "true");
  return {
    cell: element("td", className, whole),
    show(part) {
      fill.style.transform = `scaleX(${Math.min(1, part || 0).toFixed(3)})`;
      fill.classList.toggle("high", className === "outbox" && part > 0.75);
    },
  };
}

// Connections

function connectionRow() {
  const name = element("span", "mono");
  const peer = element("small", "peer");
  const filled = bar("outbox");
  const queued = element("span", "queued");
  const dropped = element("td", "number");
  const sent = element("td", "number spare");
  filled.cell.append(queued);
  const node = element("tr", "", rowHead(name, peer), filled.cell, dropped, sent);
  return {
    node,
    show({each, full}) {
      setText(name, each.name);
      setText(peer, [each.peer, each.behind ? "catching up from the history" : ""].filter(Boolean).join(" · "));
      filled.show(each.queued_bytes / full);
      setText(queued, each.queued_bytes
        ? `${bytes(each.queued_bytes)} · ${several(each.queued, "message")}` : "empty");
      setText(dropped, brief(each.dropped));
      dropped.classList.toggle("bad", each.dropped > 0);
      setText(sent, `${brief(each.sent)}`);
    },
  };
}

/** The slowest connections, where any is slow, and how many there are by transport. */
export class Connections {
  #rows = new Rows(body("connections"), MAX_ROWS, connectionRow);
  #chips = new Rows(byId("transports"), 12, () => {
    const number = element("b");
    const name = document.createTextNode("");
    return {
      node: element("li", "chip", number, " ", name),
      show([transport, connections]) {
        setText(number, count(connections));
        setText(name, TRANSPORTS[transport] ?? transport);
      },
    };
  });

  show(stats) {
    const all = sum(stats.connections);
    const slowest = stats.slowest ?? [];
    // A full bar is a full outbox: further messages are dropped, or the connection is closed.
    const full = stats.outbox_limit || Math.max(MIN_SCALE, ...slowest.map((each) => each.queued_bytes));
    showTable(this.#rows, "connections", slowest.map((each) => ({each, full})));
    setText(byId("connections-said"), all
      ? "None: all outboxes are empty."
      : "No connections yet. Start a subscriber:");
    setHidden(byId("connections-hint"), all > 0);
    this.#chips.show(Object.entries(stats.connections ?? {}).filter(([, each]) => each > 0));
  }
}

// Losses

const REASONS = {
  full: ["A subscriber was too slow",
         "Its outbox was full. See Connections for which one; raise `--outbox-bytes`, or close " +
         "its connection with `--slow-consumer disconnect` so that it learns of the loss."],
  unframable: ["A line can't carry the data",
               "It contains a line feed, and the subscriber uses the line protocol. It can send " +
               "`escape on`, or use JSON."],
  gone: ["The subscriber had disconnected",
         "Its connection ended before it had read what was queued for it. A client that resumes " +
         "from the history gets these messages."],
  unmatched: ["No subscription matched",
              "Not a loss if no subscriber is expected. Otherwise compare the tags: a message " +
              "must carry all the tags of a subscription. Of several nodes, those with " +
              "subscribers at another one count here as well."],
  rejected: ["Rejected by validation",
             "The publisher got the reason. A tag is empty, too long or has an invalid " +
             "character, or there are too many."],
};
const OTHER = "See the server's log.";

class Losses {
  #rows = new Rows(body("losses"), 12, () => {
    const name = element("span");
    const [rate, total] = [element("td", "number"), element("td", "number")];
    const advice = element("td", "advice");
    let shown = null;
    return {
      node: element("tr", "", rowHead(name), rate, total, advice),
      show(each) {
        const [words, about] = REASONS[each.reason] ?? [each.reason, OTHER];
        if (shown !== each.reason) {
          setText(name, words);
          advice.replaceChildren(...prose(about));
          shown = each.reason;
        }
        setText(rate, compact(each.rate));
        setText(total, brief(each.total));
        rate.classList.toggle("bad", each.rate > 0 && each.isLoss);
      },
    };
  });

  show(stats, recorder) {
    const dropped = Object.entries(stats.dropped ?? {}).map(([reason, total]) =>
      ({reason, total, rate: recorder.dropping[reason] ?? NaN, isLoss: true}));
    const others = ["rejected", "unmatched"].map((reason) =>
      ({reason, total: stats[reason], rate: recorder.latest(reason), isLoss: false}));
    showTable(this.#rows, "losses", [...dropped, ...others].filter(({total}) => total > 0));
  }
}

// Lists of names and values

class Pairs {
  #rows;

  constructor(id) {
    this.#rows = new Rows(byId(id), 12, pair);
  }

  show(pairs) {
    this.#rows.show(pairs);
  }
}

class History {
  #pairs = new Pairs("history");
  #state = byId("history-state");

  show({history, nodes}) {
    setHidden(byId("history"), !history);
    setHidden(byId("history-empty"), Boolean(history));
    setText(this.#state, !history ? "off" : history.failing ? "can't be written" : "healthy");
    this.#state.dataset.state = !history ? "off" : history.failing ? "bad" : "good";
    if (!history) return;
    const {messages, first, newest} = history;
    const none = messages === 0 || newest < first;
    this.#pairs.show([
      ["Messages kept", count(messages)],
      ["Their ids", none ? "none yet" : `${count(first)} – ${count(newest)}`],
      ["Size", bytes(history.bytes)],
      ["Epoch", history.epoch],
      ...(history.failing ? [["What to do", `Check the ${typeof nodes === "number" ? "engine" : "disk"}. Nothing is published until it can be stored.`, true]] : []),
    ]);
  }
}

class Server {
  #pairs = new Pairs("server");

  show(stats, recorder) {
    const cpu = recorder.latest("cpu");
    const wrong = sum(stats.auth_failures);
    this.#pairs.show([
      ["CPU", Number.isNaN(cpu) ? NOTHING : `${cpu < 9.95 ? cpu.toFixed(1) : Math.round(cpu)} % of a core`],
      ["Memory", bytes(stats.resident_bytes)],
      ["Deliveries per message", compact(recorder.latest("delivered") / recorder.latest("published"))],
      ["Bytes per delivery", compact(recorder.latest("bytes") / recorder.latest("delivered"))],
      ["Tag sets subscribed to", count(stats.tag_sets)],
      ["Connections since the start", count(stats.lifetime)],
      ["Running since", date(new Date(1000 * (stats.time - stats.uptime)))],
      ["Wrong secrets and tokens", count(wrong)],
    ]);
  }
}

/** The tables made from `/v1/stats` alone. */
export class Tables {
  #parts = [new Losses(), new History(), new Server()];

  show(stats, recorder) {
    for (const each of this.#parts) each.show(stats, recorder);
  }
}
