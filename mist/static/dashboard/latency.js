/**
 * Latencies over time, from histograms whose buckets count since the server's start.
 *
 * What was observed between two samples is the difference of their buckets. A quantile of it is
 * interpolated linearly in its bucket, as Prometheus does (histogram_quantile). Where nothing was
 * observed there is none: NaN.
 */

export const WINDOW = 10; // seconds of which each point of a plot tells
const DENSE = 2 * WINDOW; // seconds in which every sample is kept
const SPARSE = 5; // seconds between two samples that are older

/** The histograms, and by how much each field's name begins: `write50` is a median. */
const NAMES = {write: "publish_to_write", commit: "commit"};
const QUANTILES = {50: 0.5, 99: 0.99};

export const LATENCY_FIELDS = Object.keys(NAMES).flatMap((name) =>
  Object.keys(QUANTILES).map((quantile) => `${name}${quantile}`));

/**
 * A quantile of a histogram.
 *
 * @param bounds upper bounds of the buckets; one without a bound follows, whose values count as
 *   the highest bound.
 * @param counts of each bucket.
 * @param {number} part from 0 to 1.
 */
export function quantile(bounds, counts, part) {
  const rank = part * counts.reduce((total, each) => total + each, 0);
  let below = 0;
  for (let index = 0; index < bounds.length; index += 1) {
    const within = counts[index];
    if (within && below + within >= rank) {
      const low = index ? bounds[index - 1] : 0;
      return low + (bounds[index] - low) * ((rank - below) / within);
    }
    below += within;
  }
  return rank ? bounds.at(-1) : NaN;
}

const sums = (one, other, sign) => one.map((each, index) => each + sign * (other?.[index] ?? 0));

export class Latencies {
  #samples = []; // {at, counts}, oldest first; counts go on where a server restarts
  #bounds = {};
  #before = {}; // counts of the processes before this one

  /**
   * Add a sample, newer than all before.
   *
   * @param latency of each histogram its bounds and counts, or null.
   * @param {number} at seconds.
   */
  add(latency, at) {
    const counts = {};
    for (const name of Object.values(NAMES)) {
      const found = latency?.[name];
      if (!found) continue;
      if (this.#bounds[name]?.length !== found.bounds.length) this.clear(name);
      this.#bounds[name] = found.bounds;
      counts[name] = sums(found.counts, this.#before[name], 1);
    }
    this.#samples.push({at, counts});
    this.#thin(at);
  }

  /** The server was restarted: the next sample counts from 0. */
  restarted() {
    this.#before = {...this.#before, ...this.#samples.at(-1)?.counts};
  }

  /** Forget samples from a time on. */
  forgetFrom(at) {
    this.#samples = this.#samples.filter((each) => each.at < at);
  }

  /** Forget a histogram, or all. */
  clear(name) {
    if (!name) this.#samples = [];
    for (const {counts} of this.#samples) delete counts[name];
    if (name) delete this.#before[name];
    else this.#before = {};
  }

  /** The values of all fields in the seconds up to a time, in milliseconds. */
  upTo(at) {
    const newer = this.#samples.findLast((each) => each.at <= at);
    const older = this.#samples.findLast((each) => each.at <= at - WINDOW) ?? this.#samples[0];
    return this.#between(older, newer);
  }

  /** The values of all fields in the time from one moment on. */
  since(at) {
    const older = this.#samples.findLast((each) => each.at <= at) ?? this.#samples[0];
    return this.#between(older, this.#samples.at(-1));
  }

  #between(older, newer) {
    const found = {};
    for (const [short, name] of Object.entries(NAMES)) {
      const counts = newer?.counts[name] && older.counts[name]
        ? sums(newer.counts[name], older.counts[name], -1) : [];
      for (const [digits, part] of Object.entries(QUANTILES)) {
        found[short + digits] = counts.length ? 1000 * quantile(this.#bounds[name], counts, part) : NaN;
      }
    }
    return found;
  }

  #thin(now) {
    let last = -Infinity;
    this.#samples = this.#samples.filter(({at}) => {
      if (at < now - DENSE && at < last + SPARSE) return false;
      last = at;
      return true;
    });
  }
}
