/**
 * Time series plots, drawn as SVG and coloured by the style sheet.
 *
 * All plots share one cursor: pointing at a moment in one shows the same moment in all. It is
 * moved by pointer, finger or arrow keys, and its values are shown as text too.
 */

import {drawn, element, setAttribute, setText} from "./dom.js";
import {clock, count, duration} from "./format.js";
import {SPAN} from "./recorder.js";

const HEIGHT = 156;
const TOP = 14;
const BOTTOM = 20;
const FLOOR = HEIGHT - BOTTOM;
// Time spans, of which the shortest that fits is used: seconds, and seconds between labels, where
// there is room for them and where there is less.
const LABEL = 72; // pixels of a time label
const SPANS = [[60, [15, 30]], [120, [30, 60]], [300, [60, 120]], [SPAN, [120, 300]]];
const KEYS = {ArrowLeft: 1, ArrowDown: 1, ArrowRight: -1, ArrowUp: -1, PageDown: 10, PageUp: -10};

/** The cursor shared by all plots: seconds ago, or null. */
export class Cursor {
  ago = null;
  #watchers = [];

  watch(changed) {
    this.#watchers.push(changed);
  }

  move(ago) {
    if (this.ago === ago) return;
    this.ago = ago;
    for (const changed of this.#watchers) changed();
  }
}

/** The smallest round number not below a value. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.999999) * power;
}

/** The time span for so many seconds of data, and the distances that its labels may have. */
export function spanOf(age) {
  return SPANS.find(([span]) => age <= span) ?? SPANS.at(-1);
}

/**
 * A line through the values from `first` on, broken where there are none.
 *
 * @returns `{line, area}`, the area down to `floor`.
 */
export function trace(recorder, field, first, x, y, floor) {
  const {at, [field]: values} = recorder.columns;
  let line = "";
  let area = "";
  let start = "";
  let end = "";
  const close = () => {
    if (start) area += `L${end} ${floor}L${start} ${floor}Z`;
    start = "";
  };
  for (let index = first; index < recorder.length; index += 1) {
    const value = values[index];
    if (Number.isNaN(value)) {
      close();
      continue;
    }
    const place = x(at[index]).toFixed(1);
    const point = `${place} ${y(value).toFixed(1)}`;
    // A line to itself as well, so that a value between two gaps is a dot.
    line += start ? `L${point}` : `M${point}L${point}`;
    area += start ? `L${point}` : `M${point}`;
    start ||= place;
    end = place;
  }
  close();
  return {line, area};
}

/** A power of ten: 0.01, 1,000. */
function power(exponent) {
  return exponent < 0 ? (10 ** exponent).toFixed(-exponent) : count(10 ** exponent);
}

function ago(seconds) {
  if (seconds < 0.5) return "now";
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s ago` : `${Math.floor(whole / 60)} min ${whole % 60} s ago`;
}

export class Plot {
  #width = 320;
  #now = 0;
  #overall = null; // values of all that is shown

  /**
   * @param parent gets the figure.
   * @param recorder has the values.
   * @param cursor is shared.
   * @param about `title`, `unit`, `least` (the top of the scale is at least this), `format`, and
   *   `series`: `{field, name, kind}`, whose class is the kind, or else the field's name; the first
   *   is filled. `log`: whether the scale is logarithmic, for what spans decades; then nothing is
   *   filled. `overall(recorder, since)`, where given, has the values by field for all that is
   *   shown, which are read while no moment is pointed at.
   */
  constructor(parent, recorder, cursor, about) {
    Object.assign(this, {recorder, cursor, about});
    this.#build(parent);
    this.#listen();
    new ResizeObserver(([entry]) => {
      this.#width = Math.max(120, Math.round(entry.contentRect.width));
      setAttribute(this.svg, "viewBox", `0 0 ${this.#width} ${HEIGHT}`);
      this.draw(this.#now);
    }).observe(this.field);
  }

