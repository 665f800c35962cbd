/** Number formats. NaN and missing values are a dash. */

export const NOTHING = "–";

const whole = new Intl.NumberFormat("en");
const STEPS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** Three significant digits. */
function short(value) {
  if (value >= 99.95) return value.toFixed(0);
  return value.toFixed(value >= 9.995 ? 1 : 2);
}

/** `[digits, prefix]`: 12345 is `["12.3", "k"]`. */
function scaled(value) {
  for (const [size, prefix] of STEPS) {
    if (value >= 0.9995 * size) return [short(value / size), prefix];
  }
  return [value >= 9.95 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1), ""];
}

/** All digits: 1,234,567. */
export function count(value) {
  return Number.isFinite(value) ? whole.format(value) : NOTHING;
}

/** Few digits: 1.23M. */
export function compact(value) {
  return Number.isFinite(value) ? scaled(value).join("") : NOTHING;
}

/** All digits of a small number, few of a large one. */
export function brief(value) {
  return value < 100_000 ? count(value) : compact(value);
}

/** `[number, unit]` of bytes. */
export function bytesParts(value) {
  if (!Number.isFinite(value)) return [NOTHING, "B"];
  const [digits, prefix] = scaled(Math.round(value));
  return [digits, `${prefix}B`];
}

export function bytes(value) {
  const [digits, unit] = bytesParts(value);
  return digits === NOTHING ? digits : `${digits} ${unit}`;
}

/** Milliseconds. */
export function milliseconds(value) {
  if (!Number.isFinite(value)) return NOTHING;
  if (value >= 9.95) return count(Math.round(value));
  return value < 0.05 ? "0" : value.toFixed(1);
}

/** Milliseconds of a duration that may be well below one: two digits. */
export function fine(value) {
  if (!Number.isFinite(value)) return NOTHING;
  if (value >= 9.95) return count(Math.round(value));
  return value.toFixed(value >= 0.995 ? 1 : 2).replace(/^0\.00$/, "0");
}

const SPANS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** A span of time by its two largest parts: 3 d 4 h. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NOTHING;
  let left = Math.max(0, Math.floor(seconds));
  const first = SPANS.findIndex(([size]) => left >= size);
  if (first < 0) return "0 s";
  return SPANS.slice(first, first + 2)
    .map(([size, unit]) => {
      const part = Math.floor(left / size);
      left -= part * size;
      return part ? `${part} ${unit}` : "";
    })
    .filter(Boolean)
    .join(" ");
}

/** `one message`, `3 messages`. */
export function several(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function clock(when) {
  return when.toLocaleTimeString("en", {hourCycle: "h23"});
}

/** Day and time; the year too, where it is another one. */
export function date(when) {
  const year = when.getFullYear() === new Date(Date.now()).getFullYear() ? undefined : "numeric";
  return when.toLocaleString("en", {
    year, day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
  });
}

/** What a person calls an attribute's value. */
export const textOf = (value) => (Array.isArray(value) ? value.join(", ") : String(value));
