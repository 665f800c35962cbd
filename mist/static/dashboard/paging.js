/** A list that the server gives page by page: a search, two buttons, and where the page begins. */

import {byId, setHidden, setText} from "./dom.js";
import {count} from "./format.js";

const PAUSE = 250; // milliseconds after the last key until a search is sent

export class Paging {
  #starts = []; // of the pages before this one; undefined is the first
  #after;
  #next = null; // where the next page begins; null until an answer has said it
  #timer = 0;
  #asked = 0; // requests so far, so that a late answer is not taken for the newest
  #size;
  #isSeen = false;
  #isOld = false; // it was to be requested again while nobody saw it

  /**
   * @param {string} id of the list: `ID-search`, `ID-back`, `ID-on` and `ID-count` belong to it.
   * @param {number} size of a page.
   * @param request called with the query and the page's size; a promise of `{next, count, …}`.
   * @param {{rows, taken, failed}} handlers rows: what of that is listed. The others are called with
   *     what came, or the error.
   */
  constructor(id, size, request, handlers) {
    Object.assign(this, {id, request, handlers});
    this.#size = size;
    // A server looks through all that it has for a page, so none is asked for that nobody sees.
    new IntersectionObserver((all) => {
      this.#isSeen = all.at(-1).isIntersecting;
      if (this.#isSeen && this.#isOld) this.refresh();
    }).observe(byId(`${id}-form`).parentElement);
    byId(`${id}-search`).addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.restart(), PAUSE);
    });
    byId(`${id}-form`).addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(this.#timer);
      this.restart();
    });
    byId(`${id}-on`).addEventListener("click", () => {
      if (this.#next === null) return;
      this.#starts.push(this.#after);
      this.#turnTo(this.#next);
    });
    byId(`${id}-back`).addEventListener("click", () => {
      if (this.#starts.length > 0) this.#turnTo(this.#starts.pop());
    });
  }

  /** The text that is searched for. */
  get search() {
    return byId(`${this.id}-search`).value.trim();
  }

  /** Begin with the first page. */
  restart() {
    this.#starts = [];
    return this.#turnTo(undefined);
  }

  /** Request the page again, once it is on the screen, or if it was never requested. */
  follow() {
    if (this.#isSeen || !this.#asked) this.refresh();
    else this.#isOld = true;
  }

  /** Request the page again. */
  async refresh() {
    const number = ++this.#asked;
    this.#isOld = false;
    const query = new URLSearchParams({limit: this.#size});
    if (this.search) query.set("search", this.search);
    if (this.#after !== undefined) query.set("after", this.#after);
    let found;
    try {
      found = await this.request(query);
    } catch (problem) {
      if (number === this.#asked) this.handlers.failed(problem);
      return;
    }
    if (number !== this.#asked) return;
    const rows = this.handlers.rows(found).length;
    if (rows === 0 && this.#starts.length > 0) {
      this.#after = this.#starts.pop(); // all of this page is gone: the one before is the last now
      await this.refresh();
      return;
    }
    this.#next = found.next;
    this.#show(found.count, rows);
    this.handlers.taken(found);
  }

  #turnTo(after) {
    this.#after = after;
    this.#next = null;
    return this.refresh();
  }

  #show(all, rows) {
    const page = this.#starts.length;
    // What lies before may have become fewer or more since its pages were seen.
    const before = this.#next === null ? all - rows : Math.min(page * this.#size, all - rows);
    const [first, last] = [before + 1, before + rows];
    const several = this.#next !== null || page > 0;
    setHidden(byId(`${this.id}-pages`), !several);
    // Not `disabled`: a button that is would lose the focus of who just pressed it.
    byId(`${this.id}-back`).setAttribute("aria-disabled", String(page === 0));
    byId(`${this.id}-on`).setAttribute("aria-disabled", String(this.#next === null));
    const found = this.search ? " found" : "";
    setText(byId(`${this.id}-count`), several
      ? `${count(first)} – ${count(last)} of ${count(all)}${found}` : `${count(all)}${found}`);
  }
}
