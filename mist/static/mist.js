/**
 * mist in a browser, a worker, or Node: subscriptions that outlive their connections.
 *
 *     import {connect} from "/mist.js";
 *     const client = connect("https://example.org", {getToken});
 *     const orders = client.subscribe(["order", "eu"], ({data}) => show(data));
 *
 * One file, without dependencies or a build step, so that a page can import it as it is; which
 * is why it is longer than a module should be. Its parts, each knowing only those above it:
 *
 *     Inbox              hands messages to handlers, in slices, so that the page can draw in between
 *     SubscriptionTable  who listens to what, and up to which message each has been served
 *     transports         WebSocket, Server-Sent Events by fetch, long polling: one contract
 *     TransportFallback  which transport to try, best first, and when to try a better one again
 *     Client             keeps one transport up, and is what a program calls
 *
 * How nothing is lost and nothing comes twice, where the server has a history: a message's id
 * is its place there. Each listener remembers the highest it was given and takes none twice, so
 * it is right whatever is brought again. Those that are live share a place too: the server sends
 * in one order, so an id that arrived for one says that the others miss none below it. On a fresh
 * connection they are resumed as one, from there. Where part of that is gone, "gap" says so.
 *
 * Times are in seconds. Message ids are below 2**53, so numbers hold them.
 */

const BEAT = 15; // between looks at whether a WebSocket is alive
const SILENCE = 30; // without an answer to a ping: the connection is dead
const PROBE = 5; // the same after a hint that it may be: the laptop woke, the network is back
const LATE = 5; // a timer that fires so much too late belongs to a page that was frozen
const STREAM_SILENCE = 45; // the server writes a comment every 15 s
const POLL = 25; // how long the server may hold a poll
const HEALTHY = 5; // a connection that lasted so long was one
const MAX_SHORT = 3; // connections in a row that were not, before another transport is tried
const SLICE = 0.008; // of handlers in a turn of the event loop: half a frame
const MAX_GROUP = 500; // tag sets in one frame; the server takes 1,000
const MAX_FRAME = 40_000; // characters of a frame, of up to 3 bytes; the server takes 128 KiB
const MAX_URL = 12_000; // characters; a server takes 16 KiB of headers
const MAX_EVENT = 1 << 25; // characters of an event; a message of 1 MiB takes at most a fifth
const MAX_HELD = 1 << 26; // characters of data that wait for handlers
const MATCHES = 4096; // tag sets whose listeners are remembered
const TRANSPORTS = ["websocket", "sse", "polling"]; // best first

/** Something went wrong; `code` says what, and is stable. */
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
 * Why a connection ended, or could not be had.
 *
 * final: coming back can't help. spread: others lost theirs at this moment too, so don't all
 * come back at once. pause: seconds that the server asks for. unfit: it can't be had in this
 * way, whatever the network.
 */
class Failure extends MistError {
  constructor(code, message, {final, spread, pause = 0, unfit, ...more} = {}) {
    super(code, message, more);
    Object.assign(this, {final: !!final, spread: !!spread, pause, unfit: !!unfit});
  }
}

const lost = (message, more) => new Failure("connection_lost", message, more);

// WebSocket close codes after which only a person can help (RFC 6455, 7.4; 44xx as in HTTP).
const FINAL = {
  1002: "protocol_violation",
  1007: "protocol_violation",
  1009: "protocol_violation",
  4400: "bad_request",
  4401: "unauthorized",
  4403: "origin_not_allowed",
};
const PASSING = {1001: "going_away", 4408: "timed_out", 4429: "too_many_requests"};

/** What a close code means; those of an event stream are the same. */
function closing(closeCode, reason) {
  const message = `${reason || "closed"} (${closeCode})`;
  if (closeCode in FINAL) return new Failure(FINAL[closeCode], message, {closeCode, final: true});
  const code = PASSING[closeCode] ?? "connection_lost";
  return new Failure(code, message, {closeCode, spread: code !== "connection_lost"});
}

// What a WebSocket's refusals say in words, as HTTP's codes.
const REFUSALS = {
  "History is off": "history_off",
  "History is unavailable": "history_unavailable",
  "Invalid position": "invalid_position",
  "Too many subscriptions": "too_many_subscriptions",
  "not granted by the token": "not_granted",
};

const now = () => performance.now() / 1000;
const after = (seconds, act) => setTimeout(act, seconds * 1000);

/** Let what else there is to do have its turn. A timer would be throttled in hidden pages. */
function breathe() {
  return new Promise((resolve) => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** A promise and what settles it. A rejection that nobody looks at is no mistake. */
function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, {resolve, reject}));
  made.promise.catch(() => {});
  return made;
}

/** The promise's value, or `failure` where it takes too long. */
async function within(seconds, promise, failure) {
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

/** An error that nobody listens for goes where uncaught ones go. */
function complain(error) {
  if (globalThis.reportError) globalThis.reportError(error);
  else console.error(error);
}

// The inbox

/**
 * What has arrived and is to be handed out, in order. That begins as soon as it is there; but
 * handlers have no more than a slice of each turn of the event loop, so that the page can draw
 * and react. It isn't enough to look how long a row of them takes: a browser brings hundreds of
 * messages in one turn, each after the one before has been handed out.
 */
class Inbox {
  #items = [];
  #next = 0;
  #weight = 0;
  #running = false;
  #spent = 0; // by handlers, since the turn began
  #turn = null; // resolves with the next one
  #waiting = []; // for calm

  /** @param {number} most messages, above which whoever fills it has to stop. */
  constructor(most) {
    this.most = most;
  }

  get length() {
    return this.#items.length - this.#next;
  }

  /** Whether it holds too much. */
  get full() {
    return this.length > this.most || this.#weight > MAX_HELD;
  }

  /** Whether whoever can wait should. */
  get crowded() {
    return this.length * 4 > this.most || this.#weight * 4 > MAX_HELD;
  }

  /** @param act must not throw; `weight` is in characters. */
  push(act, weight = 0) {
    this.#items.push({act, weight});
    this.#weight += weight;
    if (this.#running) return;
    this.#running = true;
    queueMicrotask(() => this.#run());
  }

  /** Wait until it is not crowded. */
  async calm() {
    while (this.crowded) await new Promise((resolve) => this.#waiting.push(resolve));
  }

  async #run() {
    while (this.#next < this.#items.length) {
      if (this.#spent >= SLICE) {
        this.#tidy();
        await this.#turn;
        continue;
      }
      const {act, weight} = this.#items[this.#next];
      this.#items[this.#next++] = undefined;
      this.#weight -= weight;
      const begun = now();
      act();
      this.#spend(now() - begun);
    }
    this.#running = false;
    this.#tidy();
  }

  #spend(seconds) {
    this.#spent += seconds;
    if (this.#spent === 0) return; // so little that the clock doesn't show it
    this.#turn ??= breathe().then(() => {
      this.#turn = null;
      this.#spent = 0;
    });
  }

  #tidy() {
    // Only where it pays: cutting off the front copies the rest.
    if (this.#next * 2 >= this.#items.length) {
      this.#items.splice(0, this.#next);
      this.#next = 0;
    }
    if (!this.crowded) this.#waiting.splice(0).forEach((each) => each());
  }
}

