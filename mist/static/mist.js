/**
 * mist for browsers, workers and Node: subscriptions and publishes that outlive connections.
 *
 *     import {connect} from "/mist.js";
 *     const client = connect("https://example.org", {getToken});
 *     const orders = client.subscribe(["order", "eu"], ({data}) => show(data));
 *     const {id} = await client.publish(["order", "eu", "paid"], "17");
 *
 * It is one file without dependencies or a build step, so that a page can import it as it is, and
 * therefore longer than a module should be. Its parts, each knowing only those above it:
 *
 *     DeliveryQueue      calls handlers in time slices, so that the page can draw in between
 *     SubscriptionTable  which tag sets have listeners, and up to which message each was served
 *     PublishQueue       what is to be published, until the server has answered
 *     PresenceTable      who is present where, as far as it is watched
 *     transports         WebSocket, Server-Sent Events by fetch, long polling: one contract
 *     TransportFallback  which transport to try, best first, and when to try a better one again
 *     Client             reconnects with backoff, and is the API
 *
 * Recovery, where the server has a history: a message's id is its position there. Each listener
 * remembers the highest id it was given and takes no message twice, so a replay may overlap. Live
 * listeners share a position too: the server sends in one order, so an id that arrived for one
 * says that the others miss nothing below it. On a new connection they are resumed as one, from
 * there. Where some of it is gone, a "gap" event says so.
 *
 * A publish has an idempotency key. One that was not answered is sent again with it, on whatever
 * connection comes next, and the server publishes it once.
 *
 * Times are in seconds. Message ids are below 2**53, so numbers hold them.
 */

/** Of this file, and of the server that it comes from. */
export const version = "0.1.0";

const HEARTBEAT = 15; // between checks that a WebSocket is alive
const REPLY_TIMEOUT = 30; // a connection without a reply for so long is dead
const PROBE_TIMEOUT = 5; // the same after a hint: the laptop woke up, the network is back
const FROZEN_LAG = 5; // a timer that fires so much too late means that the page was frozen
const STREAM_TIMEOUT = 45; // the server writes a comment every 15 s
const POLL_TIMEOUT = 25; // how long the server may hold a long poll
const HEALTHY_AFTER = 5; // a connection that lasted so long counts as healthy
const MAX_SHORT_LIVED = 3; // in a row, before another transport is tried
const TIME_SLICE = 0.008; // for handlers in one turn of the event loop: half a frame
const MAX_TAG_SETS = 500; // in one request; the server takes 1,000
const MAX_FRAME = 40_000; // characters of a frame, of up to 3 bytes; the server takes 128 KiB
const MAX_URL = 12_000; // characters; a server takes 16 KiB of headers
const MAX_EVENT = 1 << 25; // characters of an event; a message of 1 MiB takes at most a fifth
const MAX_QUEUED = 1 << 26; // characters of data waiting for handlers
const MAX_CACHED_MATCHES = 4096; // tag sets
const MAX_UNANSWERED = 1000; // publishes
const MAX_PUBLISH_FRAME = 120_000; // bytes of one; what is longer goes over HTTP
const PUBLISH_TIMEOUT = 30; // by default
const LONGEST_PAUSE = 5; // that the server asks for and a request waits out by itself
const PAUSED_ATTEMPTS = 4; // of one request; then the connection ends, and the next one waits longer
const POLL_PRESENCE = 5; // between two questions, where no stream works
const REPEAT_AFTER = 5; // at least, what a WebSocket was refused for a while is asked for again
const RETRY_PUBLISH = 1; // after the server was unable to, on a connection that goes on
const RENEW_AFTER = 0.8; // of a JWT's life, another token is asked for
const LONGEST_TIMER = 2 ** 31 - 1; // ms; a longer one would come at once
const TRANSPORTS = ["websocket", "sse", "polling"]; // best first

/** An error of the client. `code` is stable. */
export class MistError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {object} [more] `closeCode`, `cause`
   */
  constructor(code, message, {closeCode = null, cause} = {}) {
    super(message, cause === undefined ? undefined : {cause});
    this.name = "MistError";
    this.code = code;
    this.closeCode = closeCode;
  }
}

/**
 * Why a connection ended or could not be made.
 *
 * final: another attempt can't help. spread: other clients lost theirs at the same moment, so
 * reconnect with jitter. pause: seconds that the server asks for. unusable: this transport can't be
 * used here, whatever the state of the network. refused: the server won't do what was asked for.
 */
class Failure extends MistError {
  constructor(code, message, {final, spread, pause = 0, unusable, refused, ...more} = {}) {
    super(code, message, more);
    Object.assign(this, {final: !!final, spread: !!spread, pause, unusable: !!unusable});
    this.refused = !!refused;
  }
}

const lost = (message, more) => new Failure("connection_lost", message, more);

/** The failure for whatever was thrown: `getToken` may reject with a text, or with nothing. */
function failureOf(error) {
  if (error instanceof Failure) return error;
  return lost(error?.message || String(error || "getToken failed"), {cause: error});
}

// WebSocket close codes after which reconnecting can't help (RFC 6455, 7.4; 44xx as in HTTP).
const FINAL_CODES = {
  1002: "protocol_violation",
  1007: "protocol_violation",
  1009: "protocol_violation",
  4400: "bad_request",
  4401: "unauthorized",
  4403: "origin_not_allowed",
};
const TEMPORARY_CODES = {
  1001: "going_away",
  1013: "registry_unavailable",
  4410: "session_ended",
  4408: "timed_out",
  4429: "too_many_requests",
};

/** The failure for a close code. Event streams end with the same codes. */
function closeFailure(closeCode, reason) {
  const message = `${reason || "closed"} (${closeCode})`;
  if (closeCode in FINAL_CODES) {
    return new Failure(FINAL_CODES[closeCode], message, {closeCode, final: true});
  }
  const code = TEMPORARY_CODES[closeCode] ?? "connection_lost";
  return new Failure(code, message, {closeCode, spread: code !== "connection_lost"});
}

// Error texts of the WebSocket protocol, as HTTP's error codes.
const REFUSAL_CODES = {
  "History is off": "history_off",
  "History is unavailable": "history_unavailable",
  "Invalid position": "invalid_position",
  "Latest values are off": "latest_off",
  "Presence is off for these tags": "presence_off",
  "Registry is unavailable": "registry_unavailable",
  "Too many presence watches": "too_many_watches",
  "Too many requests": "too_many_requests",
  "Too many subscriptions": "too_many_subscriptions",
  "not granted by the token": "not_granted",
  "publishing is not allowed over websockets": "not_granted",
  "that key was used for another message": "idempotency_conflict",
};

// What passes by itself: a subscription is asked for again.
const UNAVAILABLE = new Set(["history_unavailable", "registry_unavailable", "too_many_requests"]);

const now = () => performance.now() / 1000;
const after = (seconds, act) => setTimeout(act, Math.min(1000 * seconds, LONGEST_TIMER));

/** Yield to the event loop. A timer would be throttled in hidden pages. */
function nextTurn() {
  return new Promise((resolve) => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** A promise with its resolve and reject. A rejection without a handler is no error. */
function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, {resolve, reject}));
  made.promise.catch(() => {});
  return made;
}

/** The promise's value; rejects with `failure` after a timeout. */
async function withTimeout(seconds, promise, failure) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = after(seconds, () => reject(failure));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Report an error without a listener as an uncaught one. */
function reportUncaught(error) {
  if (globalThis.reportError) globalThis.reportError(error);
  else console.error(error);
}

// The delivery queue

/**
 * Received messages waiting for their handlers, in order, with backpressure. Handlers run at once,
 * but for no longer than a slice of each turn of the event loop, so that the page can draw and
 * react. Timing a single run over the queue would not do: a browser delivers hundreds of messages
 * in one turn, each after the one before was handled.
 */
class DeliveryQueue {
  #items = [];
  #next = 0;
  #messages = 0; // of the items; the others are no more than there are subscriptions
  #weight = 0;
  #running = false;
  #spent = 0; // seconds in handlers, since the turn began
  #turn = null; // resolves with the next turn
  #waiting = []; // tasks that wait for congestion to end

  /** @param {number} limit messages; above it, the connection that fills it has to stop. */
  constructor(limit) {
    this.limit = limit;
  }

  /** Whether it holds too much. */
  get full() {
    return this.#messages > this.limit || this.#weight > MAX_QUEUED;
  }

  /** The high-water mark: whether those who fill it and can wait should. */
  get congested() {
    return this.#messages * 4 > this.limit || this.#weight * 4 > MAX_QUEUED;
  }

  /** @param act must not throw; `weight` is in characters, of a message; null for anything else. */
  push(act, weight = null) {
    this.#items.push({act, weight});
    this.#count(1, weight);
    if (this.#running) return;
    this.#running = true;
    queueMicrotask(() => this.#run());
  }

  /** Wait until it is not congested. */
  async waitUncongested() {
    while (this.congested) await new Promise((resolve) => this.#waiting.push(resolve));
  }

  async #run() {
    while (this.#next < this.#items.length) {
      if (this.#spent >= TIME_SLICE) {
        this.#compact();
        await this.#turn;
        continue;
      }
      const {act, weight} = this.#items[this.#next];
      this.#items[this.#next++] = undefined;
      this.#count(-1, weight);
      const begun = now();
      act();
      this.#spend(now() - begun);
    }
    this.#running = false;
    this.#compact();
  }

  #count(sign, weight) {
    if (weight === null) return;
    this.#messages += sign;
    this.#weight += sign * weight;
  }

  #spend(seconds) {
    this.#spent += seconds;
    if (this.#spent === 0) return; // too little for the clock's resolution
    this.#turn ??= nextTurn().then(() => {
      this.#turn = null;
      this.#spent = 0;
    });
  }

  #compact() {
    // Only where it pays: removing the front copies the rest.
    if (this.#next * 2 >= this.#items.length) {
      this.#items.splice(0, this.#next);
      this.#next = 0;
    }
    if (!this.congested) this.#waiting.splice(0).forEach((each) => each());
  }
}

