/**
 * Time series of the last minutes: rates computed from totals, in arrays of fixed size.
 *
 * A server counts from its start. A rate is the difference of two samples over the time that
 * passed for the server. Where that would be wrong (the page slept, the server was unreachable
 * or restarted) the value is NaN.
 */

export const SPAN = 300; // seconds shown
const CAPACITY = 2 * SPAN; // samples; one a second, and one for each gap
const MAX_INTERVAL = 3.5; // seconds between two samples, above which there is a gap
const MIN_INTERVAL = 0.2; // seconds between two samples, below which a rate would be noise
const MAX_MARKS = 16;

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

/** The sum of the numbers in an object. */
export function sum(numbers) {
  return Object.values(numbers ?? {}).reduce((total, each) => total + each, 0);
}

function measure(from, stats) {
  return Object.fromEntries(Object.entries(from).map(([field, read]) => [field, Number(read(stats))]));
}

export class Recorder {
  /** Number of samples, oldest first: the valid part of each column. */
  length = 0;
  columns = Object.fromEntries(["at", ...FIELDS].map((field) => [field, new Float64Array(CAPACITY)]));
  /** When the server restarted. */
  marks = [];
  /** Drops per second now, by reason. */
  dropping = {};
  #before = null;

  /**
   * Add a sample.
   *
   * @param stats the response of `/v1/stats`.
   * @param {number} at by this page's clock, in seconds.
   * @returns {boolean} whether the server restarted since the last sample.
   */
  take(stats, at) {
    let before = this.#before;
    if (before && at < before.at) {
      this.#clear(); // the clock was set back, so the old samples' times are wrong
      before = null;
    }
    const totals = measure(COUNTERS, stats);
    const started = stats.time - stats.uptime;
    const now = {at, started, uptime: stats.uptime, totals, reasons: {...stats.dropped}};
    const passed = before ? now.uptime - before.uptime : NaN;
    if (passed >= 0 && passed < MIN_INTERVAL) return false;
    this.#before = now;
    const restarted = Boolean(before) && hasRestarted(now, before);
    const apart = !before || restarted || at - before.at > MAX_INTERVAL;
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

  /** Seconds since the oldest sample. */
  age(now) {
    return this.length ? now - this.columns.at[0] : 0;
  }

  /** The first sample at or after a time; `length` if there is none. */
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

  /** The sample nearest to a time, or -1 if none is near enough. */
  nearest(time) {
    const right = this.indexAt(time);
    const {at} = this.columns;
    const distance = (index) => (index in at && index < this.length ? Math.abs(at[index] - time) : Infinity);
    const found = distance(right - 1) < distance(right) ? right - 1 : right;
    return distance(found) <= MAX_INTERVAL / 2 ? found : -1;
  }

  #push(at, values) {
    if (this.length === CAPACITY) {
      for (const column of Object.values(this.columns)) column.copyWithin(0, 1);
      this.length -= 1;
    }
    this.columns.at[this.length] = at;
    for (const field of FIELDS) this.columns[field][this.length] = values[field] ?? NaN;
    this.length += 1;
  }

  #mark(at) {
    this.marks = [...this.marks.filter((each) => at - each < SPAN), at].slice(-MAX_MARKS);
  }

  #clear() {
    this.length = 0;
    this.marks = [];
    this.#before = null;
  }
}

/**
 * Whether the server restarted: it started later, or a counter went back. The uptime alone isn't
 * enough: it may already be longer than that of the previous process when last seen.
 */
function hasRestarted(now, before) {
  return now.started > before.started + 0.5 || now.uptime < before.uptime ||
    Object.keys(COUNTERS).some((field) => now.totals[field] < before.totals[field]);
}