// The subscription table

const ABSENT = 0; // the server doesn't know of it
const ASKED = 1; // what arrives is still another's
const REPLAYED = 2; // messages come, old ones first
const LIVE = 3;

const historyOff = () => new MistError("history_off", "History is off");

/** Where a listener begins that asks for no old messages. */
const FROM_NOW = Symbol("from now on");

/** A handler and how far it has been served. */
class Listener {
  seen = null; // highest id given to it; null where it has no place
  epoch = null; // the log that this is an id of
  stage = ABSENT;
  settled = false; // was live once
  left = false; // wants nothing any more
  handed = null; // place of the last message that its handler was called with
  ready = deferred();

  constructor(tags, handler, since) {
    Object.assign(this, {tags, handler, since});
    this.key = tags.join(",");
  }
}

/** Whether a message with these tags is for a subscription to those. */
function matches(keys, tags) {
  return tags.every((tag) => keys.includes(tag));
}

/** A message as handlers get it. */
function message({keys, data, data64, id}) {
  if (data64 === undefined) return {keys, data, id};
  return {keys, bytes: Uint8Array.from(atob(data64), (it) => it.charCodeAt(0)), id};
}

/**
 * A question to the server: some listeners, all from one place.
 *
 * since: an id, -N, `{epoch, id}`, FROM_NOW; undefined where there is no history to ask.
 */
class Question {
  constructor(since, listeners = []) {
    this.since = since;
    this.listeners = listeners;
  }

  /** The tag sets, each once. */
  get tagSets() {
    return [...new Map(this.listeners.map((each) => [each.key, each.tags])).values()];
  }

  /** One for each tag set: which of them was it? */
  split() {
    const parts = new Map();
    for (const each of this.listeners) {
      if (!parts.has(each.key)) parts.set(each.key, new Question(this.since));
      parts.get(each.key).listeners.push(each);
    }
    return [...parts.values()];
  }
}

/**
 * Who listens to what, and up to where. Outlives connections.
 *
 * history: whether the server has one; null until that is known. epoch: which log the places
 * are in.
 */
class SubscriptionTable {
  history = null;
  epoch = null;
  #newest = 0; // live listeners miss none up to here
  #topics = new Map(); // by key, sets of listeners
  #matching = new Map(); // by a message's keys, listeners

  /**
   * @param {Inbox} inbox
   * @param tell `gap(listeners, reason)`, `revoked(listeners)`, `refused(listener, error)`,
   *   `hand(listener, message)`
   */
  constructor(inbox, tell) {
    this.inbox = inbox;
    this.tell = tell;
  }

  get listeners() {
    return [...this.#topics.values()].flatMap((each) => [...each]);
  }

  /** Every tag set, once. */
  get tagSets() {
    return new Question(null, this.listeners).tagSets;
  }

  /** Whether somebody has yet to be asked for. */
  get waiting() {
    return this.listeners.some((each) => each.stage === ABSENT);
  }

  add(listener) {
    if (this.history === false && listener.since !== undefined) {
      queueMicrotask(() => this.tell.refused(listener, historyOff()));
      return;
    }
    const topic = this.#topics.get(listener.key) ?? new Set();
    this.#topics.set(listener.key, topic);
    const company = [...topic].some((each) => each.stage === LIVE);
    topic.add(listener);
    this.#matching.clear();
    if (!company || listener.since !== undefined) return;
    // The server sends these messages anyway; there is nothing to ask.
    listener.seen = this.history ? this.#newest : null;
    listener.epoch = this.epoch;
    this.#settle(listener);
  }

  /** Returns whether nobody listens to these tags any more. */
  remove(listener) {
    const topic = this.#topics.get(listener.key);
    if (!topic?.delete(listener)) return false;
    this.#matching.clear();
    return topic.size === 0 && this.#topics.delete(listener.key);
  }

  // what to ask

  /** What has yet to be asked for, in as few questions as can be. */
  questions() {
    const found = new Map();
    for (const each of this.listeners) {
      if (each.stage !== ABSENT) continue;
      const since = this.#start(each);
      if (since === undefined && each.since !== undefined && !each.settled) {
        this.refuse(each, historyOff());
        continue;
      }
      each.stage = ASKED;
      // The last three of each are not the last three of all.
      const own = typeof since === "number" && since < 0 ? each.key : "";
      const key = JSON.stringify([typeof since, since, own]);
      if (!found.has(key)) found.set(key, new Question(since));
      found.get(key).listeners.push(each);
    }
    return [...found.values()].flatMap(inPortions);
  }

  #start(listener) {
    if (this.history === false) return undefined;
    if (listener.seen !== null) return {epoch: listener.epoch, id: listener.seen};
    return listener.since === undefined || listener.settled ? FROM_NOW : listener.since;
  }

