/**
 * Polling once a second, one request at a time; not while the page is hidden, and with backoff
 * while requests fail.
 */

const PERIOD = 1000; // milliseconds
const BACKOFF_CAP = 5000; // milliseconds
const BACKOFF_FACTOR = 1.6;

export class Poller {
  #running = false;
  #busy = false;
  #failures = 0;
  #timer = 0;

  /**
   * @param request returns a promise of the result.
   * @param {{taken, failed}} handlers called with the result, or with the error.
   */
  constructor(request, handlers) {
    Object.assign(this, {request, handlers});
    document.addEventListener("visibilitychange", () => this.#poll());
    addEventListener("online", () => this.#poll());
  }

  start() {
    this.#running = true;
    this.#failures = 0;
    this.#poll();
  }

  stop() {
    this.#running = false;
    clearTimeout(this.#timer);
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (!this.#running || this.#busy || document.hidden) return;
    this.#busy = true;
    const start = performance.now();
    const outcome = await this.request().then((found) => ({found}), (error) => ({error}));
    this.#busy = false;
    if (!this.#running) return;
    const pause = this.#pause(outcome.error);
    const left = pause - (performance.now() - start);
    this.#timer = setTimeout(() => this.#poll(), Math.max(PERIOD / 4, left));
    if (outcome.error) this.handlers.failed(outcome.error);
    else this.handlers.taken(outcome.found);
  }

  #pause(error) {
    this.#failures = error ? this.#failures + 1 : 0;
    return error ? Math.max(error.pause ?? 0, this.#backoff()) : PERIOD;
  }

  // With jitter, so that pages that lost a server at the same moment don't return together.
  #backoff() {
    return Math.min(BACKOFF_CAP, PERIOD * BACKOFF_FACTOR ** this.#failures) * (0.6 + 0.4 * Math.random());
  }
}
