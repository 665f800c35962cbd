/** The dialog that creates a token. Its text is shown once, here, and forgotten when it closes. */

import {sentenceOf} from "./api.js";
import {serverTime} from "./clock.js";
import {byId, onClosed, setHidden, setText} from "./dom.js";
import {tagsOf} from "./token.js";

const LIMITS = ["rate", "bytes", "connections"];

export class CreateDialog {
  #dialog = byId("create");
  #text = byId("create-text");
  #which = null; // as it was opened: `{isAsked}`, whether a token was asked for

  /**
   * @param api requests.
   * @param confirm asks for the secret again.
   * @param created called once a token has been.
   */
  constructor(api, confirm, created) {
    Object.assign(this, {api, confirm, created});
    byId("tokens-create").addEventListener("click", () => this.#open());
    byId("create-close").addEventListener("click", () => this.#dialog.close());
    byId("create-copy").addEventListener("click", () => this.#copy());
    byId("create-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#create();
    });
    onClosed(this.#dialog, () => {
      this.#which = null;
      this.#text.value = "";
      byId("create-form").reset();
    });
  }

  close() {
    this.#dialog.close();
  }

  #open() {
    this.#which = {isAsked: false};
    this.#say("");
    this.#text.value = "";
    byId("create-form").reset();
    setHidden(byId("create-form"), false);
    setHidden(byId("create-made"), true);
    this.#dialog.showModal();
    byId("create-tags").focus();
  }

  #say(text) {
    setText(byId("create-said"), text);
  }

  #body() {
    const days = Number(byId("create-expires").value);
    const user = byId("create-user").value.trim();
    const limits = LIMITS.map((name) => [name, byId(`create-${name}`).value.trim()]);
    return {
      tags: tagsOf(byId("create-tags").value),
      name: byId("create-name").value.trim(),
      expires: days ? Math.round(serverTime()) + 86_400 * days : null,
      attributes: Object.fromEntries([["user", user], ...limits].filter(([, value]) => value)),
    };
  }

  async #create() {
    const which = this.#which;
    if (!which || which.isAsked) return; // a button that is pressed twice
    which.isAsked = true;
    const body = this.#body();
    const certain = await this.confirm.ask({
      title: "Create a token?", text: `It grants ${body.tags.join(", ")}.`, act: "Create", harmless: true,
    });
    if (certain && which === this.#which) {
      const sent = this.api.send("PUT", "/v1/tokens", body);
      const act = await sent.then((made) => () => this.#show(made), (problem) => () => this.#say(sentenceOf(problem)));
      if (which === this.#which) act(); // else it was closed, and may be open for another one
      this.created();
    }
    which.isAsked = false;
  }

  #show({id, token, warning}) {
    setHidden(byId("create-form"), true);
    setHidden(byId("create-made"), false);
    setText(byId("create-id"), id);
    setText(byId("create-copied"), warning ?? "");
    this.#text.value = token;
    this.#text.focus();
    this.#text.select();
  }

  async #copy() {
    let copied = true;
    try {
      await navigator.clipboard.writeText(this.#text.value);
    } catch {
      // A page that came without TLS from another machine has no clipboard of that kind.
      this.#text.focus();
      this.#text.select();
      copied = document.execCommand("copy");
    }
    setText(byId("create-copied"), copied ? "Copied." : "Not copied: select it, and copy it yourself.");
  }
}