  /** The connection is gone. */
  broken() {
    for (const each of this.listeners) {
      if (each.stage === LIVE && each.seen !== null) each.seen = Math.max(each.seen, this.#newest);
      each.stage = ABSENT;
    }
    this.#newest = 0; // the next server's log may have been put back to an earlier state
  }

  // what the server says

  /** The question is answered; what it asks for begins. `recovered` false: part of it is gone. */
  begun({since, listeners}, {epoch, id, recovered}) {
    this.#log(epoch);
    for (const each of listeners) {
      each.seen = beginning(each.seen, since, epoch, id);
      each.epoch = epoch;
      each.stage = REPLAYED;
      this.#mark(each);
      // Of whom it was live before, and has no place now, it is not known what passed by.
      if (since === FROM_NOW && each.settled) this.#gap([each], "history");
    }
    if (!recovered && since !== FROM_NOW) this.#gap(listeners, "history");
  }

  /** All that these asked for up to an id has come. */
  placed({listeners}, id) {
    for (const each of listeners) each.seen = Math.max(each.seen ?? 0, id);
  }

  /** The same; and what comes from here on, comes to them. */
  live(question, id) {
    this.placed(question, id);
    this.reached(id);
    for (const each of question.listeners) this.#settle(each);
  }

  /** The same from a server without a history. */
  plain({listeners}) {
    const back = listeners.filter((each) => each.settled);
    for (const each of listeners) {
      each.seen = null;
      this.#settle(each);
    }
    if (back.length) this.#gap(back, "no_history");
  }

  /**
   * One stream for all begins at the lowest of their places, and brings everything in order.
   * `id` is where the log ends, for all that is known.
   */
  streaming({epoch, id, recovered}) {
    const listeners = this.asked;
    for (const each of listeners) {
      // A log that ends before a place was put back to an earlier state.
      each.seen = each.epoch === epoch ? Math.min(each.seen, id) : 0;
      each.epoch = epoch;
    }
    this.#log(epoch);
    this.#newest = this.lowest;
    for (const each of listeners) this.#settle(each);
    if (!recovered) this.#gap(listeners, "history");
  }

  /** Those that the server was asked for. */
  get asked() {
    return this.listeners.filter((each) => each.stage !== ABSENT);
  }

  /** The lowest of their places; Infinity without a history. */
  get lowest() {
    return Math.min(...this.asked.map((each) => each.seen ?? Infinity));
  }

  /** Whether their places are in more than one log. */
  get scattered() {
    return this.asked.some((each) => each.seen !== null && each.epoch !== this.epoch);
  }

  /** All up to this id has come. */
  reached(id) {
    this.#newest = Math.max(this.#newest, id);
  }

  /** The server said that it has no history. */
  off() {
    this.history = false;
    this.epoch = null;
  }

  /** Retention took something that was being replayed, before it was read. */
  trimmed() {
    const replayed = this.listeners.filter((each) => each.stage === REPLAYED);
    this.#gap(replayed.length ? replayed : this.listeners, "history");
  }

  /** A message. `only`: it comes in answer to a question of these, and says nothing of others. */
  receive(frame, only) {
    const {id} = frame;
    if (id !== undefined && !only && id > this.#newest) this.#newest = id;
    let made;
    for (const each of this.#listening(frame.keys)) {
      if (each.stage < REPLAYED || (only && !only.includes(each))) continue;
      if (id !== undefined) {
        if (each.seen !== null && id <= each.seen) continue;
        each.seen = id;
      }
      made ??= message(frame);
      this.#queue(each, made);
    }
  }

  #queue(listener, made) {
    const {epoch} = listener;
    this.inbox.push(() => {
      if (listener.left) return;
      if (made.id !== undefined) listener.handed = {epoch, id: made.id};
      this.tell.hand(listener, made);
    }, (made.data ?? made.bytes).length);
  }

  #listening(keys) {
    const key = keys.join(",");
    let found = this.#matching.get(key);
    if (found) return found;
    if (this.#matching.size >= MATCHES) this.#matching.clear();
    found = this.listeners.filter((each) => matches(keys, each.tags));
    this.#matching.set(key, found);
    return found;
  }

  /** The token doesn't allow these tags any more. What came before that is handed out. */
  revoked(tags) {
    const listeners = [...(this.#topics.get([...tags].sort(byCodePoint).join(",")) ?? [])];
    if (!listeners.length) return;
    for (const each of listeners) this.remove(each);
    this.inbox.push(() => this.tell.revoked(listeners));
  }

  /** A question was refused. Returns questions to be asked in its place. */
  refused(question, error) {
    if (error.code === "history_off" && question.since !== undefined) {
      this.off();
      for (const each of question.listeners) each.stage = ABSENT;
      return this.questions();
    }
    const parts = question.split();
    if (parts.length > 1) return parts;
    for (const each of question.listeners) this.refuse(each, error);
    return [];
  }

  /** One that was live before has been revoked meanwhile; a new one was never allowed. */
  refuse(listener, error) {
    this.remove(listener);
    if (listener.settled) this.inbox.push(() => this.tell.revoked([listener]));
    else this.tell.refused(listener, error);
  }

  #settle(listener) {
    listener.stage = LIVE;
    listener.settled = true;
    listener.ready.resolve();
    this.#mark(listener);
  }

  // In its turn: what is queued before it has older places.
  #mark(listener) {
    const {seen, epoch} = listener;
    if (seen === null) return;
    this.inbox.push(() => {
      const same = listener.handed?.epoch === epoch;
      listener.handed = {epoch, id: same ? Math.max(seen, listener.handed.id) : seen};
    });
  }

  #gap(listeners, reason) {
    if (listeners.length) this.inbox.push(() => this.tell.gap(listeners, reason));
  }

  #log(epoch) {
    this.history = true;
    if (this.epoch !== epoch) this.#newest = 0;
    this.epoch = epoch;
  }
}