// The subscription table

const INACTIVE = 0; // not known to the server
const PENDING = 1; // asked for; what arrives is still for other listeners
const REPLAYING = 2; // messages come, old ones first
const LIVE = 3;

const historyOff = () => new MistError("history_off", "History is off");

/** The position of a listener that asks for no old messages. */
const FROM_NOW = Symbol("from now on");

/** A handler, and up to where it has been given messages. */
class Listener {
  seen = null; // highest id given to it; null without a position
  epoch = null; // the log that this id belongs to
  stage = INACTIVE;
  settled = false; // was live once
  awaited = false; // the program has asked for `ready`
  unsubscribed = false;
  lastHandled = null; // position of the last message that its handler was called with
  ready = deferred();

  constructor(tags, handler, since) {
    Object.assign(this, {tags, handler, since});
    this.key = tags.join(",");
  }
}

/** Whether a message with tags `keys` matches a subscription to `tags`. */
function matches(keys, tags) {
  return tags.every((tag) => keys.includes(tag));
}

/** The message object that handlers get. */
function message({keys, data, data64, id}) {
  if (data64 === undefined) return {keys, data, id};
  return {keys, bytes: Uint8Array.from(atob(data64), (it) => it.charCodeAt(0)), id};
}

/**
 * A subscribe request: some listeners, all from the same position.
 *
 * since: an id, -N, `{epoch, id}`, `{latest}`, FROM_NOW; undefined where the server keeps no history.
 */
class SubscribeRequest {
  constructor(since, listeners = []) {
    this.since = since;
    this.listeners = listeners;
  }

  /** The distinct tag sets. */
  get tagSets() {
    return [...new Map(this.listeners.map((each) => [each.key, each.tags])).values()];
  }

  /** One request for each tag set, to find out which of them was refused. */
  split() {
    const parts = new Map();
    for (const each of this.listeners) {
      if (!parts.has(each.key)) parts.set(each.key, new SubscribeRequest(this.since));
      parts.get(each.key).listeners.push(each);
    }
    return [...parts.values()];
  }
}

/**
 * The subscription table: which tag sets have listeners, and up to where each was served.
 * Outlives connections.
 *
 * history: whether the server has one; null while unknown. epoch: the log that positions are in.
 */
class SubscriptionTable {
  history = null;
  epoch = null;
  #newest = 0; // live listeners have all their messages up to here
  #end = 0; // up to here a stream brings what is old; Infinity while nobody knows
  #entries = new Map(); // tag sets by key, as sets of listeners
  #matches = new Map(); // by a message's keys, listeners

  /**
   * @param {DeliveryQueue} queue
   * @param notify `live(listener)`, `gap(listeners, reason)`, `revoked(listeners)`,
   *   `refused(listener, error)`, `deliver(listener, message)`
   */
  constructor(queue, notify) {
    this.queue = queue;
    this.notify = notify;
  }

  get listeners() {
    return [...this.#entries.values()].flatMap((each) => [...each]);
  }

  /** The distinct tag sets of all listeners. */
  get tagSets() {
    return new SubscribeRequest(null, this.listeners).tagSets;
  }

  /** Whether a listener is not subscribed yet. */
  get waiting() {
    return this.listeners.some((each) => each.stage === INACTIVE);
  }

  has(tags) {
    return this.#entries.has(tags.join(","));
  }

  add(listener) {
    if (this.history === false && listener.since !== undefined) {
      queueMicrotask(() => this.notify.refused(listener, historyOff()));
      return;
    }
    const entry = this.#entries.get(listener.key) ?? new Set();
    this.#entries.set(listener.key, entry);
    const isLive = [...entry].some((each) => each.stage === LIVE);
    entry.add(listener);
    this.#matches.clear();
    if (!isLive || listener.since !== undefined || this.#end === Infinity) return;
    // The server sends these messages already, perhaps old ones for others yet.
    listener.seen = this.history ? Math.max(this.#newest, this.#end) : null;
    listener.epoch = this.epoch;
    this.#goLive(listener);
  }

  /** Returns whether these tags have no listener any more. */
  remove(listener) {
    const entry = this.#entries.get(listener.key);
    if (!entry?.delete(listener)) return false;
    this.#matches.clear();
    return entry.size === 0 && this.#entries.delete(listener.key);
  }

  // subscribing

  /** The subscribe requests for all inactive listeners, as few as possible. */
  requests() {
    const found = new Map();
    for (const each of this.listeners) {
      if (each.stage !== INACTIVE) continue;
      const since = this.#position(each);
      if (since === undefined && each.since !== undefined && !each.settled) {
        this.refuse(each, historyOff());
        continue;
      }
      each.stage = PENDING;
      // The last N of each tag set are not the last N of all, nor are the latest values.
      const isLast = typeof since === "number" && since < 0;
      const own = isLast || since?.latest !== undefined ? each.key : "";
      const key = JSON.stringify([typeof since, since, own]);
      if (!found.has(key)) found.set(key, new SubscribeRequest(since));
      found.get(key).listeners.push(each);
    }
    return [...found.values()].flatMap(chunked);
  }

  #position(listener) {
    if (this.history === false) return undefined;
    if (listener.seen !== null) return {epoch: listener.epoch, id: listener.seen};
    return listener.since === undefined || listener.settled ? FROM_NOW : listener.since;
  }

  /** The connection is gone. */
  disconnected() {
    for (const each of this.listeners) {
      if (each.stage === LIVE && each.seen !== null) each.seen = Math.max(each.seen, this.#newest);
      each.stage = INACTIVE;
    }
    this.#newest = 0; // the next server's log may have been restored to an earlier state
    this.#end = 0;
  }

  // replies and events of the server

  /** A request was answered and its replay begins. `recovered`: nothing of it is missing. */
  replayStarted({since, listeners}, {epoch, id, recovered}) {
    this.#setEpoch(epoch);
    for (const each of listeners) {
      each.seen = startPosition(each.seen, since, epoch, id);
      each.epoch = epoch;
      each.stage = REPLAYING;
      this.#markPosition(each);
      // It was live, and has no position to resume from: messages may be missing.
      if (since === FROM_NOW && each.settled) this.#gap([each], "history");
    }
    if (!recovered && since !== FROM_NOW) this.#gap(listeners, "history");
  }

  /** These listeners have been given everything up to an id. */
  advance({listeners}, id) {
    for (const each of listeners) each.seen = Math.max(each.seen ?? 0, id);
  }

  /** The replay is complete; live messages follow. */
  live(request, id) {
    this.advance(request, id);
    this.advanceTo(id);
    for (const each of request.listeners) this.#goLive(each);
  }

  /** A request was answered by a server without a history. */
  subscribedWithoutHistory({listeners}) {
    const back = listeners.filter((each) => each.settled);
    for (const each of listeners) {
      each.seen = null;
      this.#goLive(each);
    }
    if (back.length) this.#gap(back, "no_history");
  }

  /**
   * One stream for all begins at the lowest of their positions, `after`, and brings everything in
   * order. `id` is the end of the log, as far as known.
   */
  streamStarted({epoch, id, recovered}, after) {
    const listeners = this.asked;
    // In another log the server has judged the lowest position, and no other: what came behind it
    // may be lost there, and comes again where it is not.
    const unknown = listeners.filter((each) => each.epoch !== epoch && each.seen > after);
    for (const each of listeners) {
      // A log that ends before a position was restored to an earlier state.
      each.seen = each.epoch === epoch ? Math.min(each.seen, id) : 0;
      each.epoch = epoch;
    }
    this.#setEpoch(epoch);
    this.#end = id;
    this.#newest = this.lowest;
    for (const each of listeners) this.#goLive(each);
    this.#gap(recovered ? unknown : listeners, "history");
  }

  /** The listeners that the server was asked for. */
  get asked() {
    return this.listeners.filter((each) => each.stage !== INACTIVE);
  }

  /** The lowest of their positions; Infinity without a history. */
  get lowest() {
    return Math.min(...this.asked.map((each) => each.seen ?? Infinity));
  }

  /** Whether their positions are in more than one log. */
  get spansEpochs() {
    return this.asked.some((each) => each.seen !== null && each.epoch !== this.epoch);
  }

  /** Everything up to this id has arrived. */
  advanceTo(id) {
    this.#newest = Math.max(this.#newest, id);
  }

  /** What comes from now on is new. */
  caughtUp() {
    this.#end = 0;
  }

  /** The server said that it keeps no history. */
  disableHistory() {
    this.history = false;
    this.epoch = null;
  }

  /** Retention removed messages during a replay, before they were read. */
  historyGap() {
    const replayed = this.listeners.filter((each) => each.stage === REPLAYING);
    this.#gap(replayed.length ? replayed : this.listeners, "history");
  }

  /** A message arrived; with `only`, in reply to a request of these listeners and for no others. */
  receive(frame, only) {
    const {id} = frame;
    if (id !== undefined && !only && id > this.#newest) this.#newest = id;
    let made;
    for (const each of this.#matchingListeners(frame.keys)) {
      if (each.stage < REPLAYING || (only && !only.includes(each))) continue;
      if (id !== undefined) {
        if (each.seen !== null && id <= each.seen) continue;
        each.seen = id;
      }
      made ??= message(frame);
      this.#enqueue(each, made);
    }
  }

  #enqueue(listener, made) {
    const {epoch} = listener;
    this.queue.push(() => {
      if (listener.unsubscribed) return;
      if (made.id !== undefined) listener.lastHandled = {epoch, id: made.id};
      this.notify.deliver(listener, made);
    }, (made.data ?? made.bytes).length);
  }

  #matchingListeners(keys) {
    const key = keys.join(",");
    let found = this.#matches.get(key);
    if (found) return found;
    if (this.#matches.size >= MAX_CACHED_MATCHES) this.#matches.clear();
    found = this.listeners.filter((each) => matches(keys, each.tags));
    this.#matches.set(key, found);
    return found;
  }

  /** The token no longer allows these tags. Messages that came before are still handled. */
  revoked(tags) {
    const listeners = [...(this.#entries.get([...tags].sort(byCodePoint).join(",")) ?? [])];
    if (!listeners.length) return;
    for (const each of listeners) this.remove(each);
    this.queue.push(() => this.notify.revoked(listeners));
  }

  /** A request was refused. Returns the requests to send instead. */
  refused(request, error) {
    if (error.code === "history_off" && request.since !== undefined) {
      this.disableHistory();
      for (const each of request.listeners) each.stage = INACTIVE;
      return this.requests();
    }
    const parts = request.split();
    if (parts.length > 1) return parts.filter(({tagSets: [tags]}) => this.has(tags));
    for (const each of request.listeners) this.refuse(each, error);
    return [];
  }

  /** A listener that was live before was revoked meanwhile; a new one was never allowed. */
  refuse(listener, error) {
    this.remove(listener);
    if (listener.settled) this.queue.push(() => this.notify.revoked([listener]));
    else this.notify.refused(listener, error);
  }

  #goLive(listener) {
    listener.stage = LIVE;
    listener.settled = true;
    listener.ready.resolve();
    this.#markPosition(listener);
    this.queue.push(() => this.notify.live(listener)); // behind what was replayed
  }

  // Through the queue: messages queued before have lower positions.
  #markPosition(listener) {
    const {seen, epoch} = listener;
    if (seen === null) return;
    this.queue.push(() => {
      const same = listener.lastHandled?.epoch === epoch;
      listener.lastHandled = {epoch, id: same ? Math.max(seen, listener.lastHandled.id) : seen};
    });
  }

  #gap(listeners, reason) {
    if (listeners.length) this.queue.push(() => this.notify.gap(listeners, reason));
  }

  #setEpoch(epoch) {
    this.history = true;
    if (this.epoch !== epoch) this.#newest = 0;
    this.epoch = epoch;
  }
}

/** The id after which a listener takes messages; null for any. */
function startPosition(seen, since, epoch, newest) {
  if (since === FROM_NOW) return newest;
  if (since.latest !== undefined) return seen;
  // Ids of another log, or beyond the end of this one: any message may be new.
  if (typeof since === "object" && since.epoch !== epoch) return 0;
  if (seen !== null) return Math.min(seen, newest);
  const id = since.id ?? since;
  if (id < 0) return null;
  return id <= newest ? id : 0;
}

/** Split a request so that each part fits into a frame. */
function chunked(request) {
  const parts = [];
  let size = Infinity;
  for (const each of request.listeners) {
    size += each.key.length + 4 * each.tags.length;
    if (size > MAX_FRAME || parts.at(-1).listeners.length >= MAX_TAG_SETS) {
      parts.push(new SubscribeRequest(request.since));
      size = each.key.length + 4 * each.tags.length;
    }
    parts.at(-1).listeners.push(each);
  }
  return parts;
}

// The server's order. That of UTF-16 differs for characters outside the BMP.
function byCodePoint(one, other) {
  const [left, right] = [[...one], [...other]];
  const at = left.findIndex((it, index) => it !== right[index]);
  if (at < 0) return left.length - right.length;
  return left[at].codePointAt(0) - (right[at]?.codePointAt(0) ?? -1);
}

// Publishing

/** A message to be published; `message` is what the server is sent of it. */
class Publication {
  answered = deferred();
  sending = false;

