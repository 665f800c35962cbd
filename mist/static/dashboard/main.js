/**
 * The dashboard. It polls `/v1/stats` once a second. The server aggregates what is in there, so
 * ten thousand connections are no more work than ten.
 *
 *     api        HTTP requests with the secret
 *     poller     polling with backoff
 *     recorder   time series of the last ten minutes: rates computed from totals
 *     latency    quantiles computed from histograms
 *     tiles, plot, tables, tags    views of them
 *     nodes      the other servers of an engine
 *     connections, connection    all of them, and one in a dialog
 *     tokens, token, create    likewise, and the dialog that makes one
 *     confirm    asks before anything is ended or changed; paging: lists by pages
 *     gate       the sign-in form
 *     publish, subscribe, events    the forms to try it
 *     dom, format, clock    the document, number formats, and the server's time
 */

import {Api} from "./api.js";
import {setServerTime} from "./clock.js";
import {Confirm} from "./confirm.js";
import {ConnectionDialog} from "./connection.js";
import {ConnectionList} from "./connections.js";
import {CreateDialog} from "./create.js";
import {byId, element, prose, setHidden, setText} from "./dom.js";
import {compact, count, duration, fine, milliseconds} from "./format.js";
import {Gate} from "./gate.js";
import {Nodes} from "./nodes.js";
import {Cursor, Plot} from "./plot.js";
import {Poller} from "./poller.js";
import {Publish} from "./publish.js";
import {Recorder} from "./recorder.js";
import {Subscribe} from "./subscribe.js";
import {Connections, Tables} from "./tables.js";
import {Subscriptions, Tags} from "./tags.js";
import {Tiles} from "./tiles.js";
import {TokenDialog} from "./token.js";
import {TokenList} from "./tokens.js";

const DRAIN_TIMEOUT = 15_000; // milliseconds that a server may take to shut down
const LIST_PERIOD = 5000; // milliseconds between requests for the lists
const NODES_PERIOD = 1000; // milliseconds between requests for the nodes

const overall = (recorder, since) => recorder.latencies.since(since);

