/**
 * What is remembered of the last minutes: rates made of totals, in arrays that never grow.
 *
 * A server counts from its start. What it did in between is the difference of two looks, over
 * the time that passed for the server. Where there is no honest difference there is none, and
 * NaN stands for it: the page slept, the server was away, or it has begun again.
 */

export const SPAN = 300; // seconds that are shown
const ROOM = 2 * SPAN; // looks; one a second, and one for each gap
const LONGEST = 3.5; // seconds between two looks, above which there is a gap
const SHORTEST = 0.2; // seconds between two looks, below which a rate would be noise
const MOST_MARKS = 16;

const COUNTERS = {
  published: (stats) => stats.published,
  delivered: (stats) => stats.delivered,
  bytes: (stats) => stats.delivered_bytes,
  rejected: (stats) => stats.rejected,
  unmatched: (stats) => stats.unmatched,
  dropped: (stats) => sum(stats.dropped),
  cpu: (stats) => 100 * stats.cpu_seconds, // so that its rate is a percentage
};
const GAUGES = {
  connections: (stats) => sum(stats.connections),
  lag: (stats) => 1000 * stats.loop_lag,
};
const FIELDS = [...Object.keys(COUNTERS), ...Object.keys(GAUGES)];

/** All the numbers in an object. */
export function sum(numbers) {
  return Object.values(numbers ?? {}).reduce((total, each) => total + each, 0);
}

function measure(from, stats) {
  return Object.fromEntries(Object.entries(from).map(([field, read]) => [field, Number(read(stats))]));
}

export class Recorder {
  /** Looks that are remembered, oldest first: of each column so many are valid. */
  length = 0;
  columns = Object.fromEntries(["at", ...FIELDS].map((field) => [field, new Float64Array(ROOM)]));
  /** When the server began again. */
  marks = [];
  /** Drops per second now, by reason. */
  dropping = {};
  #before = null;

  /**
   * Take note of a look.
   *
   * @param stats what the server said, as of `/v1/stats`.
   * @param {number} at by this page's clock, in seconds.
   * @returns {boolean} whether the server has begun again since the look before.
   */
  take(stats, at) {
    let before = this.#before;
    if (before && at < before.at) {
      this.#forget(); // the clock was set; where the old looks belong is not known any more
      before = null;
    }
    const totals = measure(COUNTERS, stats);
    const started = stats.time - stats.uptime;
    const now = {at, started, uptime: stats.uptime, totals, reasons: {...stats.dropped}};
    const passed = before ? now.uptime - before.uptime : NaN;
    if (passed >= 0 && passed < SHORTEST) return false;
    this.#before = now;
    const restarted = Boolean(before) && isYounger(now, before);
    const apart = !before || restarted || at - before.at > LONGEST;
    if (before && apart) this.#push((before.at + at) / 2, {});
    if (restarted) this.#mark(at);
    const rates = {};
    for (const field of Object.keys(COUNTERS)) {
      rates[field] = apart ? NaN : (totals[field] - before.totals[field]) / passed;
    }
    this.#push(at, {...rates, ...measure(GAUGES, stats)});
    this.dropping = {};
    for (const [reason, total] of Object.entries(now.reasons)) {
      this.dropping[reason] = apart ? NaN : (total - (before.reasons[reason] ?? 0)) / passed;
    }
    return restarted;
  }

  /** The newest value of a field. */
  latest(field) {
    return this.length ? this.columns[field][this.length - 1] : NaN;
  }

  /** Seconds since the oldest look. */
  age(now) {
    return this.length ? now - this.columns.at[0] : 0;
  }

  /** The first look at or after a time; `length` if there is none. */
  indexAt(time) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.columns.at[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The look nearest to a time, or -1 where that is too far away to be told of. */
  nearest(time) {
    const right = this.indexAt(time);
    const {at} = this.columns;
    const distance = (index) => (index in at && index < this.length ? Math.abs(at[index] - time) : Infinity);
    const found = distance(right - 1) < distance(right) ? right - 1 : right;
    return distance(found) <= LONGEST / 2 ? found : -1;
  }

  #push(at, values) {
    if (this.length === ROOM) {
      for (const column of Object.values(this.columns)) column.copyWithin(0, 1);
      this.length -= 1;
    }
    this.columns.at[this.length] = at;
    for (const field of FIELDS) this.columns[field][this.length] = values[field] ?? NaN;
    this.length += 1;
  }

  #mark(at) {
    this.marks = [...this.marks.filter((each) => at - each < SPAN), at].slice(-MOST_MARKS);
  }

  #forget() {
    this.length = 0;
    this.marks = [];
    this.#before = null;
  }
}

/**
 * Whether this is another server's life than before: it began later, or something was set back.
 * Its age alone wouldn't tell: it may be older already than the one before was when last seen.
 */
function isYounger(now, before) {
  return now.started > before.started + 0.5 || now.uptime < before.uptime ||
    Object.keys(COUNTERS).some((field) => now.totals[field] < before.totals[field]);
}
