/** One token in a dialog: what is known of it, what it grants, and its end. */

import {sentenceOf} from "./api.js";
import {byId, element, keepFocus, onClosed, pair, Rows, setText} from "./dom.js";
import {date, textOf} from "./format.js";
import {expiry} from "./tokens.js";

/** Tags in a field, separated by commas. */
export const tagsOf = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);

export class TokenDialog {
  #dialog = byId("token");
  #field = byId("token-tags");
  #pairs = new Rows(byId("token-pairs"), 40, pair);
  #which = null; // as it was opened
  #token = null; // as it was last seen
  #changes = 0; // made here so far, so that an answer from before one is not shown after it
  #isGone = false;

  /**
   * @param api requests.
   * @param confirm asks before anything is changed.
   * @param changed called once it has been.
   */
  constructor(api, confirm, changed) {
    Object.assign(this, {api, confirm, changed});
    byId("token-close").addEventListener("click", () => this.#dialog.close());
    byId("token-revoke").addEventListener("click", () => this.#revoke());
    byId("token-ungrant").addEventListener("click", () => this.#ungrant());
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#grant();
    });
    onClosed(this.#dialog, () => {
      this.#which = null;
      keepFocus("tokens-list");
    });
  }

  /** @param which as a list has it. */
  open(which) {
    this.#which = which;
    this.#token = null;
    this.#field.value = "";
    this.#isGone = false;
    this.#enable(true);
    this.#say("");
    this.#show(which);
    this.#dialog.showModal();
    return this.refresh();
  }

  /** Request it again, if it is open: others may have changed it. */
  async refresh() {
    const [which, changes] = [this.#which, this.#changes];
    if (!which || this.#isGone) return;
    const isOld = () => which !== this.#which || changes !== this.#changes;
    try {
      const token = await this.api.get(`/v1/tokens/${which.id}`);
      if (!isOld()) this.#show(token);
    } catch (problem) {
      if (!isOld() && problem.status === 404) this.#failed(problem);
    }
  }

  close() {
    this.#dialog.close();
  }

  get #name() {
    return this.#token.name || this.#token.id;
  }

  #show(token) {
    const isSame = String(token.tags) === String(this.#token?.tags); // leave where it is scrolled to
    this.#token = token;
    setText(byId("token-title"), this.#name);
    const tags = token.tags.map((each) => element("li", "tag", each));
    if (!isSame) byId("token-granted").replaceChildren(...(tags.length ? tags : [element("li", "soft", "nothing")]));
    this.#pairs.show([
      ["Id", token.id],
      ["Created", date(new Date(1000 * token.created))],
      ["Expires", expiry(token.expires)[1]],
      ...Object.entries(token.attributes).map(([name, value]) => [name, textOf(value)]),
    ]);
  }

  #enable(enabled) {
    const parts = ["token-tags", "token-revoke", "token-grant", "token-ungrant"].map(byId);
    if (!enabled && parts.includes(document.activeElement)) byId("token-close").focus();
    for (const each of parts) each.disabled = !enabled;
  }

  #say(text, wrong = false) {
    setText(byId("token-said"), text);
    byId("token-said").classList.toggle("bad", wrong);
  }

  async #grant() {
    const tags = tagsOf(this.#field.value);
    if (!tags.length) return;
    await this.#change({add: tags}, {
      title: `Grant more to ${this.#name}?`,
      text: `It may then subscribe to, or publish, ${tags.join(", ")}.`,
      act: "Grant",
      harmless: true,
    }, "Granted.");
  }

  async #ungrant() {
    const tags = tagsOf(this.#field.value);
    if (!tags.length) {
      this.#say("Which tags? Type them first.", true);
      this.#field.focus();
      return;
    }
    await this.#change({remove: tags}, {
      title: `Take tags from ${this.#name}?`,
      text: `${tags.join(", ")}: subscriptions that it no longer allows end at once.`,
      act: "Take away",
    }, "Taken away.");
  }

  async #change(body, question, done) {
    const which = this.#which;
    if (!(await this.confirm.ask(question)) || which !== this.#which) return;
    await this.#send("PATCH", body, (token) => {
      this.#field.value = "";
      this.#show(token);
      this.#say(done);
    }, this.#field);
  }

  async #revoke() {
    const which = this.#which;
    const certain = await this.confirm.ask({
      title: `Revoke ${this.#name}?`,
      text: "Its sessions end at once, and it is forgotten: it can't be taken back.",
      act: "Revoke",
    });
    if (!certain || which !== this.#which) return;
    await this.#send("DELETE", undefined, () => {
      this.#isGone = true;
      this.#enable(false);
      this.#say("Revoked.");
    }, byId("token-close"));
  }

  /** Change it. What comes of that is shown where it is still open: another one may be by then. */
  async #send(method, body, done, next) {
    const which = this.#which;
    const sent = this.api.send(method, `/v1/tokens/${which.id}`, body);
    const act = await sent.then((token) => () => done(token), (problem) => () => this.#failed(problem));
    if (which === this.#which) {
      this.#changes += 1;
      act();
      next.focus();
    }
    this.changed();
  }

  #failed(problem) {
    if (problem.status === 404) {
      this.#isGone = true;
      this.#enable(false);
      this.#say("This token has been revoked.", true);
    } else {
      this.#say(sentenceOf(problem), true);
    }
  }
}
