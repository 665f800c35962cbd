/** The sign-in form, shown where the server requires its secret. */

import {byId, setHidden, setText} from "./dom.js";

export class Gate {
  #field = byId("secret");
  #button = byId("gate-form").querySelector("button");

  /**
   * @param api gets the secret.
   * @param opened called with the stats after a successful sign-in.
   */
  constructor(api, opened) {
    Object.assign(this, {api, opened});
    byId("gate-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try();
    });
  }

  /** @param {string} why a sentence for the user; may be empty. */
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
    setText(this.#button, "Signing in…");
    try {
      const stats = await this.api.get("/v1/stats");
      this.#field.value = "";
      setHidden(byId("gate"), true);
      setHidden(byId("board"), false);
      this.opened(stats);
    } catch (problem) {
      this.api.use(null);
      setText(byId("gate-said"), problem.status === 401 ? "That is not the secret."
        : problem.status === 0 ? "The server does not respond. Try again in a moment." : `${problem.message}.`);
      this.#field.select();
    }
    this.#button.disabled = false;
    setText(this.#button, "Open");
  }
}
