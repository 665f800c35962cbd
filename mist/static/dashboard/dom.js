/**
 * Helpers for the document. Data from the server becomes text only: nothing here parses markup.
 */

const SVG = "http://www.w3.org/2000/svg";

// Characters without a shape that turn around what stands behind them, as in a<U+202E>b/gro.live,
// which would read aevil.org/b.
const TURNING = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069";

// Those that nobody sees, with which two tags look the same, and those that end a line. Not the two
// that join letters (U+200C, U+200D), which some languages and emoji are written with.
const UNSEEN = "\\u00ad\\u115f\\u1160\\u180e\\u200b\\u2028\\u2029\\u2060-\\u2064\\u206a-\\u206f\\u3164\\ufeff\\uffa0";

const ODD = new RegExp(`[${TURNING}${UNSEEN}]`, "g");

/** Text in the order in which it was written: what can't be seen, or turns it, is shown as its code. */
const inOrder = (text) =>
  String(text).replace(ODD, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const byId = (id) => document.getElementById(id);

/** An element; strings in `content` become text. */
export function element(name, className = "", ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content.map((each) => (each instanceof Node ? each : inOrder(each))));
  return made;
}

/** The same in SVG, with attributes instead of content. */
export function drawn(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Set a text if it changed, so that the browser has no work otherwise. */
export function setText(node, text) {
  const shown = inOrder(text);
  if (node.textContent !== shown) node.textContent = shown;
}

/** The same for an attribute. */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** The same for `hidden`. */
export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Text with code between backticks. */
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", "", part) : part));
}

/**
 * Act when a dialog has closed. Word of it comes a moment later, by which time it may be open again,
 * for something else.
 */
export function onClosed(dialog, act) {
  dialog.addEventListener("close", () => dialog.open || act());
}

/** Give the focus to a list where nothing has it, such as where a dialog's row is gone as it closes. */
export function keepFocus(id) {
  const held = document.activeElement;
  if (held === document.body || !held.checkVisibility()) byId(id).focus({preventScroll: true});
}

/**
 * A list of rows that are created once and reused, so that an update each second creates no
 * garbage and moves nothing that stays.
 */
export class Rows {
  #rows = [];

  /**
   * @param parent gets the rows.
   * @param limit the largest number of rows.
   * @param make returns `{node, show(item)}`.
   */
  constructor(parent, limit, make) {
    Object.assign(this, {parent, limit, make});
  }

  show(items) {
    const count = Math.min(items.length, this.limit);
    while (this.#rows.length < count) {
      const row = this.make();
      this.#rows.push(row);
      this.parent.append(row.node);
    }
    this.#rows.forEach((row, index) => {
      setHidden(row.node, index >= count);
      if (index < count) row.show(items[index]);
    });
  }
}

/** A row of a list of terms, for `Rows`: shows `[name, text, isBad]`. */
export function pair() {
  const [name, value] = [element("dt"), element("dd")];
  return {
    node: element("div", "", name, value),
    show([key, text, isBad]) {
      setText(name, key);
      setText(value, text);
      value.classList.toggle("bad", Boolean(isBad));
    },
  };
}
