/** The publish form. */

import {sentenceOf} from "./api.js";
import {byId, setText} from "./dom.js";
import {count, several} from "./format.js";

const WORDS = {
  401: "The server requires its secret.",
  404: "This server takes no messages over HTTP yet. Use `mist publish` on the command line.",
  413: "The data is larger than the server allows.",
  429: "Too many requests; wait a moment.",
  503: "The history can't be written, so nothing was published. Try again in a moment.",
};

/** Tags as a user writes them, possibly with spaces and superfluous commas. */
export function tagsIn(text) {
  return text.split(",").map((each) => each.trim()).filter(Boolean);
}

/** A problem as a sentence for the user of a form. */
export function wordsFor(problem) {
  return (WORDS[problem.status] ?? sentenceOf(problem)).replaceAll("`", "");
}

export class Publish {
  #button = byId("publish").querySelector("button");

  constructor(api, refused) {
    Object.assign(this, {api, refused});
    byId("publish").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#publish();
    });
  }

  async #publish() {
    if (this.#isBusy) return;
    const message = {tags: tagsIn(byId("publish-tags").value), data: byId("publish-data").value};
    const times = Number(byId("publish-times").value);
    this.#busy(true);
    try {
      const sent = times === 1 ? message : Array.from({length: times}, () => message);
      this.#say(this.#done(await this.api.post("/v1/messages", sent), times));
    } catch (problem) {
      this.#say(wordsFor(problem), true);
      if (problem.status === 401) this.refused();
    }
    this.#busy(false);
  }

  get #isBusy() {
    return this.#button.ariaDisabled === "true";
  }

  // Not `disabled`: a button that is would lose the focus of who just pressed it.
  #busy(isBusy) {
    this.#button.ariaDisabled = String(isBusy);
  }

  #done({id, ids}, times) {
    if (ids) return `Stored ${several(times, "message")}: ids ${count(ids[0])} to ${count(ids[1])}.`;
    if (id !== undefined) return `Stored with id ${count(id)}.`;
    return `Published ${several(times, "message")}. No id: the history is off.`;
  }

  #say(text, isBad = false) {
    const said = byId("publish-said");
    setText(said, text);
    said.classList.toggle("bad", isBad);
  }
}
