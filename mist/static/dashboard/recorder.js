/**
 * Time series of the last ten minutes: rates computed from totals, in arrays of fixed size.
 *
 * They begin with what the server has recorded (`/v1/stats/history`), and go on with what is polled.
 * A server counts from its start. A rate is the difference of two samples over the time that
 * passed for the server. Where that would be wrong (it stood still, slept, was unreachable or
 * restarted) the value is NaN.
 */

import {Latencies, LATENCY_FIELDS} from "./latency.js";

export const SPAN = 600; // seconds shown
const CAPACITY = 2 * SPAN; // samples; one a second, and one for each gap
const MAX_INTERVAL = 3.5; // seconds between two polls, above which there is a gap
const MAX_STEPS = 2.5; // the same between two samples of the server, in its steps
const MIN_INTERVAL = 0.2; // seconds between two samples, below which a rate would be noise
const MAX_MARKS = 16;

/** Each field's name here, that of the server, and how many of its units are one of the server's. */
const COUNTERS = {
  published: ["published", 1],
  delivered: ["delivered", 1],
  bytes: ["delivered_bytes", 1],
  rejected: ["rejected", 1],
  unmatched: ["unmatched", 1],
  dropped: ["dropped", 1],
  cpu: ["cpu_seconds", 100], // so that its rate is a percentage
};
const GAUGES = {connections: ["connections", 1], lag: ["loop_lag", 1000]};
const FIELDS = [...Object.keys(COUNTERS), ...Object.keys(GAUGES), ...LATENCY_FIELDS];

/** The sum of the numbers in an object. */
export function sum(numbers) {
  return Object.values(numbers ?? {}).reduce((total, each) => total + each, 0);
}

function measure(table, read) {
  return Object.fromEntries(Object.entries(table).map(([field, [name, units]]) => [field, units * read(name)]));
}

export class Recorder {
  /** Number of samples, oldest first: the valid part of each column. */
  length = 0;
  columns = Object.fromEntries(["at", ...FIELDS].map((field) => [field, new Float64Array(CAPACITY)]));
  /** When the server restarted. */
  marks = [];
  /** Drops per second now, by reason. */
  dropping = {};
  /** Whether something is missing that the server may have recorded; see `load`. */
  wantsHistory = true;
  latencies = new Latencies();
  #before = null;
  #reasons = null;

  /**
   * Add what the server has recorded itself, in place of what was polled in that time.
   *
   * @param history the response of `/v1/stats/history`; null where there is none.
   * @param stats the response of `/v1/stats`, a moment before or after.
   * @param {number} at by this page's clock, in seconds.
   */
  load(history, stats, at) {
    this.wantsHistory = false;
    if (!history?.uptime?.length || history.started !== stats.started) return;
    const when = (uptime) => at - (stats.uptime - uptime);
    this.#forgetFrom(when(history.uptime[0]));
    const times = this.#loadLatencies(history.latency, stats, when);
    history.uptime.forEach((uptime, index) => {
      const time = when(uptime);
      if (uptime > stats.uptime || (this.length && time <= this.columns.at[this.length - 1])) return;
      const sample = this.#sample(stats, uptime, time, (name) => history[name][index]);
      this.#add(sample, MAX_STEPS * history.step, times(time));
    });
  }

  /**
   * Add a sample.
   *
   * @param stats the response of `/v1/stats`.
   * @param {number} at by this page's clock, in seconds.
   * @returns {boolean} whether the server restarted since the last sample.
   */
  take(stats, at) {
    if (this.#before && at < this.#before.at) this.#clear(); // the page's clock was set back
    const before = this.#before;
    const all = {...stats, dropped: sum(stats.dropped), connections: sum(stats.connections)};
    const now = this.#sample(stats, stats.uptime, at, (name) => Number(all[name]));
    const passed = before ? now.uptime - before.uptime : NaN;
    if (passed >= 0 && passed < MIN_INTERVAL) return false;
    const restarted = Boolean(before) && hasRestarted(now, before);
    if (restarted) {
      this.latencies.restarted();
      this.#mark(Math.max(before.at, at - now.uptime));
    }
    this.latencies.add(stats.latency, at);
    const apart = this.#add(now, MAX_INTERVAL, this.latencies.upTo(at), restarted);
    if (apart) this.wantsHistory = true;
    this.#drop(stats.dropped ?? {}, apart ? NaN : passed);
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

  #sample(stats, uptime, at, read) {
    const started = stats.started ?? stats.time - stats.uptime;
    return {at, started, uptime, totals: measure(COUNTERS, read), gauges: measure(GAUGES, read)};
  }

  /** Whether there is a gap before this sample. */
  #add(now, most, latencies, restarted = false) {
    const before = this.#before;
    this.#before = now;
    const passed = before ? now.uptime - before.uptime : NaN;
    const apart = !before || restarted || now.at - before.at > most || !(passed > 0);
    if (apart && this.length) {
      this.#push((this.columns.at[this.length - 1] + now.at) / 2, {});
    }
    const rates = {};
    for (const field of Object.keys(COUNTERS)) {
      rates[field] = apart ? NaN : (now.totals[field] - before.totals[field]) / passed;
    }
    this.#push(now.at, {...rates, ...now.gauges, ...latencies});
    return apart;
  }

  /** Finds what to show at a time of the recorded latencies: that of the window it is in. */
  #loadLatencies(latency, stats, when) {
    const ends = latency.uptime.filter((uptime) => uptime <= stats.uptime).map(when);
    ends.forEach((end, index) => {
      const names = Object.keys(latency).filter((name) => latency[name]?.counts);
      this.latencies.add(Object.fromEntries(names.map((name) =>
        [name, {bounds: latency[name].bounds, counts: latency[name].counts[index]}])), end);
    });
    ends.push(when(stats.uptime));
    this.latencies.add(stats.latency, ends.at(-1));
    const values = ends.map((end) => this.latencies.upTo(end));
    return (time) => values[ends.findIndex((end) => end >= time)];
  }

  #drop(reasons, seconds) {
    const before = this.#reasons;
    this.#reasons = {...reasons};
    this.dropping = Object.fromEntries(Object.entries(reasons).map(([reason, total]) =>
      [reason, (total - (before?.[reason] ?? 0)) / seconds]));
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

  #forgetFrom(at) {
    this.length = this.indexAt(at);
    this.latencies.forgetFrom(at);
    this.#before = null;
  }

  #clear() {
    this.length = 0;
    this.marks = [];
    this.latencies.clear();
    this.#before = null;
  }
}

/**
 * Whether the server restarted: another process answers, or a counter went back. The uptime alone
 * isn't enough: it may already be longer than that of the previous process when last seen.
 */
function hasRestarted(now, before) {
  return Math.abs(now.started - before.started) > 0.5 || now.uptime < before.uptime ||
    Object.keys(COUNTERS).some((field) => now.totals[field] < before.totals[field]);
}