const PLOTS = [
  {title: "Published", unit: "messages per second", least: 5, format: compact, series: [
    {field: "published", name: "published"}, {field: "unmatched", name: "unmatched"}]},
  {title: "Delivered", unit: "messages per second", least: 5, format: compact, series: [
    {field: "delivered", name: "delivered"}, {field: "dropped", name: "dropped"}]},
  {title: "Connections", unit: "", least: 5, format: count, series: [
    {field: "connections", name: "now"}]},
  {title: "Publish to write", unit: "milliseconds", least: 1, log: true, format: fine, overall, series: [
    {field: "write50", name: "p50", kind: "median"}, {field: "write99", name: "p99", kind: "high"}]},
  {title: "Commit", unit: "milliseconds", least: 1, log: true, format: fine, overall, series: [
    {field: "commit50", name: "p50", kind: "median"}, {field: "commit99", name: "p99", kind: "high"}]},
  {title: "Loop lag", unit: "milliseconds", least: 5, format: milliseconds, series: [
    {field: "lag", name: "longest"}]},
];
const COMMIT = 4; // its place among the plots; without a history it isn't shown

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
  #tags = new Tags();
  #subscriptions = new Subscriptions(this.#api);
  #nodes = new Nodes();
  #confirm = new Confirm(this.#api);
  #dialog = new ConnectionDialog(this.#api, this.#confirm, () => this.#all.refresh());
  #all = new ConnectionList(this.#api, (which) => this.#dialog.open(which));
  #token = new TokenDialog(this.#api, this.#confirm, () => this.#tokens.refresh());
  #create = new CreateDialog(this.#api, this.#confirm, () => this.#tokens.refresh());
  #tokens = new TokenList(this.#api, (which) => this.#token.open(which));
  #gate = new Gate(this.#api, (stats) => this.#opened(stats));
  #poller = new Poller(() => this.#look(), {
    taken: ([stats, history]) => this.#taken(stats, history),
    failed: (problem) => this.#failed(problem),
  });
  #subscribe = new Subscribe(this.#api, {
    refused: () => this.#lock("The server asks for the secret again."),
    draining: () => this.#drain(),
  });
  #stats = null;
  #listed = -LIST_PERIOD; // when the lists were last requested
  #asked = -NODES_PERIOD; // when the nodes were
  #drawing = 0;
  #drainStart = -DRAIN_TIMEOUT; // when the server announced its shutdown

  constructor() {
    new Publish(this.#api, () => this.#lock("The server asks for the secret again."));
    setText(byId("host"), location.host);
    byId("forget").addEventListener("click", () => this.#lock());
    // The plots move on without new data too, so that a gap grows.
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
    const status = byId("state");
    document.body.classList.toggle("stale", state !== "live" && state !== "draining");
    setHidden(byId("forget"), !this.#api.hasSecret);
    if (status.dataset.state === state && status.textContent === STATES[state]) return;
    status.dataset.state = state;
    setText(status, STATES[state]);
    document.title = `mist · ${STATES[state]}`;
  }

  #opened(stats) {
    this.#taken(stats);
    this.#poller.start();
  }

  #lock(why) {
    this.#poller.stop();
    for (const each of [this.#dialog, this.#token, this.#create]) each.close();
    this.#confirm.forget();
    setHidden(byId("closed"), true);
    this.#subscribe.stop();
    this.#gate.ask(why);
    this.#show("locked");
    this.#note("");
  }

  /** The server has no secret, and without one shows its figures on loopback only. */
  #close() {
    this.#subscribe.stop();
    setHidden(byId("board"), true);
    setHidden(byId("closed"), false);
    this.#show("closed");
    this.#note("");
  }

  /** The server is shutting down. It accepts no more connections, so it can't be polled. */
  #drain() {
    this.#drainStart = performance.now();
    this.#show("draining");
    this.#note("The server is shutting down and closes its connections. This page reconnects when it is back.");
  }

  get #isDraining() {
    return performance.now() - this.#drainStart < DRAIN_TIMEOUT;
  }

  /** The figures of now and, where any are missing, those that the server has recorded. */
  async #look() {
    const stats = await this.#api.get("/v1/stats");
    if (!this.#recorder.wantsHistory) return [stats];
    return [stats, await this.#api.get("/v1/stats/history").catch(() => null)];
  }

  #taken(stats, history) {
    this.#stats = stats;
    setServerTime(stats.time);
    if (!byId("closed").hidden) {
      setHidden(byId("closed"), true);
      setHidden(byId("board"), false);
    }
    const now = clockNow();
    if (history !== undefined) this.#recorder.load(history, stats, now);
    if (this.#recorder.take(stats, now)) this.#drainStart = -DRAIN_TIMEOUT; // it has restarted
    this.#draw();
    this.#list();
    this.#subscriptions.refresh(stats);
    this.#askNodes();
    this.#dialog.refresh();
    if (this.#isDraining) return;
    this.#show("live");
    this.#note(stats.published ? "" : "Nothing has been published since the start. Try `mist publish demo hello`, or the form below:", "Try it");
  }

  #failed(problem) {
    if (problem.status === 401) {
      this.#lock(this.#api.hasSecret ? "The secret has changed." : "");
      return;
    }
    if (problem.code === "loopback_only") {
      this.#close(); // polling goes on: after a restart it may have a secret
      return;
    }
    if (this.#isDraining) return;
    this.#show("reconnecting");
    this.#note(problem.code === "timed_out"
      ? "The server accepts connections but does not respond: it is overloaded or shutting down. This page keeps trying."
      : problem.status === 0
      ? "The server does not respond. The figures are the last ones received; this page keeps trying."
      : `The server refused the request: ${problem.message}.`);
  }

  /** Show a notice at the top, with a link to the forms if `link` is given. */
  #note(text, link = "") {
    const notice = byId("notice");
    setHidden(notice, !text);
    if (notice.dataset.text === text) return;
    notice.dataset.text = text;
    const anchor = element("a", "", link);
    anchor.href = "#try";
    notice.replaceChildren(element("p", "", ...prose(text), ...(link ? [" ", anchor] : [])));
  }

  /** Apply all changes to the document in the next animation frame. */
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
      setHidden(this.#plots[COMMIT].node, !stats.latency?.commit);
      for (const each of this.#plots) each.draw(now);
      this.#connections.show(stats);
      this.#tags.show(stats);
      this.#tables.show(stats, this.#recorder);
      this.#subscribe.history = Boolean(stats.history);
    });
  }

  /** Refresh the nodes; nothing where there is no engine. */
  #askNodes() {
    const present = typeof this.#stats.nodes === "number";
    this.#nodes.present = present;
    if (!present || performance.now() - this.#asked < NODES_PERIOD) return;
    this.#asked = performance.now();
    this.#api.get("/v1/nodes")
      .then((found) => this.#nodes.show(found), () => this.#nodes.showMissing());
  }

  /** Refresh the lists, which are requested separately and less often. */
  #list() {
    if (performance.now() - this.#listed < LIST_PERIOD) return;
    this.#listed = performance.now();
    this.#all.follow();
    this.#tokens.follow();
    this.#token.refresh();
  }
}

new Dashboard().start();
