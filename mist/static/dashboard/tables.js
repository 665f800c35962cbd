/** Who is slow, what flows, who waits for what, and what was lost: what the server tells of. */

import {byId, element, prose, Rows, setHidden, setText} from "./dom.js";
import {brief, bytes, compact, count, date, NOTHING, several} from "./format.js";
import {sum} from "./recorder.js";

const MOST = 10; // rows of a table; the server sends a few more
const LITTLE = 65_536; // bytes in an outbox, of which the bar shows little, should the limit be unknown

const body = (id) => byId(id).querySelector("tbody");

function showTable(rows, id, items) {
  rows.show(items);
  setHidden(byId(id), items.length === 0);
  setHidden(byId(`${id}-empty`), items.length > 0);
}

/** A cell that names its row. */
function rowHead(...content) {
  const made = element("th", "", ...content);
  made.scope = "row";
  return made;
}

function tagsOf(tags) {
  return element("span", "tags", ...tags.map((each) => element("span", "tag", each)));
}

/** A cell with a bar in it, which says no more than the number beside it. */
function bar(className) {
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

const WORDS = {tcp: "TCP", tcps: "TCP with TLS", ws: "WebSocket", wss: "WebSocket with TLS",
               sse: "SSE", poll: "polling"};

/** With nothing waiting, the list is one of anybody, from a page of its own. */
export class Connections {
  #some = [];
  #rows = new Rows(body("connections"), MOST, connectionRow);
  #chips = new Rows(byId("transports"), 12, () => {
    const number = element("b");
    const name = document.createTextNode("");
    return {
      node: element("li", "chip", number, " ", name),
      show([transport, connections]) {
        setText(number, count(connections));
        setText(name, WORDS[transport] ?? transport);
      },
    };
  });

  show(stats) {
    const all = sum(stats.connections);
    const slowest = stats.slowest ?? [];
    const listed = slowest.length ? slowest : all ? this.#some : [];
    // A full bar is a full outbox: what comes then is lost, or the connection is.
    const full = stats.outbox_limit || Math.max(LITTLE, ...listed.map((each) => each.queued_bytes));
    showTable(this.#rows, "connections", listed.map((each) => ({each, full})));
    setText(byId("connections-caption"), slowest.length
      ? "Those with most waiting in their outboxes"
      : "Nothing waits in any outbox. Some of those who are connected");
    setText(byId("connections-said"), all
      ? "Everybody keeps up: nothing waits in any outbox."
      : "Nobody is connected. A subscriber to begin with:");
    setHidden(byId("connections-hint"), all > 0);
    this.#chips.show(Object.entries(stats.connections ?? {}).filter(([, each]) => each > 0));
  }

  /** Some connections, whoever they are. */
  set some({connections}) {
    this.#some = connections;
  }
}

// Tags and subscriptions

class Tags {
  #rows = new Rows(body("tags"), MOST, () => {
    const tag = element("span", "tag");
    const share = bar("share");
    const number = element("td", "number");
    return {
      node: element("tr", "", rowHead(tag), share.cell, number),
      show({each, most}) {
        setText(tag, each.tag);
        setText(number, compact(each.published_rate));
        share.show(each.published_rate / most);
      },
    };
  });

  show({top_tags: tags}) {
    const most = Math.max(...tags.map((each) => each.published_rate));
    showTable(this.#rows, "tags", tags.map((each) => ({each, most})));
  }
}

/** Comes from a page of its own, asked for more rarely. */
export class Subscriptions {
  #rows = new Rows(body("subscriptions"), MOST, () => {
    const tags = element("span");
    const share = bar("share");
    const number = element("td", "number");
    let shown = "";
    return {
      node: element("tr", "", rowHead(tags), share.cell, number),
      show({each, most}) {
        share.show(each.subscribers / most);
        const key = each.tags.join(",");
        if (key !== shown) tags.replaceChildren(tagsOf(each.tags));
        shown = key;
        setText(number, count(each.subscribers));
      },
    };
  });

  show({subscriptions, count: all}) {
    const most = Math.max(...subscriptions.map((each) => each.subscribers));
    showTable(this.#rows, "subscriptions", subscriptions.map((each) => ({each, most})));
    setText(byId("subscriptions-count"), several(all, "tag set"));
  }

  /** In place of a list that is not to be had: how long it would be. */
  showMissing(stats) {
    setText(byId("subscriptions-count"), several(stats.tag_sets, "tag set"));
    setHidden(byId("subscriptions-empty"), stats.tag_sets > 0);
  }
}

// What did not arrive

const REASONS = {
  full: ["A subscriber was too slow",
         "Its outbox was full. See who it is under Connections; give it more room by " +
         "`--outbox-bytes`, or have it learn of its loss by `--slow-consumer disconnect`."],
  unframable: ["A line can't carry the data",
               "It holds a line break, and the subscriber reads lines over TCP. Have it send " +
               "`escape on`, or read JSON."],
  unmatched: ["Nobody had subscribed",
              "No loss, if nobody is meant to. Else compare the tags: a message has to carry " +
              "all the tags of a subscription."],
  rejected: ["Refused for its tags",
             "The publisher was told why. A tag is empty or too long, holds what no tag may, " +
             "or there are too many."],
};
const OTHER = "The server's log says more.";

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

// Pairs of a name and a value

class Pairs {
  #rows;

  constructor(id) {
    this.#rows = new Rows(byId(id), 12, () => {
      const [name, value] = [element("dt"), element("dd")];
      return {
        node: element("div", "", name, value),
        show([key, text, isBad]) {
          setText(name, key);
          setText(value, text);
          value.classList.toggle("bad", Boolean(isBad));
        },
      };
    });
  }

  show(pairs) {
    this.#rows.show(pairs);
  }
}

class History {
  #pairs = new Pairs("history");
  #state = byId("history-state");

  show({history}) {
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
      ...(history.failing ? [["What to do", "Is the disk full? Nothing is published until it can be stored.", true]] : []),
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
      ["Connections ever", count(stats.lifetime)],
      ["Running since", date(new Date(1000 * (stats.time - stats.uptime)))],
      ["Wrong secrets and tokens", count(wrong)],
    ]);
  }
}

/** What `/v1/stats` brings, and nothing else. */
export class Tables {
  #parts = [new Tags(), new Losses(), new History(), new Server()];

  show(stats, recorder) {
    for (const each of this.#parts) each.show(stats, recorder);
  }
}
