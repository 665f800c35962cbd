/**
 * The dialog before what can't be undone, and before what changes tokens: where the server has a
 * secret it is asked for again, unless it was in the last five minutes. When that was is kept in
 * this object only; the secret isn't kept at all.
 */

import {byId, onClosed, setHidden, setText} from "./dom.js";

const CONFIRMED = 300_000; // milliseconds for which a secret that was given again is enough

export class Confirm {
  #dialog = byId("confirm");
  #field = byId("confirm-secret");
  #button = byId("confirm-do");
  #until = -1;
  #settle = null; // of the question that is open

  constructor(api) {
    this.api = api;
    byId("confirm-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#answer();
    });
    byId("confirm-cancel").addEventListener("click", () => this.#dialog.close());
    onClosed(this.#dialog, () => {
      this.#field.value = "";
      this.#settle?.(false);
      this.#settle = null;
    });
  }

  get #isFresh() {
    return !this.api.hasSecret || performance.now() < this.#until;
  }

  /** Ask for the secret next time, and close the question that is open. */
  forget() {
    this.#until = -1;
    this.#dialog.close();
  }

  /**
   * Ask the user. Resolves to whether to go on.
   *
   * @param {{title: string, text: string, act: string, harmless?: boolean}} about act: what the
   *     button says. harmless: nothing is lost by it, so that it needs no question of its own.
   */
  async ask({title, text, act, harmless = false}) {
    if (harmless && this.#isFresh) return true;
    this.#settle?.(false);
    setText(byId("confirm-title"), title);
    setText(byId("confirm-text"), text);
    setText(this.#button, act);
    this.#button.classList.toggle("danger", !harmless);
    setText(byId("confirm-said"), "");
    this.#field.value = "";
    setHidden(byId("confirm-asked"), this.#isFresh);
    this.#field.required = !this.#isFresh;
    this.#dialog.showModal();
    if (!this.#isFresh) this.#field.focus();
    else byId("confirm-cancel").focus();
    return new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  async #answer() {
    const said = byId("confirm-said");
    const settle = this.#settle;
    if (!byId("confirm-asked").hidden) {
      this.#button.disabled = true;
      setText(said, "");
      const problem = await this.api.check(this.#field.value).then(() => null, (error) => error);
      this.#button.disabled = false;
      if (settle === null || settle !== this.#settle) return; // closed meanwhile
      if (problem) {
        setText(said, problem.status === 401 ? "That is not the secret."
          : problem.status === 0 ? "The server does not respond. Try again in a moment." : `${problem.message}.`);
        this.#field.select();
        return;
      }
      this.#until = performance.now() + CONFIRMED;
    }
    this.#settle = null;
    this.#dialog.close();
    settle?.(true);
  }
}