/** The id after which a listener is to be given messages; null for whatever comes. */
function beginning(seen, since, epoch, newest) {
  if (since === FROM_NOW) return newest;
  // Ids of another log, or beyond the end of this one: everything may be news.
  if (typeof since === "object" && since.epoch !== epoch) return 0;
  if (seen !== null) return Math.min(seen, newest);
  const id = since.id ?? since;
  if (id < 0) return null;
  return id <= newest ? id : 0;
}

/** A question in pieces that a frame can hold. */
function inPortions(question) {
  const portions = [];
  let size = Infinity;
  for (const each of question.listeners) {
    size += each.key.length + 4 * each.tags.length;
    if (size > MAX_FRAME || portions.at(-1).listeners.length >= MAX_GROUP) {
      portions.push(new Question(question.since));
      size = each.key.length + 4 * each.tags.length;
    }
    portions.at(-1).listeners.push(each);
  }
  return portions;
}

// As the server sorts: UTF-16's order is another one beyond the BMP.
function byCodePoint(one, other) {
  const [left, right] = [[...one], [...other]];
  const at = left.findIndex((it, index) => it !== right[index]);
  if (at < 0) return left.length - right.length;
  return left[at].codePointAt(0) - (right[at]?.codePointAt(0) ?? -1);
}

// Transports

/**
 * What all transports are to the client.
 *
 * `open()` resolves once the server has answered, and rejects with a `Failure`. `start()` asks
 * for all that the table wants, `changed()` for what is new, `leave(tags)` ends it. `refresh()`
 * brings another token, `probe()` asks for a sign of life. `ended` resolves with a `Failure`.
 */
class Transport {
  #ended = deferred();
  gone = false;

  constructor(url, token, table) {
    Object.assign(this, {url, token, table, ended: this.#ended.promise});
  }

  /** End it, once. */
  end(failure) {
    if (this.gone) return;
    this.gone = true;
    this.shut(failure);
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

/** JSON frames; each request carries a `ref`, and its reply the same. */
class WebSocketTransport extends Transport {
  #socket;
  #opening = deferred();
  #refs = 0;
  #asked = new Map(); // by ref, what to do with the reply
  #heard = false; // something since the last beat
  #beat;
  #beaten = Date.now();
  #probe = null;

  open() {
    try {
      // A page can't set headers here. In the URL the token would end up in logs.
      const protocols = ["mist.v1", "mist.token." + base64url(this.token)];
      this.#socket = new WebSocket(this.url, protocols);
    } catch (cause) {
      // No such URL; or a page from https:// may not use ws://.
      throw new Failure("unreachable", cause.message, {cause, unfit: true});
    }
    // Only an answer says that we are in: a page is let in to be told why it is not.
    this.#socket.onopen = () => this.#ask({command: "ping"}, this.#opening.resolve);
    this.#socket.onmessage = (event) => this.#receive(event.data);
    this.#socket.onclose = (event) => this.end(closing(event.code, event.reason));
    return this.#opening.promise;
  }

  start() {
    this.#beat = setInterval(() => this.#look(), BEAT * 1000);
    this.changed();
  }

  changed() {
    for (const each of this.table.questions()) this.#subscribe(each);
  }

  leave(tags) {
    this.#ask({command: "unsubscribe", tags}, () => {});
  }

  refresh(token) {
    const {promise, resolve, reject} = deferred();
    this.ended.then(reject);
    this.#ask({command: "auth", token}, ({success}) => {
      if (success) resolve(); // else a close frame follows, and says why
    });
    return promise;
  }

  /** Have the connection given up if nothing comes within so many seconds. */
  probe(seconds = PROBE, again = false) {
    const due = Date.now() / 1000 + seconds;
    if (this.#probe?.due <= due) return;
    clearTimeout(this.#probe?.timer);
    this.#ask({command: "ping"}, () => {});
    const timer = after(seconds, () => {
      this.#probe = null;
      // The answer may have come while the page was frozen, and stand behind this in line.
      if (!again && Date.now() / 1000 - due > LATE) this.probe(PROBE, true);
      else this.end(lost(`no answer for ${seconds} s`));
    });
    this.#probe = {due, timer};
  }

  shut(failure) {
    clearInterval(this.#beat);
    clearTimeout(this.#probe?.timer);
    const socket = this.#socket;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      // Node's tells of a connection that never was, and kills a process that doesn't listen.
      socket.onerror = () => {};
      socket.close();
    }
    this.#opening.reject(failure);
  }

  #ask(frame, answered) {
    if (this.#socket.readyState !== WebSocket.OPEN) return; // it is about to be told closed
    this.#asked.set(++this.#refs, answered);
    this.#socket.send(JSON.stringify({...frame, ref: this.#refs}));
  }

  // Beats are counted: timers of a hidden page come up to a minute late.
  #look() {
    const slept = Date.now() - this.#beaten > 3000 * BEAT;
    this.#beaten = Date.now();
    if (slept || !this.#heard) this.probe(slept ? PROBE : SILENCE);
    this.#heard = false;
  }

  #receive(text) {
    this.#heard = true;
    clearTimeout(this.#probe?.timer);
    this.#probe = null;
    try {
      this.#take(JSON.parse(text));
    } catch (cause) {
      this.end(new Failure("protocol_violation", "the server sent what is no frame", {cause}));
    }
  }

  #take(frame) {
    if (frame.keys) {
      this.table.receive(frame);
      // Read on once there is room; the history has the rest.
      if (this.table.inbox.full) this.end(new Failure("too_slow", "messages come too fast"));
    } else if (frame.command === "revoked") {
      this.table.revoked(frame.tags);
    } else if (frame.command === "gap") {
      this.table.trimmed();
    } else {
      const answered = this.#asked.get(frame.ref);
      this.#asked.delete(frame.ref);
      answered?.(frame);
    }
  }

  #subscribe(question) {
    const {since, tagSets} = question;
    const what = tagSets.length === 1 ? {tags: tagSets[0]} : {subscriptions: tagSets};
    let begun = null;
    const place = since === FROM_NOW ? -1 : since; // the last one is brought, and thrown away
    this.#ask({command: "subscribe", ...what, since: place}, (reply) => {
      if (!reply.success) this.#refused(question, reply.error);
      else if (reply.epoch === undefined) this.table.plain(question);
      else this.table.begun(question, (begun = reply));
    });
    // Its answer stands behind the last of what is replayed.
    if (since === undefined) return;
    this.#ask({command: "ping"}, () => begun && this.table.live(question, begun.id));
  }

  #refused(question, text) {
    const error = new MistError(REFUSALS[text] ?? "refused", text);
    if (error.code === "history_unavailable") {
      this.end(new Failure(error.code, text, {spread: true}));
      return;
    }
    for (const each of this.table.refused(question, error)) this.#subscribe(each);
  }
}

