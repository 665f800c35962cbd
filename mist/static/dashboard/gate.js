/** Asks for the secret, where the server does. */

import {byId, setHidden, setText} from "./dom.js";

export class Gate {
  #field = byId("secret");
  #button = byId("gate-form").querySelector("button");

  /**
   * @param api to be given the secret.
   * @param opened called with the stats once it was the right one.
   */
  constructor(api, opened) {
    Object.assign(this, {api, opened});
    byId("gate-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try();
    });
  }

  /** @param {string} why in a sentence; empty at first. */
  ask(why = "") {
    this.api.use(null);
    setHidden(byId("board"), true);
    setHidden(byId("gate"), false);
    setText(byId("gate-said"), why);
    this.#field.focus();
  }

  async #try() {
    this.api.use(this.#field.value);
    this.#button.disabled = true;
    setText(byId("gate-said"), "");
    setText(this.#button, "Looking…");
    try {
      const stats = await this.api.get("/v1/stats");
      this.#field.value = "";
      setHidden(byId("gate"), true);
      setHidden(byId("board"), false);
      this.opened(stats);
    } catch (problem) {
      this.api.use(null);
      setText(byId("gate-said"), problem.status === 401 ? "That is not the secret."
        : problem.status === 0 ? "The server doesn't answer. Try again in a moment." : `${problem.message}.`);
      this.#field.select();
    }
    this.#button.disabled = false;
    setText(this.#button, "Open");
  }
}
