/** Top tags, and subscriptions: tag sets by their subscribers, or by their deliveries. */

import {byId, element, Rows, setHidden, setText} from "./dom.js";
import {compact, count, several} from "./format.js";
import {bar, body, MAX_ROWS, rowHead, showTable, tagsOf} from "./tables.js";

const PERIODS = {subscribers: 5000, rate: 2000}; // milliseconds between two requests
const CAPTIONS = {
  subscribers: "The tag sets with most subscribers",
  rate: "The tag sets of most deliveries: messages that match, times subscribers. Estimated from " +
    "samples of the last 30 seconds",
};

/** Show bars beside numbers, which are of no use where all are equal. */
function showBars(id, numbers) {
  const [most, least] = [Math.max(...numbers), Math.min(...numbers)];
  byId(id).classList.toggle("even", !(most > least));
  return most;
}

export class Tags {
  #rows = new Rows(body("tags"), MAX_ROWS, () => {
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
    const listed = tags.slice(0, MAX_ROWS);
    const most = showBars("tags", listed.map((each) => each.published_rate));
    showTable(this.#rows, "tags", listed.map((each) => ({each, most})));
  }
}

/** Requested separately, and less often than what changes with each second. */
export class Subscriptions {
  #order = "subscribers";
  #asked = -Infinity;
  #rows = new Rows(body("subscriptions"), MAX_ROWS, () => {
    const tags = element("span");
    const share = bar("share");
    const rate = element("td", "number");
    const number = element("td", "number");
    let shown = "";
    return {
      node: element("tr", "", rowHead(tags), share.cell, rate, number),
      show({each, part}) {
        share.show(part);
        const key = each.tags.join(",");
        if (key !== shown) tags.replaceChildren(tagsOf(each.tags));
        shown = key;
        setText(rate, compact(each.delivered_rate));
        setHidden(rate, each.delivered_rate === undefined);
        setText(number, count(each.subscribers));
      },
    };
  });

  constructor(api) {
    this.api = api;
    byId("subscriptions-order").addEventListener("change", ({target}) => {
      this.#order = target.value;
      this.#asked = -Infinity;
      this.refresh();
    });
  }

  /** Request the list, if it is time to. Errors are reported by the poller. */
  async refresh(stats = this.stats) {
    this.stats = stats;
    if (!stats || performance.now() - this.#asked < PERIODS[this.#order]) return;
    this.#asked = performance.now();
    const order = this.#order;
    const path = order === "rate"
      ? "/v1/stats/subscriptions" : `/v1/subscriptions?nodes=here&limit=${MAX_ROWS}`;
    const found = await this.api.get(path).catch(() => null);
    if (order === this.#order) this.#show(found, order);
  }

  #show(found, order) {
    setText(byId("subscriptions-count"), several(found?.count ?? this.stats.tag_sets, "tag set"));
    if (!found) {
      setHidden(byId("subscriptions-empty"), this.stats.tag_sets > 0);
      return;
    }
    const listed = found.subscriptions.slice(0, MAX_ROWS);
    const field = order === "rate" ? "delivered_rate" : "subscribers";
    const most = showBars("subscriptions", listed.map((each) => each[field]));
    showTable(this.#rows, "subscriptions", listed.map((each) => ({each, part: each[field] / most})));
    setText(byId("subscriptions-caption"), CAPTIONS[order]);
    setHidden(byId("subscriptions-rate"), order !== "rate");
    const idle = order === "rate" && this.stats.tag_sets > 0;
    setHidden(byId("subscriptions-empty"), listed.length > 0 || idle);
    setHidden(byId("subscriptions-idle"), listed.length > 0 || !idle);
    setText(byId("subscriptions-idle"), found.seconds > 2 * PERIODS.rate / 1000
      ? "No deliveries now." : "Measuring from now on…");
  }
}
