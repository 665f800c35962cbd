/**
 * Looks once a second, one look at a time; not while nobody sees the page, and more rarely while
 * nobody answers.
 */

const PERIOD = 1000; // milliseconds
const LONGEST = 5000; // between attempts that fail
const GROWTH = 1.6;

export class Poller {
  #running = false;
  #busy = false;
  #failures = 0;
  #timer = 0;

  /**
   * @param ask returns a promise of what is to be seen.
   * @param {{taken, failed}} heard called with it, or with the error.
   */
  constructor(ask, heard) {
    Object.assign(this, {ask, heard});
    document.addEventListener("visibilitychange", () => this.#look());
    addEventListener("online", () => this.#look());
  }

  start() {
    this.#running = true;
    this.#failures = 0;
    this.#look();
  }

  stop() {
    this.#running = false;
    clearTimeout(this.#timer);
  }

  async #look() {
    clearTimeout(this.#timer);
    if (!this.#running || this.#busy || document.hidden) return;
    this.#busy = true;
    const begun = performance.now();
    const outcome = await this.ask().then((found) => ({found}), (error) => ({error}));
    this.#busy = false;
    if (!this.#running) return;
    const pause = this.#pause(outcome.error);
    const left = pause - (performance.now() - begun);
    this.#timer = setTimeout(() => this.#look(), Math.max(PERIOD / 4, left));
    if (outcome.error) this.heard.failed(outcome.error);
    else this.heard.taken(outcome.found);
  }

  #pause(error) {
    this.#failures = error ? this.#failures + 1 : 0;
    return error ? Math.max(error.pause ?? 0, this.#spread()) : PERIOD;
  }

  // Pages that lost a server at the same moment shan't all come back at the same moment.
  #spread() {
    return Math.min(LONGEST, PERIOD * GROWTH ** this.#failures) * (0.6 + 0.4 * Math.random());
  }
}