  constructor(message, key) {
    Object.assign(this, {message, key, body: JSON.stringify(message)});
  }
}

/**
 * Messages to be published, in order, each until the server has answered. Outlives connections:
 * what was not answered is sent again on the next one.
 */
class PublishQueue {
  #waiting = new Set(); // publications
  #size = 0; // characters
  #transport = null;
  #ending = new AbortController();

  /** Publish a message; resolves with its id, null where there is no history. */
  add(publication, seconds) {
    const {answered, body} = publication;
    if (this.#waiting.size >= MAX_UNANSWERED || this.#size + body.length > MAX_QUEUED) {
      throw new MistError("too_many_publishes", "too many publishes wait for their answers");
    }
    this.#waiting.add(publication);
    this.#size += body.length;
    const late = new MistError("timed_out", `no answer for ${seconds} s: it may be published`);
    const timer = after(seconds, () => answered.reject(late));
    const done = () => {
      clearTimeout(timer);
      this.#waiting.delete(publication);
      this.#size -= body.length;
    };
    answered.promise.then(done, done);
    this.#send();
    return answered.promise;
  }

  /** Send what waits, and what will come, on this transport; null for none. */
  use(transport) {
    this.#transport = transport;
    this.#send();
  }

  /** Nothing is published any more. */
  end(error) {
    this.#transport = null;
    this.#ending.abort();
    for (const each of this.#waiting) each.answered.reject(error);
  }

  #send() {
    const transport = this.#transport;
    if (transport === null || transport.hasEnded) return;
    for (const each of this.#waiting) {
      if (!each.sending) this.#attempt(each, transport);
      if (!transport.pipelines) return;
    }
  }

  async #attempt(publication, transport) {
    publication.sending = true;
    try {
      const {id = null} = await transport.publish(publication);
      publication.answered.resolve({id});
    } catch (error) {
      if (!(error instanceof Failure)) publication.answered.reject(error);
      else if (!transport.hasEnded) await sleep(error.pause || RETRY_PUBLISH, this.#ending.signal);
    }
    await null; // what was answered leaves the queue first
    publication.sending = false;
    this.#send();
  }
}

// Presence

/** Who an attendee is, at a tag set; of the nameless only the time tells. */
const attendeeKey = ({user = "", client = "", since}) =>
  user || client ? JSON.stringify([user, client]) : String(since);

/** Those of a list, by their keys; nameless ones of the same time are several. */
const addAttendees = (there, list) => {
  for (const each of list) {
    let key = attendeeKey(each);
    while (!each.user && !each.client && there.has(key)) key += "+";
    there.set(key, each);
  }
  return there;
};

/** Undoes `addAttendees`. */
const removeAttendees = (there, list) => {
  for (const each of list) {
    let key = attendeeKey(each);
    while (there.has(`${key}+`)) key += "+";
    there.delete(key);
  }
  return there;
};

/** The presence at one tag set, made by `Client.presence`. */
class PresenceWatch {
  #room;
  #close;

  constructor(room, handler, close) {
    Object.assign(this, {handler, answered: deferred(), told: false, awaited: false});
    this.#room = room;
    this.#close = close;
    this.tags = Object.freeze([...room.tags]);
    for (const each of ["handler", "answered", "told", "awaited"]) {
      Object.defineProperty(this, each, {enumerable: false});
    }
  }

  /** Who asks for it is told of a refusal by it. */
  get ready() {
    this.awaited = true;
    return this.answered.promise;
  }

  /** How many are there; null before the server has told. */
  get count() {
    return this.#room.count;
  }

  /** Who is there; null where they are too many for a list. */
  get attendees() {
    return this.#room.attendees && [...this.#room.attendees.values()];
  }

  /** Its handler isn't called any more. */
  close() {
    this.#close(this);
  }
}

/** Who is present where, as far as it is watched. Outlives connections. */
class PresenceTable {
  #rooms = new Map(); // by key, `{tags, count, attendees, watches}`

  /** @param notify `call(watch, change)`, `ended(watch, error)` */
  constructor(notify) {
    this.notify = notify;
  }

