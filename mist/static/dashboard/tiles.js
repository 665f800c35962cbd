/** Tiles: the main figures in large type, each with a sparkline of the last minute. */

import {drawn, element, setAttribute, setText} from "./dom.js";
import {brief, bytes, bytesParts, compact, count, duration, milliseconds} from "./format.js";
import {trace} from "./plot.js";
import {sum} from "./recorder.js";

const WIDTH = 120;
const HEIGHT = 28;
const SECONDS = 60;

/** Per second. */
const rate = (value) => [compact(value), "/s"];

const TILES = [
  {field: "published", name: "Published", parts: rate,
   more: (stats) => `${brief(stats.published)} in all`},
  {field: "delivered", name: "Delivered", parts: rate,
   more: (stats) => `${brief(stats.delivered)} in all`},
  {field: "bytes", name: "Sent", parts: (value) => {
    const [digits, unit] = bytesParts(value);
    return [digits, `${unit}/s`];
  }, more: (stats) => `${bytes(stats.delivered_bytes)} in all`},
  {field: "connections", name: "Connections", parts: (value) => [brief(value), ""],
   more: (stats) => `${brief(stats.lifetime)} since the start`},
  {field: "dropped", name: "Dropped", parts: rate, isBad: (value) => value > 0,
   more: (stats) => `${brief(sum(stats.dropped))} in all`},
  {field: "lag", name: "Loop lag", parts: (value) => [milliseconds(value), "ms"],
   isBad: (value) => value > 250, more: (stats, recorder) => {
     const cpu = recorder.latest("cpu");
     return Number.isNaN(cpu) ? `up ${duration(stats.uptime)}` : `CPU ${count(Math.round(cpu))} %`;
   }},
];

class Tile {
  constructor(parent, about) {
    this.about = about;
    this.number = element("span", "number");
    this.unit = element("span", "unit");
    this.more = element("dd", "more");
    const svg = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
    });
    this.area = drawn("path", {class: `area ${about.field}`});
    this.line = drawn("path", {class: `line ${about.field}`, "vector-effect": "non-scaling-stroke"});
    svg.append(this.area, this.line);
    this.node = element("div", "card tile", element("dt", "", about.name),
      element("dd", "value", this.number, this.unit), this.more, element("dd", "spark", svg));
    parent.append(this.node);
  }

  show(stats, recorder) {
    const {field, parts, more, isBad} = this.about;
    const value = recorder.latest(field);
    const [number, unit] = parts(value);
    setText(this.number, number);
    setText(this.unit, unit);
    setText(this.more, more(stats, recorder));
    this.node.classList.toggle("bad", Boolean(isBad?.(value)));
  }

  draw(recorder, now) {
    const {field} = this.about;
    const first = recorder.indexAt(now - SECONDS);
    const values = recorder.columns[field].subarray(first, recorder.length);
    const top = values.reduce((most, each) => (each > most ? each : most), 1e-9);
    const x = (time) => WIDTH * (1 - (now - time) / SECONDS);
    const y = (value) => HEIGHT - 1.5 - ((HEIGHT - 4) * value) / top;
    const {line, area} = trace(recorder, field, first, x, y, HEIGHT);
    setAttribute(this.line, "d", line);
    setAttribute(this.area, "d", area);
  }
}

export class Tiles {
  constructor(parent, recorder) {
    this.recorder = recorder;
    this.tiles = TILES.map((about) => new Tile(parent, about));
  }

  show(stats) {
    for (const each of this.tiles) each.show(stats, this.recorder);
  }

  draw(now) {
    for (const each of this.tiles) each.draw(this.recorder, now);
  }
}