  #build(parent) {
    const {title, unit, series} = this.about;
    this.when = element("span", "when");
    const head = element("figcaption", "", element("h3", "", title), element("span", "unit", unit), this.when);
    this.values = series.map(() => element("dd", "", "–"));
    const kind = (each) => each.kind ?? each.field;
    const keys = series.map((each, index) =>
      element("div", `key ${kind(each)}`, element("dt", "", each.name), this.values[index]));
    this.svg = drawn("svg", {height: HEIGHT, "aria-hidden": "true", preserveAspectRatio: "none"});
    this.grid = [1, 0.5, 0].map((part) => this.#add("line", {class: part ? "rule" : "rule floor", part}));
    this.areas = series.slice(0, this.about.log ? 0 : 1).map((each) => this.#add("path", {class: `area ${kind(each)}`}));
    // From the last to the first, so that the first series is on top.
    this.lines = series.map((each) => drawn("path", {class: `line ${kind(each)}`}));
    this.svg.append(...[...this.lines].reverse());
    this.heights = [1, 0.5, 0].map(() => this.#add("text", {class: "scale"}));
    this.times = Array.from({length: 6}, () => this.#add("text", {y: HEIGHT - 4, class: "scale"}));
    this.marks = Array.from({length: 4}, () => this.#add("path", {class: "restart"}));
    this.words = this.#add("text", {class: "scale restarted", y: TOP + 10});
    this.pointer = this.#add("path", {class: "pointer"});
    this.dots = series.map((each) => this.#add("circle", {class: `dot ${kind(each)}`, r: 3.5}));
    this.field = element("div", "field", this.svg);
    for (const [name, value] of Object.entries({
      role: "slider", tabindex: "0", "aria-orientation": "horizontal",
      "aria-label": `${title}, ${unit}: a moment to read off`,
      "aria-valuemin": `${-SPAN}`, "aria-valuemax": "0", "aria-valuenow": "0",
      "aria-valuetext": "now",
    })) this.field.setAttribute(name, value);
    this.node = element("figure", "card plot", head, element("dl", "keys", ...keys), this.field);
    parent.append(this.node);
  }

  #add(name, attributes) {
    const made = drawn(name, attributes);
    this.svg.append(made);
    return made;
  }

  #listen() {
    const {field, cursor} = this;
    const point = (event) => {
      const [span] = spanOf(this.recorder.age(this.#now));
      const part = 1 - event.offsetX / this.#width;
      cursor.move(Math.min(span, Math.max(0, Math.round(part * span))));
    };
    field.addEventListener("pointermove", point);
    field.addEventListener("pointerdown", point);
    field.addEventListener("pointerleave", () => cursor.move(null));
    field.addEventListener("focus", () => this.#say());
    field.addEventListener("blur", () => cursor.move(null));
    field.addEventListener("keydown", (event) => this.#press(event));
    cursor.watch(() => this.point());
  }

  #press(event) {
    const [span] = spanOf(this.recorder.age(this.#now));
    const places = {Home: span, End: 0, Escape: null};
    let place;
    if (event.key in KEYS) {
      place = Math.min(span, Math.max(0, (this.cursor.ago ?? 0) + KEYS[event.key]));
    } else if (event.key in places) {
      place = places[event.key];
    } else {
      return;
    }
    event.preventDefault();
    this.cursor.move(place);
    this.#say();
  }

  /** A text for screen readers. Only on focus: once a second it would be noise. */
  #say() {
    const {series, format, unit} = this.about;
    const index = this.#index();
    const values = series.map(({field, name}) => `${name} ${format(this.#value(field, index))}`);
    const said = index < 0 ? "nothing known" : `${values.join(", ")} ${unit}`;
    setAttribute(this.field, "aria-valuenow", String(-(this.cursor.ago ?? 0)));
    setAttribute(this.field, "aria-valuetext", `${ago(this.cursor.ago ?? 0)}: ${said}`);
  }

  /** Draw the plot as of a time. */
  draw(now) {
    this.#now = now;
    const {recorder, about} = this;
    const [span, steps] = spanOf(recorder.age(now));
    const step = steps.find((each) => (this.#width * each) / span >= LABEL) ?? steps.at(-1);
    // One sample more than visible, so that the line starts at the edge.
    const first = Math.max(0, recorder.indexAt(now - span) - 1);
    const scale = about.log ? this.#decades(first) : this.#linear(first);
    this.x = (time) => this.#width * (1 - (now - time) / span);
    this.y = (value) => FLOOR - (FLOOR - TOP) * scale.part(value);
    about.series.forEach(({field}, index) => {
      const {line, area} = trace(recorder, field, first, this.x, this.y, FLOOR);
      setAttribute(this.lines[index], "d", line);
      if (index < this.areas.length) setAttribute(this.areas[index], "d", area);
    });
    this.#overall = about.overall?.(recorder, now - span) ?? null;
    this.#drawScale(scale, span, step);
    this.#drawMarks(now, span);
    this.point();
  }

  /** The least and the most of all series from a sample on, those given among them. */
  #extremes(first, least, most) {
    for (const {field} of this.about.series) {
      const values = this.recorder.columns[field];
      for (let index = first; index < this.recorder.length; index += 1) {
        if (values[index] > most) most = values[index];
        if (values[index] < least) least = values[index];
      }
    }
    return [least, most];
  }

  /** A scale from 0: how high a value is, from 0 to 1, and the label at such a height. */
  #linear(first) {
    const {least, format} = this.about;
    const top = roundUp(this.#extremes(first, 0, least)[1]);
    return {
      part: (value) => value / top,
      label: (part) => (part ? format(top * part).replace(/\.0+(?!\d)/, "") : ""),
    };
  }

  /** The same of powers of ten, one of them at half the height. */
  #decades(first) {
    const [least, most] = this.#extremes(first, this.about.least, this.about.least);
    const high = Math.ceil(Math.log10(most));
    const decades = Math.max(2, high - Math.floor(Math.log10(Math.max(least, 1e-3))));
    const low = high - decades - (decades % 2);
    return {
      part: (value) => Math.max(0, (Math.log10(value) - low) / (high - low)),
      label: (part) => power(low + part * (high - low)),
    };
  }

  #drawScale(scale, span, step) {
    [1, 0.5, 0].forEach((part, index) => {
      const y = Math.round(FLOOR - (FLOOR - TOP) * part) + 0.5;
      for (const [name, value] of [["x1", 0], ["x2", this.#width], ["y1", y], ["y2", y]]) {
        setAttribute(this.grid[index], name, String(value));
      }
      setAttribute(this.heights[index], "y", String(y - 3.5));
      setText(this.heights[index], scale.label(part));
    });
    this.times.forEach((label, index) => {
      const seconds = index * step;
      setAttribute(label, "x", String(this.#width * (1 - seconds / span)));
      setAttribute(label, "text-anchor", seconds === 0 ? "end" : seconds === span ? "start" : "middle");
      const text = step < 60 ? `−${seconds} s` : `−${seconds / 60} min`;
      setText(label, seconds === 0 ? "now" : seconds > span ? "" : text);
    });
  }

  #drawMarks(now, span) {
    const seen = this.recorder.marks.filter((each) => now - each < span).slice(-this.marks.length);
    this.marks.forEach((mark, index) => {
      const time = seen[index];
      setAttribute(mark, "d", time ? `M${this.x(time).toFixed(1)} ${TOP}V${FLOOR}` : "");
    });
    if (!seen.length) {
      setText(this.words, "");
      return;
    }
    const at = this.x(seen.at(-1));
    const right = at < this.#width / 2;
    setText(this.words, "server restarted");
    setAttribute(this.words, "x", (at + (right ? 5 : -5)).toFixed(1));
    setAttribute(this.words, "text-anchor", right ? "start" : "end");
  }

  #index() {
    const {recorder, cursor} = this;
    if (cursor.ago) return recorder.nearest(this.#now - cursor.ago);
    return recorder.length - 1;
  }

  #value(field, index) {
    return index < 0 ? NaN : this.recorder.columns[field][index];
  }

  /** Show the values at the cursor, or else the latest ones. */
  point() {
    if (!this.x) return;
    const {recorder, cursor, about} = this;
    const index = this.#index();
    const pointed = cursor.ago !== null;
    const time = this.#now - (cursor.ago ?? 0);
    const x = this.x(index < 0 || !pointed ? time : recorder.columns.at[index]).toFixed(1);
    setAttribute(this.pointer, "d", pointed ? `M${x} ${TOP}V${FLOOR}` : "");
    about.series.forEach(({field}, each) => {
      const value = this.#value(field, index);
      const seen = pointed && !Number.isNaN(value);
      setText(this.values[each], about.format(pointed || !this.#overall ? value : this.#overall[field]));
      setAttribute(this.dots[each], "cx", seen ? x : "-10");
      setAttribute(this.dots[each], "cy", seen ? this.y(value).toFixed(1) : "-10");
    });
    const [span] = spanOf(recorder.age(this.#now));
    const seconds = Math.min(span, recorder.age(this.#now));
    const all = this.#overall ? `over ${duration(seconds < 60 ? seconds : seconds - (seconds % 60))}` : "";
    setText(this.when, pointed ? `${ago(cursor.ago)} · ${clock(new Date(1000 * time))}` : all);
  }
}