  get tagSets() {
    return [...this.#rooms.values()].map((each) => each.tags);
  }

  /** Whether anybody watches these tags. */
  has(tags) {
    return this.#rooms.has(tags.join(","));
  }

  /** Returns the watch, and whether the server has to be asked for its tags. */
  add(tags, handler, close) {
    const key = tags.join(",");
    const isNew = !this.#rooms.has(key);
    if (isNew) this.#rooms.set(key, {tags, count: null, attendees: null, watches: new Set()});
    const room = this.#rooms.get(key);
    const watch = new PresenceWatch(room, handler, close);
    room.watches.add(watch);
    if (room.count !== null) queueMicrotask(() => this.#tell(room, watch, [], []));
    return [watch, isNew];
  }

  /** Returns whether nobody watches these tags any more. */
  remove(watch) {
    const key = watch.tags.join(",");
    const room = this.#rooms.get(key);
    if (!room?.watches.delete(watch)) return false;
    return room.watches.size === 0 && this.#rooms.delete(key);
  }

  /** The server has told who is there, or who has joined and left. */
  told({tags, count, present, joined, left}) {
    const room = this.#rooms.get(tags.join(","));
    if (!room) return;
    const before = room.attendees ?? new Map();
    if (joined) {
      room.attendees = addAttendees(removeAttendees(new Map(before), left), joined);
    } else {
      room.attendees = present ? addAttendees(new Map(), present) : null;
      const there = room.attendees ?? new Map();
      joined = [...there].filter(([key]) => !before.has(key)).map(([, each]) => each);
      left = [...before].filter(([key]) => !there.has(key)).map(([, each]) => each);
    }
    const changed = room.count !== count || joined.length > 0 || left.length > 0;
    room.count = count;
    for (const each of [...room.watches]) {
      if (changed || !each.told) this.#tell(room, each, joined, left);
    }
  }

  #tell(room, watch, joined, left) {
    if (!room.watches.has(watch)) return;
    const {count, attendees} = watch;
    const isFirst = !watch.told;
    watch.told = true;
    watch.answered.resolve();
    if (isFirst) [joined, left] = [attendees ?? [], []];
    this.notify.call(watch, {tags: watch.tags, count, attendees, joined, left});
  }

  /** The server tells nothing more there. */
  ended(tags, error) {
    const room = this.#rooms.get(tags.join(","));
    this.#rooms.delete(tags.join(","));
    for (const each of room?.watches ?? []) this.notify.ended(each, error);
    room?.watches.clear();
  }

  /** The client has ended. */
  end(error) {
    for (const {watches} of this.#rooms.values()) {
      for (const each of watches) each.answered.reject(error);
      watches.clear();
    }
    this.#rooms.clear();
  }
}

// Transports

/**
 * The contract of all transports.
 *
 * `open()` resolves once the server has answered, and rejects with a `Failure`. `start()`
 * subscribes to all in the table, `changed()` to what is new, `unsubscribe(tags)` ends one.
 * `publish(publication)` resolves with the answer; it rejects with a `Failure` where it should be
 * tried again. `pipelines` tells whether that keeps the order without waiting for each answer.
 * `watchPresence(tags)` and `unwatchPresence(tags)` are for what comes after `start()`. `refresh()`
 * replaces the token, `probe()` checks the connection. `ended` resolves with a `Failure`.
 */
class Transport {
  #ended = deferred();
  hasEnded = false;
  pipelines = false;

  /**
   * @param more `WebSocket`, the class to make them of; `publishUrl`, null where unknown; `presence`,
   *   the table of it
   */
  constructor(url, token, table, more) {
    Object.assign(this, {url, token, table, ...more, ended: this.#ended.promise});
  }

  /** Publish with a request of its own. */
  async publishOverHttp({body, key}) {
    const headers = {"Content-Type": "application/json", "Idempotency-Key": key};
    headers["X-Auth-Token"] = this.token;
    try {
      const options = {method: "POST", headers, body};
      const answer = fetchOk(this.publishUrl, options).then((it) => it.json());
      return await withTimeout(REPLY_TIMEOUT, answer, lost("the publish was not answered"));
    } catch (error) {
      if (!(error instanceof Failure)) throw failureOf(error);
      if (error.final) this.end(error); // as any other request would find
      if (error.refused) throw new MistError(error.code, error.message);
      throw error;
    }
  }

  /** End it. Later calls do nothing. */
  end(failure) {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.release(failure);
    this.#ended.resolve(failure);
  }

  close() {
    this.end(new Failure("closed", "closed"));
  }
}

function base64url(text) {
  const bytes = Array.from(new TextEncoder().encode(text), (it) => String.fromCharCode(it));
  return btoa(bytes.join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Seconds for which a JWT is good from now on; null for any other token. */
function lifetime(token) {
  const [, payload, signature] = token.split(".");
  if (signature === undefined) return null;
  try {
    const {exp, iat} = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")));
    const left = exp - Date.now() / 1000;
    // This machine's clock may be wrong. A new token is good for as long as its issuer says.
    const whole = Number.isFinite(iat) ? exp - iat : left;
    const found = left > 0 ? Math.min(left, whole) : whole;
    return Number.isFinite(found) && found > 0 ? found : null;
  } catch {
    return null;
  }
}

/** JSON frames; requests and replies are correlated by a `ref`. */
class WebSocketTransport extends Transport {
  pipelines = true;
  #socket;
  #opening = deferred();
  #refs = 0;
  #asked = new Map(); // by ref, callbacks for replies
  #publishing = new Set(); // what rejects publishes that have no reply
  #repeating = new Set(); // timers, until what was refused for a while is asked for again
  #heard = false; // something arrived since the last heartbeat
  #timer;
  #lastBeat = Date.now();
  #probe = null;

  open() {
    try {
      // A page can't set headers here. In the URL the token would end up in logs.
      const protocols = ["mist.v1", "mist.token." + base64url(this.token)];
      this.#socket = new this.WebSocket(this.url, protocols);
    } catch (cause) {
      // An invalid URL; or a page from https:// may not use ws://.
      throw new Failure("unreachable", cause.message, {cause, unusable: true});
    }
    // In Node an error without a handler ends the process. A close event follows it.
    this.#socket.onerror = () => {};
    // Only a reply proves that the token is good: a bad one is refused after the upgrade.
    this.#socket.onopen = () => this.#send({command: "ping"}, this.#opening.resolve);
    this.#socket.onmessage = (event) => this.#receive(event.data);
    this.#socket.onclose = (event) => this.end(closeFailure(event.code, event.reason));
    return this.#opening.promise;
  }

  start() {
    if (this.hasEnded) return; // nobody would end the timer
    this.#timer = setInterval(() => this.#heartbeat(), HEARTBEAT * 1000);
    this.changed();
    for (const each of this.presence.tagSets) this.watchPresence(each);
  }

  changed() {
    for (const each of this.table.requests()) this.#subscribe(each);
  }

  unsubscribe(tags) {
    this.#send({command: "unsubscribe", tags}, (reply) => {
      if (isUnavailable(reply)) this.#later(reply, () => this.table.has(tags) || this.unsubscribe(tags));
    });
  }

  watchPresence(tags) {
    this.#send({command: "presence", tags}, (reply) => {
      if (reply.success) this.presence.told(reply);
      else this.#presenceRefused(tags, reply);
    });
  }

  #presenceRefused(tags, reply) {
    if (!isUnavailable(reply)) this.presence.ended(tags, refusalOf(reply.error));
    else this.#later(reply, () => this.presence.has(tags) && this.watchPresence(tags));
  }

  unwatchPresence(tags) {
    this.#send({command: "unpresence", tags}, (reply) => {
      if (!isUnavailable(reply)) return;
      this.#later(reply, () => this.presence.has(tags) || this.unwatchPresence(tags));
    });
  }

  /** Ask again for what was refused for a while, unless the connection ends. */
  #later({retry_after: pause}, repeat) {
    const timer = after(Math.max(pause ?? 0, REPEAT_AFTER), () => {
      this.#repeating.delete(timer);
      repeat();
    });
    this.#repeating.add(timer);
  }

  publish(publication) {
    const {message, key, body} = publication;
    const isLong = body.length * 3 > MAX_PUBLISH_FRAME;
    if (isLong && new TextEncoder().encode(body).length > MAX_PUBLISH_FRAME) {
      if (this.publishUrl) return this.publishOverHttp(publication);
      throw new MistError("payload_too_large", "the message is too long for a WebSocket");
    }
    const {promise, resolve, reject} = deferred();
    this.#publishing.add(reject); // and not to `ended`, which would keep it as long
    this.#send({command: "publish", ...message, key}, (reply) => {
      this.#publishing.delete(reject);
      if (reply.success) resolve(reply);
      else reject(publishFailure(reply));
    });
    return promise;
  }

  refresh(token) {
    this.token = token;
    const {promise, resolve, reject} = deferred();
    this.ended.then(reject);
    this.#send({command: "auth", token}, (reply) => {
      if (reply.success) resolve();
      else if (isUnavailable(reply)) reject(refusalOf(reply.error));
      // otherwise a close frame follows, with the reason
    });
    return promise;
  }

  /** Ping, and give the connection up if nothing arrives within so many seconds. */
  probe(seconds = PROBE_TIMEOUT, again = false) {
    const due = Date.now() / 1000 + seconds;
    if (this.#probe?.due <= due) return;
    clearTimeout(this.#probe?.timer);
    this.#send({command: "ping"}, () => {});
    const timer = after(seconds, () => {
      this.#probe = null;
      // The reply may have come while the page was frozen, and be queued after this timer.
      if (!again && Date.now() / 1000 - due > FROZEN_LAG) this.probe(PROBE_TIMEOUT, true);
      else this.end(lost(`no answer for ${seconds} s`));
    });
    this.#probe = {due, timer};
  }

  release(failure) {
    clearInterval(this.#timer);
    this.#repeating.forEach(clearTimeout);
    clearTimeout(this.#probe?.timer);
    const socket = this.#socket;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    this.#opening.reject(failure);
    for (const reject of this.#publishing) reject(failure);
    this.#publishing.clear();
  }

  #send(frame, answered) {
    if (this.#socket.readyState !== this.#socket.OPEN) return; // its close event is about to come
    this.#asked.set(++this.#refs, answered);
    this.#socket.send(JSON.stringify({...frame, ref: this.#refs}));
  }

  // A wall clock, since timers of a hidden page fire up to a minute late.
  #heartbeat() {
    const slept = Date.now() - this.#lastBeat > 3000 * HEARTBEAT;
    this.#lastBeat = Date.now();
    if (slept || !this.#heard) this.probe(slept ? PROBE_TIMEOUT : REPLY_TIMEOUT);
    this.#heard = false;
  }

  #receive(text) {
    this.#heard = true;
    clearTimeout(this.#probe?.timer);
    this.#probe = null;
    try {
      this.#take(JSON.parse(text));
    } catch (cause) {
      this.end(new Failure("protocol_violation", "the server sent a malformed frame", {cause}));
    }
  }

  #take(frame) {
    if (frame.keys) {
      this.table.receive(frame);
      // Reconnect once there is room; the history has the rest.
      if (this.table.queue.full) this.end(new Failure("too_slow", "messages come too fast"));
    } else if (frame.command === "revoked") {
      this.table.revoked(frame.tags);
    } else if (frame.command === "gap") {
      this.table.historyGap();
    } else if (frame.command === "presence" && frame.ref === undefined) {
      this.presence.told(frame);
    } else if (frame.command === "unpresence" && frame.ref === undefined) {
      this.presence.ended(frame.tags, new MistError("not_granted", frame.error));
    } else {
      const answered = this.#asked.get(frame.ref);
      this.#asked.delete(frame.ref);
      answered?.(frame);
    }
  }

  #subscribe(request) {
    const {since, tagSets} = request;
    const selection = tagSets.length === 1 ? {tags: tagSets[0]} : {subscriptions: tagSets};
    let started = null;
    const from = since === FROM_NOW ? -1 : since; // the last message is replayed and dropped
    this.#send({command: "subscribe", ...selection, since: from}, (reply) => {
      if (!reply.success) this.#refused(request, reply);
      else if (reply.epoch === undefined) this.table.subscribedWithoutHistory(request);
      else this.table.replayStarted(request, (started = reply));
    });
    // Its reply comes after the last replayed message.
    if (since === undefined) return;
    this.#send({command: "ping"}, () => started && this.table.live(request, started.id));
  }

  #refused(request, reply) {
    const {error: text, retry_after: pause} = reply;
    const error = refusalOf(text);
    if (isUnavailable(reply)) {
      this.end(new Failure(error.code, text, {spread: true, pause}));
      return;
    }
    for (const each of this.table.refused(request, error)) this.#subscribe(each);
  }
}

