/** The tokens: searched, and a page at a time. */

import {serverTime} from "./clock.js";
import {byId, element, Rows, setHidden, setText} from "./dom.js";
import {date} from "./format.js";
import {Paging} from "./paging.js";

const PAGE = 20;
const SOON = 7 * 86_400; // seconds before it expires, from which on that is worth a look
const TAGS = 6; // of a row

/** `[state, text]` of when a token expires. */
export function expiry(expires) {
  if (expires === null || expires === undefined) return ["", "never"];
  const left = expires - serverTime();
  if (left <= 0) return ["bad", "expired"];
  return [left < SOON ? "warn" : "", date(new Date(1000 * expires))];
}

const UNITS = {rate: "/s", bytes: " B/s", connections: " at once"};

/** The limits that a token's attributes set, for people. */
export function limitsOf(attributes) {
  return Object.entries(UNITS)
    .filter(([name]) => attributes[name] !== undefined)
    .map(([name, unit]) => `${name} ${attributes[name]}${unit}`)
    .join(", ");
}

function row(opened) {
  const name = element("button", "link");
  name.type = "button";
  const id = element("small", "peer");
  const tags = element("div", "tags");
  const badge = element("span");
  const limits = element("td", "spare");
  const user = element("td", "spare cut");
  const head = element("th", "", name, id);
  head.scope = "row";
  let shown = null;
  let key = "";
  name.addEventListener("click", () => opened(shown));
  return {
    node: element("tr", "", head, element("td", "", tags), element("td", "", badge), limits, user),
    show(each) {
      shown = each;
      setText(name, each.name || each.id);
      setText(id, each.name ? each.id : "");
      setHidden(id, !each.name);
      const wanted = each.tags.join(",");
      if (key !== wanted || !wanted) {
        key = wanted;
        const more = each.tags.length - TAGS;
        tags.replaceChildren(
          ...each.tags.slice(0, TAGS).map((tag) => element("span", "tag", tag)),
          ...(more > 0 ? [element("small", "", `and ${more} more`)] : []),
          ...(each.tags.length ? [] : [element("small", "", "grants nothing")]));
      }
      const [state, text] = expiry(each.expires);
      badge.className = state ? "badge" : "";
      badge.dataset.state = state;
      setText(badge, text);
      setText(limits, limitsOf(each.attributes) || "–");
      setText(user, String(each.attributes.user ?? "–"));
    },
  };
}

export class TokenList {
  #rows;
  #paging;

  /** @param opened called with the token that the user opens. */
  constructor(api, opened) {
    this.#rows = new Rows(byId("tokens").querySelector("tbody"), PAGE, () => row(opened));
    this.#paging = new Paging("tokens", PAGE, (query) => api.get(`/v1/tokens?${query}`), {
      rows: (found) => found.tokens,
      taken: (found) => this.#taken(found),
      failed: (problem) => problem.status === 503 && this.#say("The token registry can't be asked."),
    });
  }

  refresh() {
    return this.#paging.refresh();
  }

  /** Refresh it where it is looked at. */
  follow() {
    this.#paging.follow();
  }

  #taken({tokens}) {
    this.#rows.show(tokens);
    setHidden(byId("tokens"), tokens.length === 0);
    this.#say(tokens.length ? "" : this.#paging.search
      ? "No token has this in its name, id or user."
      : "No tokens yet. A browser needs one to subscribe.");
  }

  #say(text) {
    setText(byId("tokens-said"), text);
    setHidden(byId("tokens-said"), !text);
  }
}
