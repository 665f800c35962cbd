/**
 * The subscribe form and the messages received. It reads an event stream and reconnects with
 * backoff; with a history it resumes where it was.
 */

import {byId, element, setHidden, setText} from "./dom.js";
import {eventsOf} from "./events.js";
import {clock, count, several} from "./format.js";
import {tagsIn, wordsFor} from "./publish.js";

const MAX_ROWS = 100;
const MAX_SHOWN = 2000; // characters of one message
const BACKOFF_CAP = 15_000; // milliseconds between attempts
const FINAL = new Set([400, 401, 403, 404, 409]); // statuses after which trying again can't help

const NO_STREAMS = "This server has no streams over HTTP yet. On the command line: mist subscribe";

/** An event stream that reconnects. */
class ReconnectingStream {
  #stopping = new AbortController();
  #last = ""; // id of the last event, in the server's form
  #failures = 0;

  /** @param {{state, message, gap, draining, stopped}} handlers called when it happens. */
  constructor(api, tags, since, handlers) {
    Object.assign(this, {api, tags, since, handlers});
    this.#run();
  }

  stop() {
    this.#stopping.abort();
  }

  async #run() {
    const {signal} = this.#stopping;
    while (!signal.aborted) {
      const problem = await this.#listen(signal);
      if (signal.aborted) return;
      if (problem?.code === "draining") this.handlers.draining();
      if (problem && FINAL.has(problem.status)) {
        this.handlers.stopped(problem);
        return;
      }
      this.handlers.state("connection lost, reconnecting…");
      this.#failures += 1;
      const pause = Math.min(BACKOFF_CAP, 500 * 2 ** this.#failures) * Math.random();
      await new Promise((resolve) => setTimeout(resolve, Math.max(pause, problem?.pause ?? 0)));
    }
  }

  /** Read until the stream ends. Returns the problem, if there was one. */
  async #listen(signal) {
    const query = new URLSearchParams({tags: this.tags.join(",")});
    const headers = {Accept: "text/event-stream"};
    if (this.#last) headers["Last-Event-ID"] = this.#last;
    else if (this.since) query.set("since", this.since);
    try {
      const response = await this.api.stream(`/v1/stream?${query}`, headers, signal);
      for await (const event of eventsOf(response)) {
        if (signal.aborted) return null;
        const problem = this.#take(event);
        if (problem) return problem;
      }
      return null;
    } catch (error) {
      return error;
    }
  }

  #take({event, data, id}) {
    const detail = JSON.parse(data);
    if (event === "message") {
      if (id) this.#last = id;
      this.handlers.message(detail);
    } else if (event === "ready") {
      // To resume from, should the stream be lost before the first message.
      if (!this.#last && !this.since && detail.epoch) this.#last = `${detail.epoch}:${detail.id}`;
      const missed = this.#failures > 0 && !detail.recovered;
      this.#failures = 0;
      this.handlers.state("listening");
      if (missed) this.handlers.gap();
    } else if (event === "gap") {
      this.handlers.gap();
    } else if (event === "revoked") {
      return {status: 403, message: "the token no longer allows these tags"};
    } else if (event === "end") {
      const status = detail.code === 4401 ? 401 : detail.code === 4403 ? 403 : 0;
      return {status, code: detail.code === 1001 ? "draining" : "", message: String(detail.reason)};
    }
    return null;
  }
}

function row({keys, data, data64, id}) {
  const text = data ?? `${data64} (base64: it is not UTF-8)`;
  const more = text.length - MAX_SHOWN;
  const shown = more > 0 ? `${text.slice(0, MAX_SHOWN)}… ${several(more, "character")} more` : text;
  return element("li", "message",
    element("span", "meta", element("time", "", clock(new Date())),
      id === undefined ? "" : element("span", "id", `#${id}`)),
    element("span", "tags", ...keys.map((each) => element("span", "tag", each))),
    element("pre", "", shown));
}

export class Subscribe {
  #listening = null;
  #waiting = []; // rows for the next animation frame, oldest first
  #count = 0;
  #list = byId("messages");

  /**
   * @param api the server.
   * @param {{refused, draining}} handlers called when the server requires its secret, or shuts
   *   down.
   */
  constructor(api, handlers) {
    Object.assign(this, {api, handlers});
    byId("subscribe").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#listening) this.stop();
      else this.#start();
    });
    byId("subscribe-clear").addEventListener("click", () => {
      byId("subscribe-button").focus(); // it hides, and would lose the focus
      this.#clear();
    });
  }

  /** Whether the server keeps a history; without one, there is nothing to begin from. */
  set history(has) {
    const select = byId("subscribe-since");
    if (select.disabled === !has) return;
    select.disabled = !has;
    if (!has) select.value = "";
  }

  stop() {
    this.#listening?.stop();
    this.#listening = null;
    this.#show("");
  }

  #start() {
    const tags = tagsIn(byId("subscribe-tags").value);
    if (!tags.length) {
      this.#show("Give a tag.", true);
      return;
    }
    this.#clear();
    this.#show("asking…");
    this.#listening = new ReconnectingStream(this.api, tags, byId("subscribe-since").value, {
      state: (text) => this.#show(text === "listening" ? `listening to ${tags.join(",")}` : text),
      message: (message) => this.#later(row(message)),
      gap: () => this.#later(element("li", "gap", "Messages are missing here: they were published while this page was away, and are not kept.")),
      draining: () => this.handlers.draining(),
      stopped: (problem) => this.#stopped(problem),
    });
    this.#show("asking…");
  }

  #stopped(problem) {
    this.#listening = null;
    this.#show(problem.status === 404 ? NO_STREAMS : wordsFor(problem), true);
    if (problem.status === 401) this.handlers.refused();
  }

  #show(text, isBad = false) {
    const state = byId("subscribe-state");
    setText(state, text);
    state.classList.toggle("bad", isBad);
    state.classList.toggle("good", text.startsWith("listening"));
    setText(byId("subscribe-button"), this.#listening ? "Stop" : "Subscribe");
    byId("subscribe-button").classList.toggle("main", !this.#listening);
  }

  // Once a frame for any number of messages; a hidden page draws none and keeps the newest.
  #later(made) {
    if (this.#waiting.push(made) === 1) requestAnimationFrame(() => this.#draw());
    if (this.#waiting.length > MAX_ROWS) this.#waiting.shift();
    if (made.className === "message") this.#count += 1;
  }

  #draw() {
    this.#list.prepend(...this.#waiting.reverse());
    this.#waiting = [];
    while (this.#list.children.length > MAX_ROWS) this.#list.lastChild.remove();
    const none = this.#list.children.length === 0;
    setHidden(this.#list, none);
    setHidden(byId("messages-empty"), !none);
    setHidden(byId("subscribe-clear"), none);
    setText(byId("subscribe-clear"), `Clear ${count(this.#count)}`);
  }

  #clear() {
    this.#count = 0;
    this.#waiting = [];
    this.#list.replaceChildren();
    this.#draw();
  }
}