const refusalOf = (text) => new MistError(REFUSAL_CODES[text] ?? "refused", text);

/** Whether a reply refuses what may be granted a while later. */
const isUnavailable = ({success, error}) => !success && UNAVAILABLE.has(REFUSAL_CODES[error]);

/** The error of a publish: a `Failure` where it passes by itself. */
function publishFailure({error, retry_after: pause}) {
  const code = REFUSAL_CODES[error] ?? "refused";
  return UNAVAILABLE.has(code) ? new Failure(code, error, {pause}) : new MistError(code, error);
}

/** What SSE and polling share: one request for all subscriptions, repeated when they change. */
class HttpTransport extends Transport {
  #change = new AbortController();
  #presence = new Map(); // by key, what ends the request for it
  #refreshing = null;

  async open() {
    const {tagSets} = this.table;
    if (tagSets.length === 0) return; // nothing to ask for yet
    try {
      await this.check(tagSets, this.#change.signal);
    } catch (failure) {
      if (failure.code !== "not_granted") throw failure;
    }
  }

  start() {
    for (const each of this.presence.tagSets) this.watchPresence(each);
    this.#work().catch((error) => {
      this.end(failureOf(error));
    });
  }

  changed() {
    this.#change.abort();
  }

  publish(publication) {
    return this.publishOverHttp(publication);
  }

  unsubscribe() {
    // Without a history a new stream would lose messages, so the old one goes on with too many.
    if (this.table.history !== false) this.#change.abort();
  }

  /** Each tag set has requests of its own, which are made again until it is watched no more. */
  async watchPresence(tags) {
    if (this.hasEnded) return; // nobody would end the loop
    const ending = new AbortController();
    this.unwatchPresence(tags);
    this.#presence.set(tags.join(","), ending);
    while (!ending.signal.aborted) {
      try {
        await this.followPresence(tags, ending.signal);
      } catch (error) {
        if (ending.signal.aborted) return;
        if (error.final) this.end(error);
        else if (error.refused) this.presence.ended(tags, new MistError(error.code, error.message));
        if (error.final || error.refused) return;
      }
      await sleep(POLL_PRESENCE, ending.signal);
    }
  }

  unwatchPresence(tags) {
    this.#presence.get(tags.join(","))?.abort();
    this.#presence.delete(tags.join(","));
  }

  /** Ask who is there. A stream goes on to tell. */
  async followPresence(tags, signal) {
    const answer = this.get(new URL("presence", this.url.poll), [tags], {}, signal);
    const told = answer.then((it) => it.json());
    this.presence.told(await withTimeout(REPLY_TIMEOUT, told, lost("presence was not answered")));
  }

  probe() {
    this.#change.abort(); // a new request is answered, or fails
  }

  async refresh(token) {
    this.token = token;
    for (const each of this.presence.tagSets) this.watchPresence(each);
    if (this.table.tagSets.length === 0) return; // the first request will present it
    this.#refreshing ??= deferred();
    this.ended.then(this.#refreshing.reject);
    this.#change.abort();
    await this.#refreshing.promise;
  }

  /** The server accepted the token. */
  answered() {
    this.#refreshing?.resolve();
    this.#refreshing = null;
  }

  release() {
    this.#change.abort();
    for (const each of this.#presence.values()) each.abort();
  }

  async #work() {
    while (!this.hasEnded) {
      this.#change = new AbortController();
      const {signal} = this.#change;
      try {
        this.table.disconnected();
        if (this.table.tagSets.length === 0) {
          this.answered(); // or a `refresh` would wait for the next subscription
          await aborted(signal);
        }
        await this.#assignPositions(signal);
        if (this.table.tagSets.length === 0) continue; // all were refused
        // The server may have lost its log between two requests; then subscribe again.
        if (!this.table.spansEpochs) await this.listen(this.table.tagSets, signal);
      } catch (error) {
        if (signal.aborted) continue; // only the set of subscriptions has changed
        if (error.code === "history_off" && this.table.history !== false) {
          this.table.disableHistory();
        } else if (error.code !== "not_granted" || !(await this.#refuseDisallowed(signal))) {
          throw error;
        }
      }
    }
  }

  /** Give every listener a position, so that one stream can serve all of them. */
  async #assignPositions(signal) {
    const requests = this.table.requests();
    while (requests.length) {
      const request = requests.shift();
      const {since, listeners} = request;
      if (since === undefined || listeners.every((each) => this.#hasPosition(each))) continue;
      try {
        const from = since === FROM_NOW ? undefined : since;
        const answer = await this.poll(request.tagSets, from, 0, signal);
        this.table.replayStarted(request, answer);
        await this.#take(answer, request);
        if (since.latest !== undefined) await this.#takeRest(answer, request, signal);
      } catch (error) {
        if (!REQUEST_ERRORS.has(error.code)) throw error;
        requests.push(...this.table.refused(request, error));
      }
    }
  }

  async #take({messages, id}, request) {
    for (const each of messages) this.table.receive(each, request.listeners);
    this.table.advance(request, id);
    await this.table.queue.waitUncongested();
  }

  /** Latest values are more than one answer holds. */
  async #takeRest(answer, request, signal) {
    const {latest} = request.since;
    while (answer.messages.length) {
      const {epoch, id} = answer;
      answer = await this.poll(request.tagSets, {latest, epoch, id}, 0, signal);
      await this.#take(answer, request);
    }
  }

  #hasPosition(listener) {
    return listener.seen !== null && listener.epoch === this.table.epoch;
  }

  /** Refuse the subscriptions that the token doesn't allow. Returns whether there are any. */
  async #refuseDisallowed(signal) {
    let found = false;
    for (const part of new SubscribeRequest(null, this.table.listeners).split()) {
      try {
        await this.check(part.tagSets, signal);
      } catch (error) {
        if (signal.aborted) return true;
        if (error.code !== "not_granted") throw error;
        this.table.refused(part, error);
        found = true;
      }
    }
    return found;
  }

  /** The reply to one poll; immediate where `timeout` is 0. */
  poll(tagSets, since, timeout, signal) {
    const more = {timeout, ...(since === undefined ? {} : startOf(since))};
    const answer = this.get(this.url.poll, tagSets, more, signal).then((it) => it.json());
    return withTimeout(timeout + REPLY_TIMEOUT, answer, lost("the poll was not answered"));
  }

  /**
   * A successful response. Throws a `Failure` for any other.
   *
   * A connection asks for several things; the limit of a token may allow fewer at once.
   */
  async get(url, tagSets, more, signal) {
    const query = new URLSearchParams(tagSets.map((tags) => ["tags", tags.join(",")]));
    for (const [name, value] of Object.entries(more)) query.append(name, value);
    const target = `${url}?${query}`;
    if (target.length > MAX_URL) {
      const code = "too_many_subscriptions";
      throw new Failure(code, "too many subscriptions for a URL", {unusable: true});
    }
    for (let left = PAUSED_ATTEMPTS - 1; ; left -= 1) {
      try {
        return await fetchOk(target, {headers: {"X-Auth-Token": this.token}, signal});
      } catch (error) {
        const {code, pause} = error;
        const limited = code === "too_many_requests" && pause > 0 && pause <= LONGEST_PAUSE;
        if (!limited || left === 0 || signal.aborted) throw error;
        await sleep(pause + Math.random(), signal);
      }
    }
  }
}

// Errors of a single request, not of the connection.
const REQUEST_ERRORS = new Set([
  "not_granted",
  "invalid_position",
  "latest_off",
  "too_many_subscriptions",
]);

/** Where to begin, as in URLs. */
function startOf(since) {
  const {latest, epoch} = since;
  if (latest === undefined) return {since: formatPosition(since)};
  return epoch === undefined ? {latest} : {latest, since: formatPosition(since)};
}

/** A position as in URLs. */
function formatPosition(since) {
  return typeof since === "object" ? `${since.epoch}:${since.id}` : since;
}

/** Wait for an abort signal, and reject then. */
function aborted(signal) {
  return new Promise((_, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, {once: true});
  });
}