/** What SSE and polling share: requests, one for all subscriptions, made again at a change. */
class HttpTransport extends Transport {
  #change = new AbortController();
  #refreshing = null;

  async open() {
    const {tagSets} = this.table;
    if (tagSets.length === 0) return; // there is nothing yet to ask for
    try {
      await this.hello(tagSets, this.#change.signal);
    } catch (failure) {
      if (failure.code !== "not_granted") throw failure;
    }
  }

  start() {
    this.#work().catch((error) => {
      const failure = error instanceof Failure ? error : lost(error.message, {cause: error});
      this.end(failure);
    });
  }

  changed() {
    this.#change.abort();
  }

  leave() {
    // Without a history a new stream would cost messages; so the old one brings too many.
    if (this.table.history !== false) this.#change.abort();
  }

  probe() {
    this.#change.abort(); // a new request is answered, or it is not
  }

  async refresh(token) {
    this.token = token;
    if (this.table.tagSets.length === 0) return; // it is looked at with the first
    this.#refreshing ??= deferred();
    this.ended.then(this.#refreshing.reject);
    this.#change.abort();
    await this.#refreshing.promise;
  }

  /** The server takes the token. */
  answered() {
    this.#refreshing?.resolve();
    this.#refreshing = null;
  }

  shut() {
    this.#change.abort();
  }

  async #work() {
    while (!this.gone) {
      this.#change = new AbortController();
      const {signal} = this.#change;
      try {
        this.table.broken();
        if (this.table.tagSets.length === 0) await aborted(signal);
        await this.#place(signal);
        // The server may have lost its log between two questions; then some are asked again.
        if (!this.table.scattered) await this.listen(this.table.tagSets, signal);
      } catch (error) {
        if (signal.aborted) continue; // only what is to be asked for has changed
        if (error.code === "history_off" && this.table.history !== false) this.table.off();
        else if (error.code !== "not_granted" || !(await this.#sift(signal))) throw error;
      }
    }
  }

  /** Give every listener a place, so that one stream can serve all of them. */
  async #place(signal) {
    const questions = this.table.questions();
    while (questions.length) {
      const question = questions.shift();
      const {since, listeners} = question;
      if (since === undefined || listeners.every((each) => this.#hasPlace(each))) continue;
      try {
        const place = since === FROM_NOW ? undefined : since;
        const answer = await this.poll(question.tagSets, place, 0, signal);
        this.table.begun(question, answer);
        for (const each of answer.messages) this.table.receive(each, listeners);
        this.table.placed(question, answer.id);
        await this.table.inbox.calm();
      } catch (error) {
        if (!OWN_FAULTS.has(error.code)) throw error;
        questions.push(...this.table.refused(question, error));
      }
    }
  }

  #hasPlace(listener) {
    return listener.seen !== null && listener.epoch === this.table.epoch;
  }

  /** Find out which subscriptions the token doesn't allow. Returns whether there are any. */
  async #sift(signal) {
    let found = false;
    for (const part of new Question(null, this.table.listeners).split()) {
      try {
        await this.hello(part.tagSets, signal);
      } catch (error) {
        if (signal.aborted) return true;
        if (error.code !== "not_granted") throw error;
        this.table.refused(part, error);
        found = true;
      }
    }
    return found;
  }

  /** One poll's answer; at once where `timeout` is 0. */
  poll(tagSets, since, timeout, signal) {
    const more = {timeout, ...(since === undefined ? {} : {since: position(since)})};
    const answer = this.get(this.url.poll, tagSets, more, signal).then((it) => it.json());
    return within(timeout + SILENCE, answer, lost("the poll was not answered"));
  }

  /** A response that is fine. Raises a `Failure` at any other. */
  async get(url, tagSets, more, signal) {
    const query = new URLSearchParams(tagSets.map((tags) => ["tags", tags.join(",")]));
    for (const [name, value] of Object.entries(more)) query.append(name, value);
    const target = `${url}?${query}`;
    if (target.length > MAX_URL) {
      throw new Failure("too_many_subscriptions", "too many for a URL", {unfit: true});
    }
    return request(target, {headers: {"X-Auth-Token": this.token}, signal});
  }
}

// What is wrong with one question, and not with the connection.
const OWN_FAULTS = new Set(["not_granted", "invalid_position", "too_many_subscriptions"]);

/** A place as URLs have it. */
function position(since) {
  return typeof since === "object" ? `${since.epoch}:${since.id}` : since;
}

/** Wait for a signal; raises then. */
function aborted(signal) {
  return new Promise((_, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, {once: true});
  });
}

