/**
 * The dashboard. It looks at `/v1/stats` once a second, and the server has summed up what it
 * finds there, so that ten thousand connections are no more work than ten.
 *
 *     api        the server; knows the secret
 *     poller     when to look
 *     recorder   rates made of totals, of the last minutes
 *     tiles, plot, tables    what is shown of them
 *     gate       asks for the secret
 *     publish, subscribe, events    to try it
 *     dom, format    the document, and numbers in it
 */

import {Api} from "./api.js";
import {byId, element, prose, setHidden, setText} from "./dom.js";
import {compact, duration, milliseconds} from "./format.js";
import {Gate} from "./gate.js";
import {Cursor, Plot} from "./plot.js";
import {Poller} from "./poller.js";
import {Publish} from "./publish.js";
import {Recorder} from "./recorder.js";
import {Subscribe} from "./subscribe.js";
import {Connections, Subscriptions, Tables} from "./tables.js";
import {Tiles} from "./tiles.js";

const FAREWELL = 15_000; // milliseconds for which a server that said that it goes is going
const RARELY = 5000; // milliseconds between looks at what is no matter of seconds
const SHOWN = 10;

const PLOTS = [
  {title: "Published", unit: "messages per second", least: 5, format: compact, series: [
    {field: "published", name: "published"}, {field: "unmatched", name: "for nobody"}]},
  {title: "Delivered", unit: "messages per second", least: 5, format: compact, series: [
    {field: "delivered", name: "delivered"}, {field: "dropped", name: "dropped"}]},
  {title: "Loop lag", unit: "milliseconds", least: 5, format: milliseconds, series: [
    {field: "lag", name: "longest in the last second"}]},
];

const STATES = {
  connecting: "connecting…", live: "live", reconnecting: "reconnecting…", draining: "draining",
  locked: "locked", closed: "no secret",
};

const clockNow = () => Date.now() / 1000;

class Dashboard {
  #api = new Api();
  #recorder = new Recorder();
  #cursor = new Cursor();
  #tiles = new Tiles(byId("tiles"), this.#recorder);
  #plots = PLOTS.map((about) => new Plot(byId("plots"), this.#recorder, this.#cursor, about));
  #tables = new Tables();
  #connections = new Connections();
  #subscriptions = new Subscriptions();
  #gate = new Gate(this.#api, (stats) => this.#opened(stats));
  #poller = new Poller(() => this.#api.get("/v1/stats"), {
    taken: (stats) => this.#taken(stats),
    failed: (problem) => this.#failed(problem),
  });
  #subscribe = new Subscribe(this.#api, {
    refused: () => this.#lock("The server asks for the secret again."),
    leaving: () => this.#leave(),
  });
  #stats = null;
  #listed = -RARELY; // when the subscriptions were last asked for
  #drawing = 0;
  #left = -FAREWELL; // when the server said that it goes

  constructor() {
    new Publish(this.#api, () => this.#lock("The server asks for the secret again."));
    setText(byId("host"), location.host);
    byId("forget").addEventListener("click", () => this.#lock());
    // Time goes on where nothing is heard, too, and a gap is to be seen growing.
    setInterval(() => this.#state !== "live" && this.#draw(), 1000);
  }

  start() {
    this.#show("connecting");
    this.#poller.start();
  }

  get #state() {
    return byId("state").dataset.state;
  }

  #show(state) {
    const said = byId("state");
    document.body.classList.toggle("stale", state !== "live" && state !== "draining");
    setHidden(byId("forget"), !this.#api.hasSecret);
    if (said.dataset.state === state && said.textContent === STATES[state]) return;
    said.dataset.state = state;
    setText(said, STATES[state]);
    document.title = `mist · ${STATES[state]}`;
  }

  #opened(stats) {
    this.#taken(stats);
    this.#poller.start();
  }

  #lock(why) {
    this.#poller.stop();
    setHidden(byId("closed"), true);
    this.#subscribe.stop();
    this.#gate.ask(why);
    this.#show("locked");
    this.#note("");
  }

  /** There is no secret to ask for, and without one nobody is told anything here. */
  #close() {
    this.#subscribe.stop();
    setHidden(byId("board"), true);
    setHidden(byId("closed"), false);
    this.#show("closed");
    this.#note("");
  }

  /** The server has said that it goes. It takes no more connections then, so it can't be asked. */
  #leave() {
    this.#left = performance.now();
    this.#show("draining");
    this.#note("The server is going away: its connections end one after the other. This page waits for the next one.");
  }

  get #isLeaving() {
    return performance.now() - this.#left < FAREWELL;
  }

  #taken(stats) {
    this.#stats = stats;
    if (!byId("closed").hidden) {
      setHidden(byId("closed"), true);
      setHidden(byId("board"), false);
    }
    if (this.#recorder.take(stats, clockNow())) this.#left = -FAREWELL; // that is the next one
    this.#draw();
    this.#list();
    if (this.#isLeaving) return;
    this.#show("live");
    this.#note(stats.published ? "" : "Nothing has been published since the start. Try `mist publish demo hello`, or the form below:", "Try it");
  }

  #failed(problem) {
    if (problem.status === 401) {
      this.#lock(this.#api.hasSecret ? "The secret is another one now." : "");
      return;
    }
    if (problem.code === "loopback_only") {
      this.#close(); // and go on asking: the next one may have a secret
      return;
    }
    if (this.#isLeaving) return;
    this.#show("reconnecting");
    this.#note(problem.code === "late"
      ? "The server is there, and doesn't answer: it is very busy, or about to go. This page goes on asking."
      : problem.status === 0
      ? "The server doesn't answer. What is shown is the last that was heard; this page goes on asking."
      : `The server doesn't say what it does: ${problem.message}.`);
  }

  /** Say something above all else; with a way to the forms where `link` names one. */
  #note(text, link = "") {
    const notice = byId("notice");
    setHidden(notice, !text);
    if (notice.dataset.text === text) return;
    notice.dataset.text = text;
    const way = element("a", "", link);
    way.href = "#try";
    notice.replaceChildren(element("p", "", ...prose(text), ...(link ? [" ", way] : [])));
  }

  /** All changes of the document in one go, before the next frame. */
  #draw() {
    if (this.#drawing) return;
    this.#drawing = requestAnimationFrame(() => {
      this.#drawing = 0;
      const now = clockNow();
      const stats = this.#stats;
      if (!stats) return;
      setText(byId("uptime"), duration(stats.uptime));
      setText(byId("version"), stats.version);
      this.#tiles.show(stats);
      this.#tiles.draw(now);
      for (const each of this.#plots) each.draw(now);
      this.#connections.show(stats);
      this.#tables.show(stats, this.#recorder);
      this.#subscribe.history = Boolean(stats.history);
    });
  }

  /** What is no matter of seconds, and is asked for on its own. */
  async #list() {
    if (performance.now() - this.#listed < RARELY) return;
    this.#listed = performance.now();
    // Where there is no answer, that is said elsewhere.
    await Promise.all([
      this.#api.get(`/v1/subscriptions?limit=${SHOWN}`)
        .then((found) => this.#subscriptions.show(found), () => this.#subscriptions.showMissing(this.#stats)),
      this.#api.get(`/v1/connections?limit=${SHOWN}`)
        .then((found) => { this.#connections.some = found; }, () => {}),
    ]);
  }
}

new Dashboard().start();