async function fetchOk(url, options) {
  let response;
  try {
    // A redirect would send the token to an unknown host.
    response = await fetch(url, {cache: "no-store", redirect: "error", ...options});
  } catch (cause) {
    throw lost("the server can't be reached", {cause});
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The failure for an error response: the server's problem document, or a proxy's page. */
async function refusal(response) {
  const {status} = response;
  const problem = await response.json().catch(() => ({}));
  const code = problem.code ?? `http_${status}`;
  const message = problem.detail ?? problem.title ?? `HTTP ${status}`;
  if (status === 401) return closeFailure(4401, message);
  if (code === "origin_not_allowed") return closeFailure(4403, message);
  const pause = Number(response.headers.get("Retry-After")) || 0;
  return new Failure(code, message, {
    pause,
    spread: status === 429 || status === 503,
    refused: status < 500 && status !== 408 && status !== 429,
    unusable: [404, 405, 409, 410, 421].includes(status),
  });
}

/** Server-Sent Events, read by fetch: an EventSource can't send a token in a header. */
class StreamTransport extends HttpTransport {
  async check(tagSets, signal) {
    const response = await this.get(this.url.stream, tagSets, {}, signal);
    // A proxy that buffers streams may let the headers through, but no event.
    for await (const {type} of events(response.body, signal)) if (type === "ready") return;
    throw lost("the stream ended");
  }

  async listen(tagSets, signal) {
    const {table} = this;
    const id = table.lowest;
    const more = id === Infinity ? {} : {since: formatPosition({epoch: table.epoch, id})};
    const opening = this.get(this.url.stream, tagSets, more, signal);
    const response = await withTimeout(REPLY_TIMEOUT, opening, lost("the stream did not begin"));
    for await (const {type, data} of events(response.body, signal)) {
      if (type === "end" && data.code === 1000) return; // its last subscription was revoked
      if (type === "end") throw closeFailure(data.code, data.reason);
      this.#take(type, data, id);
      await table.queue.waitUncongested();
    }
    throw lost("the stream ended");
  }

  async followPresence(tags, signal) {
    const url = new URL("presence/stream", this.url.stream);
    const opening = this.get(url, [tags], {}, signal);
    const response = await withTimeout(REPLY_TIMEOUT, opening, lost("the stream did not begin"));
    for await (const {type, data} of events(response.body, signal)) {
      if (type === "presence") this.presence.told(data);
      else if (type === "end" && data.code === 1000) {
        throw new Failure("not_granted", data.reason, {refused: true});
      } else if (type === "end") throw closeFailure(data.code, data.reason);
    }
  }

  #take(type, data, id) {
    const {table} = this;
    switch (type) {
      case "ready":
        this.answered();
        if (data.epoch === null) {
          table.subscribedWithoutHistory(new SubscribeRequest(undefined, table.asked));
        } else {
          table.streamStarted(data, id);
        }
        break;
      case "message":
        table.receive(data);
        break;
      case "gap":
        table.historyGap();
        break;
      case "revoked":
        table.revoked(data.tags);
        break;
    }
  }
}

/**
 * The events of a stream, their data parsed as JSON, until the signal aborts.
 *
 * That the request had the signal is not enough: Node forgets so when its garbage collector has taken
 * the request, while the stream goes on.
 */
async function* events(body, signal) {
  const reader = body.getReader();
  const stop = () => reader.cancel().catch(() => {}); // ends what is being read
  signal.addEventListener("abort", stop, {once: true});
  if (signal.aborted) stop();
  const decoder = new TextDecoder();
  const event = {type: "message", data: ""};
  let rest = "";
  try {
    for (;;) {
      const silent = lost("the stream is silent");
      const {done, value} = await withTimeout(STREAM_TIMEOUT, reader.read(), silent);
      signal.throwIfAborted();
      if (done) return;
      const lines = (rest + decoder.decode(value, {stream: true})).split("\n");
      rest = lines.pop();
      if (rest.length + event.data.length > MAX_EVENT) throw lost("an event is too long");
      for (const line of lines) {
        if (line.startsWith("event: ")) event.type = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
        else if (line === "" && event.data) {
          yield {type: event.type, data: JSON.parse(event.data)};
          Object.assign(event, {type: "message", data: ""});
        }
      }
    }
  } finally {
    signal.removeEventListener("abort", stop);
    stop();
  }
}

/** Long polling, for networks that break streams. Needs a history. */
class PollTransport extends HttpTransport {
  check(tagSets, signal) {
    return this.poll(tagSets, undefined, 0, signal);
  }

  async listen(tagSets, signal) {
    const {table} = this;
    if (table.history === false) {
      throw new Failure("history_off", "there is no history", {unusable: true});
    }
    let position = {epoch: table.epoch, id: table.lowest};
    // The first poll returns at once, and so confirms the subscriptions.
    for (let timeout = 0; ; timeout = POLL_TIMEOUT) {
      const asked = now();
      const answer = await this.poll(tagSets, position, timeout, signal);
      this.answered();
      // Its id is how far it has read, at most the end of the log; or the log was reset.
      const end = answer.id < position.id ? answer.id : Infinity;
      table.streamStarted({...answer, id: end}, position.id);
      for (const each of answer.messages) table.receive(each);
      table.advanceTo(answer.id);
      if (!answer.messages.length) table.caughtUp(); // else there may be more
      const revoked = answer.revoked ?? [];
      for (const tags of revoked) table.revoked(tags);
      if (revoked.length) return; // the next one is without them, or would be refused
      position = {epoch: answer.epoch, id: answer.id};
      await table.queue.waitUncongested();
      // A proxy or cache replied instead of the server, without waiting.
      if (timeout && !answer.messages.length && now() - asked < 1) await sleep(1, signal);
    }
  }
}

const TRANSPORT_CLASSES = {
  websocket: WebSocketTransport,
  sse: StreamTransport,
  polling: PollTransport,
};

// Transport fallback

/** Which transports to try, best first. */
class TransportFallback {
  #avoidUntil = new Map(); // by name, when to try it again although a lesser one worked
  #shortLived = new Map(); // by name, connections in a row that were lost at once

  constructor(names, retrySeconds) {
    this.names = names;
    this.retrySeconds = retrySeconds;
  }

  /** The transports that are `offered`, in the order in which to try them. */
  order(offered) {
    const found = this.names.filter((each) => offered[each]);
    const preferred = found.filter((each) => !this.#avoided(each));
    return [...preferred, ...found.filter((each) => this.#avoided(each))];
  }

  #avoided(name) {
    return (this.#avoidUntil.get(name) ?? 0) > now();
  }

  /** `name` works; those in `failed` do not. */
  worked(name, failed) {
    this.#avoidUntil.delete(name);
    for (const each of failed) this.#avoidUntil.set(each, now() + this.retrySeconds);
  }

  /** A connection ended after so many seconds. */
  ended(name, failure, lasted) {
    const cut = failure.code === "connection_lost" && lasted < HEALTHY_AFTER;
    const times = cut ? (this.#shortLived.get(name) ?? 0) + 1 : 0;
    this.#shortLived.set(name, times);
    // Some proxies accept a WebSocket and cut it.
    if (times >= MAX_SHORT_LIVED || failure.unusable) this.worked(null, [name]);
  }

  /** The transports better than `name`, and when to try the first of them again. */
  betterThan(name) {
    const names = this.names.slice(0, Math.max(0, this.names.indexOf(name)));
    return {names, due: Math.min(...names.map((each) => this.#avoidUntil.get(each) ?? 0))};
  }
}

/** The server's endpoints: discovered at an HTTP URL, given by a WebSocket's. */
class Endpoints {
  constructor(url, wanted) {
    const parsed = new URL(url, globalThis.location?.href);
    if (!/^(ws|http)s?:$/.test(parsed.protocol)) {
      throw new SyntaxError("the URL must begin with https://, http://, wss:// or ws://");
    }
    parsed.hash = "";
    this.direct = parsed.protocol.startsWith("ws");
    if (this.direct && parsed.pathname === "/") parsed.pathname = "/subscribe/websocket";
    this.url = parsed.href;
    this.wanted = wanted;
  }

  /** The URLs of each offered transport, and for publishing; whether there is a history. */
  async find(signal) {
    if (this.direct) return {urls: {websocket: this.url}, publishUrl: null, history: null};
    const base = this.url.replace(/\/+$/, ""); // may have a path, behind a proxy
    const found = await (await fetchOk(`${base}/v1/endpoints`, {signal})).json();
    const at = (path) => (path?.startsWith("/") ? base + path : path);
    const http = {stream: at(found.stream), poll: at(found.poll)};
    const urls = {
      websocket: found.websocket,
      sse: found.stream && http,
      polling: found.history && found.poll && http,
    };
    return {urls, publishUrl: at(found.publish ?? "/v1/messages"), history: found.history};
  }
}

/**
 * The wanted transports that this runtime has: some have no WebSocket, such as Node 20.
 *
 * Throws where none is left, since trying again would not help.
 */
function usableTransports({direct}, {transports, WebSocket}) {
  const wanted = TRANSPORTS.filter((each) => transports.includes(each));
  const usable = wanted.filter((each) => each !== "websocket" || WebSocket);
  if (WebSocket || (!direct && usable.length > 0) || !wanted.includes("websocket")) return usable;
  const advice = direct
    ? "connect to an http:// URL, where other transports are used"
    : `allow another transport (${TRANSPORTS.slice(1).join(", ")})`;
  throw new MistError(
    "no_websocket",
    `this runtime has no WebSocket: pass one (connect(url, {WebSocket})), or ${advice}`,
  );
}

// The client

const EVENTS = ["state", "subscribed", "unsubscribed", "gap", "revoked", "error"];

/** A subscription, made by `Client.subscribe`. */
class Subscription {
  #listener;
  #unsubscribe;

  constructor(listener, unsubscribe) {
    this.#listener = listener;
    this.#unsubscribe = unsubscribe;
    this.tags = Object.freeze([...listener.tags]);
  }

  /** Who asks for it is told of a refusal by it. */
  get ready() {
    this.#listener.awaited = true;
    return this.#listener.ready.promise;
  }

  /** For `since` in a later session; null without a history. */
  get position() {
    return this.#listener.lastHandled && {...this.#listener.lastHandled};
  }

  /** Its handler isn't called any more, not even with queued messages. */
  unsubscribe() {
    this.#unsubscribe(this.#listener);
  }
}

/** A connection that reconnects by itself. Made by `connect`. */
class Client {
  #options;
  #endpoints;
  #fallback;
  #queue;
  #table;
  #publishes = new PublishQueue();
  #presence = new PresenceTable({
    call: (watch, change) => this.#call(watch.handler, change, null),
    ended: (watch, error) => this.#presenceEnded(watch, error),
  });
  #publishUrl = null;
  #connections = 0; // so far
  #announced = new WeakMap(); // by listener, the connection on which "subscribed" was told
  #subscriptions = new Map(); // by listener
  #handlers = new Map(EVENTS.map((each) => [each, new Set()]));
  #state = "connecting";
  #transport = null;
  #name = null; // of the transport
  #alive = new Set(); // transports, including those still opening
  #closing = new AbortController();
  #wake = () => {};
  #failures = 0; // in a row
  #presented; // the token that the server was given last
  #renewal; // the timer that has another token asked for
  #renewed = null; // the token that it is set for
  #opened = deferred(); // settles when it is open the next time
  #subscribing = false; // a subscribe is scheduled
  #isOver = false; // the program has closed it: no handler is called any more
  #onHint = (event) => this.#hinted(event.type === "online");

  constructor(url, options) {
    this.#options = options;
    this.#endpoints = new Endpoints(url);
    const names = usableTransports(this.#endpoints, options);
    this.#fallback = new TransportFallback(names, options.retryBetterSeconds);
    this.#queue = new DeliveryQueue(options.maxQueue);
    this.#table = new SubscriptionTable(this.#queue, {
      deliver: (listener, made) => this.#deliver(listener, made),
      live: (listener) => this.#live(listener),
      gap: (listeners, reason) => this.#gap(listeners, reason),
      revoked: (listeners) => this.#revoked(listeners),
      refused: (listener, error) => this.#refused(listener, error),
    });
    globalThis.addEventListener?.("online", this.#onHint);
    globalThis.document?.addEventListener("visibilitychange", this.#onHint);
    // Deferred, so that subscriptions made right after this are part of the first request.
    queueMicrotask(() => this.#run());
  }

  /** `connecting`, `open`, `waiting` (for the next attempt) or `closed` (for good). */
  get state() {
    return this.#state;
  }

  /** `websocket`, `sse` or `polling` while open, else null. */
  get transport() {
    return this.#name;
  }

  subscribe(tags, handler, {since} = {}) {
    const listener = new Listener(tagSet(tags), handler, parseSince(since));
    if (typeof handler !== "function") throw new TypeError("handler must be a function");
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    const subscription = new Subscription(listener, (it) => this.#unsubscribe(it));
    this.#subscriptions.set(listener, subscription);
    this.#table.add(listener);
    this.#scheduleSubscribe();
    return subscription;
  }

  async publish(tags, data, {to, key = randomKey(), timeoutSeconds = PUBLISH_TIMEOUT} = {}) {
    const message = {tags: tagSet(tags), ...payload(data), ...audience(to)};
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    return this.#publishes.add(new Publication(message, parseKey(key)), timeoutSeconds);
  }

  presence(tags, handler) {
    const found = tagSet(tags);
    if (typeof handler !== "function") throw new TypeError("handler must be a function");
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    const [watch, isNew] = this.#presence.add(found, handler, (it) => {
      it.answered.reject(new MistError("closed", "closed by the program"));
      if (this.#presence.remove(it)) this.#transport?.unwatchPresence(found);
    });
    if (isNew) this.#transport?.watchPresence(found);
    return watch;
  }

  on(event, handler) {
    const handlers = this.#handlers.get(event);
    if (!handlers) throw new TypeError(`no such event: ${event}`);
    const own = (detail) => handler(detail); // the same handler added twice is two
    handlers.add(own);
    return () => handlers.delete(own);
  }

  async refresh(token) {
    if (token === undefined && !this.#options.getToken) throw new TypeError("there is no getToken");
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    this.#options.token = token;
    return this.#present();
  }

  /** Have the server given the current token: on this connection, or as the next one begins. */
  async #present() {
    if (this.#transport === null) {
      this.#wake();
      await this.#opened.promise;
      const {token} = this.#options;
      // It may have been about to connect with the token before.
      return token === undefined || token === this.#presented ? undefined : this.#present();
    }
    const token = await this.#token();
    if (this.#transport === null) return this.#opened.promise; // lost meanwhile
    this.#presented = token;
    return this.#transport.refresh(token);
  }

  close() {
    this.#end(new MistError("closed", "closed by the program"));
    // One that ended by itself still had what was queued handled.
    this.#isOver = true;
    for (const each of this.#subscriptions.keys()) each.unsubscribed = true;
  }

  // connecting and reconnecting

  async #run() {
    while (this.#state !== "closed") {
      let failure;
      let lasted = 0;
      try {
        this.#setState("connecting");
        await this.#queue.waitUncongested(); // a page that lags handles its queue first
        const [name, transport] = await this.#establish();
        const since = now();
        failure = await this.#serve(name, transport);
        lasted = now() - since;
      } catch (error) {
        failure = failureOf(error);
      }
      if (this.#state === "closed") return;
      const renew = failure.code === "unauthorized" && this.#hasAnotherToken(lasted > 0);
      if (failure.final && !renew) return void this.#end(failure);
      await this.#pause(failure, lasted >= HEALTHY_AFTER);
    }
  }

  /** Whether another token may do where the last one was refused, on a connection that was open. */
  #hasAnotherToken(wasOpen) {
    const {token, getToken} = this.#options;
    if (token === undefined) return getToken !== undefined && wasOpen; // it may give a new one by now
    if (token !== this.#presented) return true; // `refresh` was given it meanwhile
    if (getToken === undefined) return false;
    this.#options.token = undefined; // what `refresh` was given has come to its end
    return true;
  }

  /** Open the best transport that works. */
  async #establish() {
    const found = await this.#withTimeout(this.#endpoints.find(this.#closing.signal));
    const {urls, history} = found;
    this.#publishUrl = found.publishUrl;
    if (history !== null) this.#setHistory(history);
    const token = await this.#withTimeout(this.#token()); // if it fails, no transport has
    const failed = [];
    let failure = new Failure("no_transport", "the server offers none of the wanted transports");
    for (const name of this.#fallback.order(urls)) {
      try {
        const transport = await this.#open(name, urls[name], token);
        this.#fallback.worked(name, failed);
        return [name, transport];
      } catch (error) {
        if (error.final || this.#state === "closed") throw error;
        failure = error;
        failed.push(name);
      }
    }
    throw failure;
  }

  #setHistory(history) {
    if (!history) this.#table.disableHistory();
    else if (this.#table.history === false) this.#table.history = null; // there is one after all
  }

  async #open(name, url, token) {
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    const {WebSocket} = this.#options;
    const more = {WebSocket, publishUrl: this.#publishUrl, presence: this.#presence};
    this.#presented = token;
    const transport = new TRANSPORT_CLASSES[name](url, token, this.#table, more);
    this.#alive.add(transport);
    transport.ended.then(() => this.#alive.delete(transport));
    try {
      await this.#withTimeout(transport.open());
      return transport;
    } catch (error) {
      transport.close();
      throw error;
    }
  }

  #withTimeout(promise) {
    const {timeoutSeconds} = this.#options;
    return withTimeout(timeoutSeconds, promise, lost(`no answer for ${timeoutSeconds} s`));
  }

  async #token() {
    const {token, getToken} = this.#options;
    const found = getToken && token === undefined ? await getToken() : token;
    if (typeof found !== "string") {
      throw new Failure("no_token", "getToken did not return a string");
    }
    if (getToken && token === undefined) this.#renewBefore(found);
    return found;
  }

  /** Get another token before this one expires, if it is a JWT. Else, or if that fails, the server
   *  ends the connection then, and the next one begins with another token. */
  #renewBefore(token) {
    if (token === this.#renewed) return; // there is no newer one
    this.#renewed = token;
    clearTimeout(this.#renewal);
    const seconds = lifetime(token);
    if (seconds === null) return;
    this.#renewal = after(Math.max(1, RENEW_AFTER * seconds), () => {
      if (this.#state === "open") this.refresh().catch(() => {});
      else this.#renewed = null;
    });
    this.#renewal.unref?.(); // Node need not wait for it
  }

  /** Serve on a transport until it ends; returns why. Moves to a better one that opens. */
  async #serve(name, transport) {
    for (;;) {
      this.#name = name;
      this.#transport = transport;
      this.#connections += 1;
      this.#setState("open");
      this.#opened.resolve();
      this.#opened = deferred();
      transport.start();
      this.#publishes.use(transport);
      const since = now();
      const ended = new AbortController();
      const better = this.#waitForBetter(name, ended.signal);
      const outcome = await Promise.race([transport.ended, better]);
      ended.abort();
      this.#transport = this.#name = null;
      this.#publishes.use(null);
      this.#table.disconnected();
      if (outcome instanceof Failure) {
        this.#fallback.ended(name, outcome, now() - since);
        return outcome;
      }
      transport.close();
      [name, transport] = outcome;
      // `refresh` may have replaced the token while it opened.
      if (transport.token !== this.#presented) transport.refresh(this.#presented).catch(() => {});
    }
  }

  /** Resolves once a better transport is open, if ever. */
  async #waitForBetter(name, signal) {
    for (;;) {
      const {names, due} = this.#fallback.betterThan(name);
      if (names.length === 0) return new Promise(() => {});
      await sleep(Math.max(1, due - now()), signal);
      if (signal.aborted) return new Promise(() => {});
      const found = await this.#tryAll(names, signal);
      if (signal.aborted) found?.[1].close();
      else if (found) return found;
      else this.#fallback.worked(name, names);
    }
  }

  async #tryAll(names, signal) {
    try {
      const {urls} = await this.#withTimeout(this.#endpoints.find(signal));
      const token = await this.#withTimeout(this.#token());
      for (const each of names.filter((it) => urls[it])) {
        try {
          return [each, await this.#open(each, urls[each], token)];
        } catch {
          if (signal.aborted) return null;
        }
      }
    } catch {
      // The current transport goes on; try again later.
    }
    return null;
  }

  /** Wait before the next attempt: exponential backoff with full jitter. */
  async #pause(failure, healthy) {
    if (failure.code === "too_slow") return;
    if (healthy) this.#failures = 0;
    const {baseSeconds, capSeconds} = this.#options.backoff;
    const span = Math.min(capSeconds, baseSeconds * 2 ** this.#failures);
    // At once after a healthy connection, unless other clients lost theirs too.
    const delay = healthy && !failure.spread ? 0 : Math.max(failure.pause, Math.random() * span);
    if (!healthy || failure.spread) this.#failures += 1;
    const waking = new AbortController();
    this.#wake = () => waking.abort(); // a handler of the state may call `close` or `refresh`
    this.#setState("waiting", failure, delay);
    if (delay > 0) await sleep(delay, waking.signal);
    this.#wake = () => {};
  }

  /** The network is back, or the page is visible again: don't wait for a timer. */
  #hinted(online) {
    if (!online && document.visibilityState === "hidden") return;
    this.#wake();
    if (online || this.#name === "websocket") this.#transport?.probe();
  }

  #end(error) {
    if (this.#state === "closed") return;
    this.#closing.abort();
    clearTimeout(this.#renewal);
    this.#transport = this.#name = null;
    globalThis.removeEventListener?.("online", this.#onHint);
    globalThis.document?.removeEventListener("visibilitychange", this.#onHint);
    for (const listener of this.#subscriptions.keys()) listener.ready.reject(error);
    this.#opened.reject(error);
    this.#publishes.end(error);
    this.#presence.end(error);
    this.#setState("closed", error);
    for (const each of [...this.#alive]) each.close();
    this.#wake();
  }

  #setState(state, error = null, delay = null) {
    const previous = this.#state;
    this.#state = state;
    const changed = previous !== state || state === "open";
    if (changed) this.#emit("state", {state, previous, transport: this.#name, error, delay});
  }

  // subscriptions

  /** Subscribe to what is new, in one request for all made in this turn. */
  #scheduleSubscribe() {
    if (this.#subscribing) return;
    this.#subscribing = true;
    queueMicrotask(() => {
      this.#subscribing = false;
      if (this.#table.waiting) this.#transport?.changed();
    });
  }

  #unsubscribe(listener) {
    listener.unsubscribed = true;
    listener.ready.reject(new MistError("closed", "unsubscribed"));
    const ended = this.#public([listener]);
    this.#subscriptions.delete(listener);
    if (this.#table.remove(listener)) this.#transport?.unsubscribe(listener.tags);
    queueMicrotask(() => this.#ended(ended, "unsubscribed"));
  }

  /** The server sends what a listener asked for; once for each connection. */
  #live(listener) {
    const [subscription] = this.#public([listener]);
    const told = this.#announced.get(listener);
    if (!subscription || told === this.#connections) return;
    this.#announced.set(listener, this.#connections);
    this.#emit("subscribed", {subscription, again: told !== undefined});
  }

  #ended(subscriptions, reason) {
    for (const subscription of subscriptions) this.#emit("unsubscribed", {subscription, reason});
  }

  #public(listeners) {
    return listeners.map((each) => this.#subscriptions.get(each)).filter(Boolean);
  }

  #gap(listeners, reason) {
    const subscriptions = this.#public(listeners); // without those that unsubscribed meanwhile
    if (subscriptions.length) this.#emit("gap", {reason, subscriptions});
  }

  #revoked(listeners) {
    const subscriptions = this.#public(listeners);
    for (const each of listeners) {
      this.#subscriptions.delete(each);
      each.ready.reject(new MistError("not_granted", "the token allows it no more"));
    }
    if (subscriptions.length) this.#emit("revoked", {tags: subscriptions[0].tags, subscriptions});
    this.#ended(subscriptions, "revoked");
  }

  #refused(listener, error) {
    const [subscription] = this.#public([listener]);
    this.#subscriptions.delete(listener);
    listener.ready.reject(error);
    if (!subscription) return;
    this.#report(error, subscription, listener.awaited);
    this.#ended([subscription], "refused");
  }

  #deliver(listener, made) {
    this.#call(listener.handler, made, this.#subscriptions.get(listener) ?? null);
  }

  #presenceEnded(watch, error) {
    watch.answered.reject(error);
    this.#report(error, null, watch.awaited);
  }

  /** Nobody would know why nothing comes, where the program listens to no errors. */
  #report(error, subscription, told) {
    if (!this.#emit("error", {error, subscription}) && !told && !this.#isOver) reportUncaught(error);
  }

  #call(handler, detail, subscription) {
    const report = (cause) => {
      const error = new MistError("handler_failed", `a handler failed: ${cause}`, {cause});
      if (!this.#emit("error", {error, subscription})) reportUncaught(cause);
    };
    try {
      handler(detail)?.then?.(undefined, report);
    } catch (cause) {
      report(cause);
    }
  }

  /** Returns whether the event has a handler. */
  #emit(event, detail) {
    const handlers = [...this.#handlers.get(event)];
    for (const each of this.#isOver ? [] : handlers) {
      try {
        each(detail);
      } catch (error) {
        reportUncaught(error);
      }
    }
    return handlers.length > 0;
  }
}

/** Wait, or until the signal aborts. */
function sleep(seconds, signal) {
  return new Promise((resolve) => {
    const stop = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop); // it may outlive many a wait
      resolve();
    };
    const timer = after(seconds, stop);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop);
  });
}

// Half of a surrogate pair, of which no UTF-8 can be made: a server refuses a frame that has one as no
// JSON, and so can't tell which request that was.
const LONE_SURROGATE = /\p{Cs}/u;

/** What the server is sent of a message's data. */
function payload(data) {
  if (typeof data === "string") {
    if (LONE_SURROGATE.test(data)) throw new TypeError("data must not have lone surrogates");
    return {data};
  }
  if (!(data instanceof Uint8Array)) throw new TypeError("data must be a string or a Uint8Array");
  const letters = [];
  for (const each of data) letters.push(String.fromCharCode(each));
  return {data64: btoa(letters.join(""))};
}

/** Not randomUUID, which pages from http:// don't have. */
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

/** The audience of a message, with strings at any depth, as what the server is sent. */
function audience(to) {
  if (to === undefined) return {};
  JSON.stringify(to, (name, value) => {
    if (!LONE_SURROGATE.test(name) && !(typeof value === "string" && LONE_SURROGATE.test(value))) return value;
    throw new TypeError("to must not have lone surrogates");
  });
  return {to};
}

function parseKey(key) {
  if (typeof key === "string" && /^[!-~]{1,255}$/.test(key)) return key;
  throw new TypeError("key must be 1 to 255 ASCII letters without spaces");
}

function tagSet(tags) {
  const isValid = (tag) => typeof tag === "string" && tag !== "" && !/[, \p{Cc}\p{Cs}]/u.test(tag);
  if (!Array.isArray(tags) || tags.length === 0 || !tags.every(isValid)) {
    throw new TypeError("tags must be a non-empty array of strings without commas and spaces");
  }
  return [...new Set(tags)].sort(byCodePoint);
}

function parseSince(since) {
  if (since === undefined || since === null) return undefined;
  if (Number.isSafeInteger(since)) return since;
  const {epoch, id, latest} = since;
  if (LONE_SURROGATE.test(epoch ?? latest)) throw new TypeError("since must not have lone surrogates");
  if (typeof latest === "string" && epoch === undefined && id === undefined) return {latest};
  if (typeof epoch === "string" && Number.isSafeInteger(id) && id >= 0) return {epoch, id};
  throw new TypeError("since must be an id, -N, {epoch, id}, or {latest}");
}

/**
 * Connect, and reconnect until closed.
 *
 * @param {string | URL} url `https://…` negotiates the transport; `wss://…` is only a WebSocket
 * @param {object} options see mist.d.ts
 * @returns {Client}
 */
export function connect(url, options = {}) {
  if (typeof options.token === "function") {
    options = {...options, token: undefined, getToken: options.token};
  }
  const {token, getToken} = options;
  if (typeof token !== "string" && typeof getToken !== "function") {
    throw new TypeError("a token or getToken is required");
  }
  const backoff = {baseSeconds: 0.5, capSeconds: 30, ...options.backoff};
  const {WebSocket = globalThis.WebSocket} = options;
  const defaults = {transports: TRANSPORTS, maxQueue: 10_000, timeoutSeconds: 10};
  return new Client(url, {...defaults, retryBetterSeconds: 300, ...options, WebSocket, backoff});
}