async function request(url, options) {
  let response;
  try {
    // Redirected, the token would be given to whom we don't know.
    response = await fetch(url, {cache: "no-store", redirect: "error", ...options});
  } catch (cause) {
    throw lost("the server can't be reached", {cause});
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** What a response means that is not fine: a problem of the server's, or a proxy's page. */
async function refusal(response) {
  const {status} = response;
  const problem = await response.json().catch(() => ({}));
  const code = problem.code ?? `http_${status}`;
  const message = problem.detail ?? problem.title ?? `HTTP ${status}`;
  if (status === 401) return closing(4401, message);
  if (code === "origin_not_allowed") return closing(4403, message);
  const pause = Number(response.headers.get("Retry-After")) || 0;
  return new Failure(code, message, {
    pause,
    spread: status === 429 || status === 503,
    unfit: [404, 405, 409, 410, 421].includes(status),
  });
}

/** Server-Sent Events, read by fetch: an EventSource can't send a token in a header. */
class StreamTransport extends HttpTransport {
  async hello(tagSets, signal) {
    const response = await this.get(this.url.stream, tagSets, {}, signal);
    // A proxy that holds streams back lets the head through, perhaps, but no event.
    for await (const event of events(response.body)) if (event.type === "ready") return;
    throw lost("the stream ended");
  }

  async listen(tagSets, signal) {
    const {table} = this;
    const id = table.lowest;
    const more = id === Infinity ? {} : {since: position({epoch: table.epoch, id})};
    const opening = this.get(this.url.stream, tagSets, more, signal);
    const response = await within(SILENCE, opening, lost("the stream did not begin"));
    for await (const {type, data} of events(response.body)) {
      if (type === "end" && data.code === 1000) return; // its last subscription was revoked
      if (type === "end") throw closing(data.code, data.reason);
      this.#take(type, data);
      await table.inbox.calm();
    }
    throw lost("the stream ended");
  }

  #take(type, data) {
    const {table} = this;
    switch (type) {
      case "ready":
        this.answered();
        if (data.epoch === null) table.plain(new Question(undefined, table.asked));
        else table.streaming(data);
        break;
      case "message":
        table.receive(data);
        break;
      case "gap":
        table.trimmed();
        break;
      case "revoked":
        table.revoked(data.tags);
        break;
    }
  }
}

/** The events of a stream, their data read as JSON. */
async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const event = {type: "message", data: ""};
  let rest = "";
  try {
    for (;;) {
      const silent = lost("the stream is silent");
      const {done, value} = await within(STREAM_SILENCE, reader.read(), silent);
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
    reader.cancel().catch(() => {});
  }
}

/** Long polling, for networks that break streams. Needs a history. */
class PollTransport extends HttpTransport {
  hello(tagSets, signal) {
    return this.poll(tagSets, undefined, 0, signal);
  }

  async listen(tagSets, signal) {
    const {table} = this;
    if (table.history === false) {
      throw new Failure("history_off", "there is no history", {unfit: true});
    }
    let place = {epoch: table.epoch, id: table.lowest};
    // The first answers at once, and so says that what was asked for holds.
    for (let timeout = 0; ; timeout = POLL) {
      const asked = now();
      const answer = await this.poll(tagSets, place, timeout, signal);
      this.answered();
      // What it has read up to, which is less than where the log ends; or was, and isn't any more.
      table.streaming({...answer, id: answer.id < place.id ? answer.id : Infinity});
      for (const each of answer.messages) table.receive(each);
      table.reached(answer.id);
      place = {epoch: answer.epoch, id: answer.id};
      await table.inbox.calm();
      // Something between answers for the server, and doesn't wait.
      if (timeout && !answer.messages.length && now() - asked < 1) await sleep(1, signal);
    }
  }
}

const KINDS = {websocket: WebSocketTransport, sse: StreamTransport, polling: PollTransport};

// Which of them

/** Which transports to try, best first. */
class TransportFallback {
  #until = new Map(); // when to try one again that did not work where a lesser one did
  #short = new Map(); // how often in a row it was had, and lost at once

  constructor(names, patience) {
    this.names = names;
    this.patience = patience;
  }

  /** Those that are `offered`, in the order in which to try them. */
  order(offered) {
    const found = this.names.filter((each) => offered[each]);
    const fine = found.filter((each) => !this.#avoided(each));
    return [...fine, ...found.filter((each) => this.#avoided(each))];
  }

  #avoided(name) {
    return (this.#until.get(name) ?? 0) > now();
  }

  /** `name` can be had; those in `failed` can't. */
  worked(name, failed) {
    this.#until.delete(name);
    for (const each of failed) this.#until.set(each, now() + this.patience);
  }

  /** A connection ended after so many seconds. */
  ended(name, failure, lasted) {
    const cut = failure.code === "connection_lost" && lasted < HEALTHY;
    const times = cut ? (this.#short.get(name) ?? 0) + 1 : 0;
    this.#short.set(name, times);
    // Some proxies let a WebSocket through, and cut it.
    if (times >= MAX_SHORT || failure.unfit) this.worked(null, [name]);
  }

  /** Those better than `name`, and when the first of them should be tried again. */
  above(name) {
    const names = this.names.slice(0, Math.max(0, this.names.indexOf(name)));
    return {names, due: Math.min(...names.map((each) => this.#until.get(each) ?? 0))};
  }
}

/** Where the endpoints are: asked for at an HTTP URL, known of a WebSocket's. */
class Endpoints {
  constructor(url, wanted) {
    const parsed = new URL(url, globalThis.location?.href);
    if (!/^(ws|http)s?:$/.test(parsed.protocol)) {
      throw new SyntaxError("the URL has to begin with https://, http://, wss:// or ws://");
    }
    parsed.hash = "";
    this.direct = parsed.protocol.startsWith("ws");
    if (this.direct && parsed.pathname === "/") parsed.pathname = "/subscribe/websocket";
    this.url = parsed.href;
    this.wanted = wanted;
  }

  /** A URL, or several, for each transport that there is, and whether there is a history. */
  async find(signal) {
    if (this.direct) return {urls: {websocket: this.url}, history: null};
    const base = this.url.replace(/\/+$/, ""); // perhaps with a path, where a proxy has put it
    const found = await (await request(`${base}/v1/endpoints`, {signal})).json();
    const at = (path) => (path?.startsWith("/") ? base + path : path);
    const http = {stream: at(found.stream), poll: at(found.poll)};
    const urls = {
      websocket: found.websocket,
      sse: found.stream && http,
      polling: found.history && found.poll && http,
    };
    return {urls, history: found.history};
  }
}

// The client

const EVENTS = ["state", "gap", "revoked", "error"];

/** A subscription, made by `Client.subscribe`. */
class Subscription {
  #listener;
  #leave;

  constructor(listener, leave) {
    this.#listener = listener;
    this.#leave = leave;
    this.tags = Object.freeze([...listener.tags]);
    this.ready = listener.ready.promise;
  }

  /** Where it stands, for `since` another time; null where there is no history. */
  get position() {
    return this.#listener.handed && {...this.#listener.handed};
  }

  /** Its handler isn't called any more, not even with what has arrived. */
  unsubscribe() {
    this.#leave(this.#listener);
  }
}

/** A connection that is kept up. Made by `connect`. */
class Client {
  #options;
  #endpoints;
  #fallback;
  #inbox;
  #table;
  #subscriptions = new Map(); // by listener
  #handlers = new Map(EVENTS.map((each) => [each, new Set()]));
  #state = "connecting";
  #transport = null;
  #name = null; // of the transport
  #alive = new Set(); // transports, those that are yet to open among them
  #closing = new AbortController();
  #wake = () => {};
  #failures = 0; // in a row
  #opened = deferred(); // the next time that it is open
  #asking = false; // new subscriptions are about to be asked for
  #hint = (event) => this.#hinted(event.type === "online");

  constructor(url, options) {
    this.#options = options;
    this.#endpoints = new Endpoints(url);
    const names = TRANSPORTS.filter((each) => options.transports.includes(each));
    this.#fallback = new TransportFallback(names, options.retryBetterSeconds);
    this.#inbox = new Inbox(options.maxQueue);
    this.#table = new SubscriptionTable(this.#inbox, {
      hand: (listener, made) => this.#hand(listener, made),
      gap: (listeners, reason) => this.#gap(listeners, reason),
      revoked: (listeners) => this.#revoked(listeners),
      refused: (listener, error) => this.#refused(listener, error),
    });
    globalThis.addEventListener?.("online", this.#hint);
    globalThis.document?.addEventListener("visibilitychange", this.#hint);
    // Not before whoever called has listened and subscribed, so that one question does.
    queueMicrotask(() => this.#run());
  }

  /** `connecting`, `open`, `waiting` (for another attempt) or `closed` (for good). */
  get state() {
    return this.#state;
  }

  /** `websocket`, `sse` or `polling` while open, else null. */
  get transport() {
    return this.#name;
  }

  subscribe(tags, handler, {since} = {}) {
    const listener = new Listener(tagSet(tags), handler, place(since));
    if (typeof handler !== "function") throw new TypeError("handler has to be a function");
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    const subscription = new Subscription(listener, (it) => this.#leave(it));
    this.#subscriptions.set(listener, subscription);
    this.#table.add(listener);
    this.#ask();
    return subscription;
  }

  on(event, handler) {
    const handlers = this.#handlers.get(event);
    if (!handlers) throw new TypeError(`no such event: ${event}`);
    const own = (detail) => handler(detail); // twice the same is two
    handlers.add(own);
    return () => handlers.delete(own);
  }

  async refresh(token) {
    if (token !== undefined) this.#options.token = token;
    else if (!this.#options.getToken) throw new TypeError("there is no getToken");
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    if (this.#state !== "open") {
      this.#wake();
      return this.#opened.promise;
    }
    return this.#transport.refresh(await this.#token());
  }

  close() {
    this.#end(new MistError("closed", "closed by the program"));
  }

  // keeping it up

  async #run() {
    while (this.#state !== "closed") {
      let failure;
      let lasted = 0;
      try {
        this.#enter("connecting");
        await this.#inbox.calm(); // a page that is behind takes first what it has
        const [name, transport] = await this.#establish();
        const since = now();
        failure = await this.#hold(name, transport);
        lasted = now() - since;
      } catch (error) {
        failure = error instanceof Failure ? error : lost(error.message, {cause: error});
      }
      if (this.#state === "closed") return;
      // Whoever can get tokens may have got a new one by now.
      const renew = failure.code === "unauthorized" && this.#options.getToken && lasted > 0;
      if (failure.final && !renew) return void this.#end(failure);
      await this.#pause(failure, lasted >= HEALTHY);
    }
  }

  /** A transport that is open, the best that can be had. */
  async #establish() {
    const {urls, history} = await this.#within(this.#endpoints.find(this.#closing.signal));
    if (history !== null) this.#setHistory(history);
    const failed = [];
    let failure = new Failure("no_transport", "no transport that is wanted is offered");
    for (const name of this.#fallback.order(urls)) {
      try {
        const transport = await this.#open(name, urls[name]);
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
    if (!history) this.#table.off();
    else if (this.#table.history === false) this.#table.history = null; // there is one after all
  }

  async #open(name, url) {
    const token = await this.#within(this.#token());
    if (this.#state === "closed") throw new MistError("closed", "the client is closed");
    const transport = new KINDS[name](url, token, this.#table);
    this.#alive.add(transport);
    transport.ended.then(() => this.#alive.delete(transport));
    try {
      await this.#within(transport.open());
      return transport;
    } catch (error) {
      transport.close();
      throw error;
    }
  }

  #within(promise) {
    const {timeoutSeconds} = this.#options;
    return within(timeoutSeconds, promise, lost(`no answer for ${timeoutSeconds} s`));
  }

  async #token() {
    const {token, getToken} = this.#options;
    const found = getToken && token === undefined ? await getToken() : token;
    if (typeof found !== "string") throw new Failure("no_token", "getToken gave no string");
    return found;
  }

  /** Serve on a transport until it ends; returns why. Where a better one can be had, on that. */
  async #hold(name, transport) {
    for (;;) {
      this.#name = name;
      this.#transport = transport;
      this.#enter("open");
      this.#opened.resolve();
      this.#opened = deferred();
      transport.start();
      const since = now();
      const over = new AbortController();
      const outcome = await Promise.race([transport.ended, this.#better(name, over.signal)]);
      over.abort();
      this.#transport = this.#name = null;
      this.#table.broken();
      if (outcome instanceof Failure) {
        this.#fallback.ended(name, outcome, now() - since);
        return outcome;
      }
      transport.close();
      [name, transport] = outcome;
    }
  }

  /** Resolves once a better transport is open, if ever. */
  async #better(name, signal) {
    for (;;) {
      const {names, due} = this.#fallback.above(name);
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
      const {urls} = await this.#within(this.#endpoints.find(signal));
      for (const each of names.filter((it) => urls[it])) {
        try {
          return [each, await this.#open(each, urls[each])];
        } catch {
          if (signal.aborted) return null;
        }
      }
    } catch {
      // What there is goes on; another time, then.
    }
    return null;
  }

  /** Wait before another attempt, a random part of a span that doubles (full jitter). */
  async #pause(failure, healthy) {
    if (failure.code === "too_slow") return;
    if (healthy) this.#failures = 0;
    const {baseSeconds, capSeconds} = this.#options.backoff;
    const span = Math.min(capSeconds, baseSeconds * 2 ** this.#failures);
    // At once after a connection that was well; but not where everybody has lost theirs.
    const delay = healthy && !failure.spread ? 0 : Math.max(failure.pause, Math.random() * span);
    if (!healthy || failure.spread) this.#failures += 1;
    this.#enter("waiting", failure, delay);
    const waking = new AbortController();
    this.#wake = () => waking.abort();
    if (delay > 0) await sleep(delay, waking.signal);
    this.#wake = () => {};
  }

  /** The network is back, or somebody looks at the page again: don't wait for a timer. */
  #hinted(online) {
    if (!online && document.visibilityState === "hidden") return;
    this.#wake();
    if (online || this.#name === "websocket") this.#transport?.probe();
  }

  #end(error) {
    if (this.#state === "closed") return;
    this.#closing.abort();
    this.#transport = this.#name = null;
    globalThis.removeEventListener?.("online", this.#hint);
    globalThis.document?.removeEventListener("visibilitychange", this.#hint);
    for (const listener of this.#subscriptions.keys()) {
      // What has come is handed out, unless the program itself wants no more.
      listener.left = error.code === "closed";
      listener.ready.reject(error);
    }
    this.#opened.reject(error);
    this.#enter("closed", error);
    for (const each of [...this.#alive]) each.close();
    this.#wake();
  }

  #enter(state, error = null, delay = null) {
    const previous = this.#state;
    this.#state = state;
    const changed = previous !== state || state === "open";
    if (changed) this.#tell("state", {state, previous, transport: this.#name, error, delay});
  }

  // subscriptions

  /** Ask for what is new, once for all that are made in one go. */
  #ask() {
    if (this.#asking) return;
    this.#asking = true;
    queueMicrotask(() => {
      this.#asking = false;
      if (this.#table.waiting) this.#transport?.changed();
    });
  }

  #leave(listener) {
    listener.left = true;
    listener.ready.reject(new MistError("closed", "unsubscribed"));
    this.#subscriptions.delete(listener);
    if (this.#table.remove(listener)) this.#transport?.leave(listener.tags);
  }

  #public(listeners) {
    return listeners.map((each) => this.#subscriptions.get(each)).filter(Boolean);
  }

  #gap(listeners, reason) {
    const subscriptions = this.#public(listeners); // those that have not left meanwhile
    if (subscriptions.length) this.#tell("gap", {reason, subscriptions});
  }

  #revoked(listeners) {
    const subscriptions = this.#public(listeners);
    for (const each of listeners) this.#subscriptions.delete(each);
    if (subscriptions.length) this.#tell("revoked", {tags: subscriptions[0].tags, subscriptions});
  }

  #refused(listener, error) {
    const [subscription] = this.#public([listener]);
    this.#subscriptions.delete(listener);
    listener.ready.reject(error);
    if (subscription) this.#tell("error", {error, subscription});
  }

  #hand(listener, made) {
    const subscription = this.#subscriptions.get(listener) ?? null;
    const report = (cause) => {
      const error = new MistError("handler_failed", `a handler failed: ${cause}`, {cause});
      if (!this.#tell("error", {error, subscription})) complain(cause);
    };
    try {
      listener.handler(made)?.then?.(undefined, report);
    } catch (cause) {
      report(cause);
    }
  }

  /** Returns whether anybody listens. */
  #tell(event, detail) {
    const handlers = [...this.#handlers.get(event)];
    for (const each of handlers) {
      try {
        each(detail);
      } catch (error) {
        complain(error);
      }
    }
    return handlers.length > 0;
  }
}

/** Wait, or less where the signal comes. */
function sleep(seconds, signal) {
  return new Promise((resolve) => {
    const timer = after(seconds, resolve);
    const stop = () => {
      clearTimeout(timer);
      resolve();
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, {once: true});
  });
}

function tagSet(tags) {
  const fine = (tag) => typeof tag === "string" && tag !== "" && !/[, \p{Cc}]/u.test(tag);
  if (!Array.isArray(tags) || tags.length === 0 || !tags.every(fine)) {
    throw new TypeError("tags have to be an array of texts, not empty, without commas and spaces");
  }
  return [...new Set(tags)].sort(byCodePoint);
}

function place(since) {
  if (since === undefined || since === null) return undefined;
  if (Number.isSafeInteger(since)) return since;
  const {epoch, id} = since;
  if (typeof epoch === "string" && Number.isSafeInteger(id) && id >= 0) return {epoch, id};
  throw new TypeError("since has to be an id, -N, or {epoch, id}");
}

/**
 * Connect, and stay connected.
 *
 * @param {string | URL} url `https://…` finds the best way; `wss://…` is a WebSocket and no other
 * @param {object} options see mist.d.ts
 * @returns {Client}
 */
export function connect(url, options = {}) {
  const {token, getToken} = options;
  if (typeof token !== "string" && typeof getToken !== "function") {
    throw new TypeError("a token, or getToken, is needed");
  }
  const backoff = {baseSeconds: 0.5, capSeconds: 30, ...options.backoff};
  const defaults = {transports: TRANSPORTS, maxQueue: 10_000, timeoutSeconds: 10};
  return new Client(url, {...defaults, retryBetterSeconds: 300, ...options, backoff});
}
