/**
 * Server-Sent Events read by `fetch`, which unlike an EventSource can send a header.
 * https://html.spec.whatwg.org/multipage/server-sent-events.html
 */

const MAX_EVENT = 1 << 24; // characters of an incomplete event

/** Incremental parser: takes chunks of text, returns the events completed by them. */
export class EventReader {
  #rest = "";
  #event = "";
  #data = [];
  #size = 0;
  #id = "";

  /** @returns {{event: string, data: string, id: string}[]} */
  feed(text) {
    const events = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") this.#end(events);
      else this.#take(line);
    }
    if (this.#rest.length + this.#size > MAX_EVENT) throw new Error("an event is too long");
    return events;
  }

  #take(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment: the server's heartbeat
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") {
      this.#event = value;
    } else if (name === "id") {
      this.#id = value;
    } else if (name === "data") {
      this.#data.push(value);
      this.#size += value.length;
    }
  }

  #end(events) {
    if (this.#data.length) {
      events.push({event: this.#event || "message", data: this.#data.join("\n"), id: this.#id});
    }
    this.#event = "";
    this.#data = [];
    this.#size = 0;
  }
}

/** The events of a response, until it ends. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      yield* events.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
