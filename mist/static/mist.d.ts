/** Of this file, and of the server that it comes from. */
export const version: string;

/** A position in the server's history. */
export interface Position {
  /** Which log; another log gives the same ids to other messages. */
  readonly epoch: string;
  /** After the message of this id. 0 is before the first. Below 2**53. */
  readonly id: number;
}

/** Of each tag that matches, only the newest message that the subscription matches. */
export interface Latest {
  /** The beginning of tags and `*`, as `order:*`; or a tag. The server has to keep these. */
  readonly latest: string;
}

interface Delivered {
  /** The message's tags, sorted. */
  readonly keys: readonly string[];
  /** Its position in the history; undefined where the server has none. */
  readonly id: number | undefined;
}

/** A message whose data is text. */
export interface TextMessage extends Delivered {
  readonly data: string;
  readonly bytes?: undefined;
}

/** A message whose data is not UTF-8. */
export interface BytesMessage extends Delivered {
  readonly data?: undefined;
  readonly bytes: Uint8Array;
}

/** Shared by all handlers: don't modify it. */
export type Message = TextMessage | BytesMessage;

/**
 * Called for each message, in order. An exception, or the rejection of its promise, becomes an
 * "error" event and affects no other handler. Its promise is not awaited.
 */
export type Handler = (message: Message) => unknown;

export type State = "connecting" | "open" | "waiting" | "closed";

export type TransportName = "websocket" | "sse" | "polling";

/** An error of the client. */
export class MistError extends Error {
  constructor(
    code: string,
    message: string,
    more?: { closeCode?: number | null; cause?: unknown },
  );
  /**
   * Stable, for comparisons: `unauthorized`, `origin_not_allowed`, `bad_request`,
   * `protocol_violation` (these end the client); `connection_lost`, `going_away`, `timed_out`,
   * `too_many_requests`, `session_ended`, `too_slow`, `unreachable`, `no_token`, `no_transport`,
   * `history_unavailable`, `registry_unavailable` (it reconnects); `not_granted`, `history_off`,
   * `latest_off`, `invalid_position`, `too_many_subscriptions`, `refused` (a subscription or a publish
   * was refused); `presence_off`, `too_many_watches` (a watch of presence was); `idempotency_conflict`, `payload_too_large`, `too_many_publishes` (a publish was);
   * `no_websocket` (thrown by `connect`); `handler_failed`; `closed` (by the program); and codes of
   * HTTP responses.
   */
  readonly code: string;
  /** The close code of the WebSocket or event stream, if there was one. */
  readonly closeCode: number | null;
}

export interface Subscription {
  /** The tags that a message must carry, sorted. */
  readonly tags: readonly string[];
  /**
   * Resolves once it is live for the first time: it gets everything from now on, after the replay
   * that `since` asks for. Rejects if it is refused or ends before that.
   */
  readonly ready: Promise<void>;
  /**
   * After the last message that the handler was called with; save it for `since` in a later
   * session. Null where the server has no history, and until it is live.
   */
  readonly position: Position | null;
  /** The handler isn't called any more, not even with queued messages. */
  unsubscribe(): void;
}

export interface SubscribeOptions {
  /**
   * Where to begin: after a message (its id, or a saved position), with the last N that match
   * (-N), or with the newest of each tag (`{latest: "order:*"}`). Without it, live messages only.
   */
  since?: number | Position | Latest | null;
}

export interface PublishOptions {
  /**
   * Whom the message is for, among those whose subscriptions match: by attributes of their tokens,
   * `{users: [1, 2], groups: ["eu"], clients: [...], except: [...], plan: "pro"}`. Default: all.
   */
  to?: Readonly<Record<string, string | number | readonly (string | number)[]>>;
  /**
   * The idempotency key, 1 to 255 ASCII letters: what has the same key within a day is published
   * once, also by another client with this token. Default: a random one.
   */
  key?: string;
  /** Seconds for the server's answer, across reconnects. Default: 30. */
  timeoutSeconds?: number;
}

export interface Published {
  /** The message's id; null where the server has no history. */
  readonly id: number | null;
}

/** One who is subscribed: a user's client, however many sessions it has. */
export interface Attendee {
  /** The user of the token; absent where it has none. */
  readonly user?: string;
  /** The client id; absent where it chose none. */
  readonly client?: string;
  /** Since when, Unix seconds. */
  readonly since: number;
}

export interface PresenceChange {
  readonly tags: readonly string[];
  /** How many are there; of sessions, where they are too many for a list. */
  readonly count: number;
  /** All who are there; null where they are too many for a list. */
  readonly attendees: readonly Attendee[] | null;
  /** Since the call before; at the first call all. */
  readonly joined: readonly Attendee[];
  readonly left: readonly Attendee[];
}

export interface PresenceWatch {
  readonly tags: readonly string[];
  /** Null before the server has told. */
  readonly count: number | null;
  readonly attendees: readonly Attendee[] | null;
  /** Resolves with the first call of the handler; rejects where the server refuses. */
  readonly ready: Promise<void>;
  /** The handler isn't called any more. */
  close(): void;
}

export interface StateEvent {
  readonly state: State;
  readonly previous: State;
  /** The transport while open, else null. Also sent when a better transport took over. */
  readonly transport: TransportName | null;
  /** Why it is `waiting` or `closed`. */
  readonly error: MistError | null;
  /** Seconds until the next attempt, while `waiting`. */
  readonly delay: number | null;
}

/** Messages may be missing here, between the previous and the next one. */
export interface GapEvent {
  /**
   * `history`: the server no longer has all that was asked for; `no_history`: it keeps no history,
   * and the connection was down.
   */
  readonly reason: "history" | "no_history";
  readonly subscriptions: readonly Subscription[];
}

/** The server sends what a subscription asks for, on each connection anew; after the replay. */
export interface SubscribedEvent {
  readonly subscription: Subscription;
  /** Whether it was told before, on an earlier connection. */
  readonly again: boolean;
}

/** A subscription has ended. Those that end with the client are not told: see "state". */
export interface UnsubscribedEvent {
  readonly subscription: Subscription;
  /** By the program; by a change of the token; since the token never allowed it. */
  readonly reason: "unsubscribed" | "revoked" | "refused";
}

/** The token no longer allows these tags. The subscriptions have ended. */
export interface RevokedEvent {
  readonly tags: readonly string[];
  readonly subscriptions: readonly Subscription[];
}

/**
 * A subscription was refused, or a handler failed. Where nobody listens to it, it is reported as an
 * uncaught error, on the console; not a refusal by which the `ready` rejects that the program asked for.
 */
export interface ErrorEvent {
  readonly error: MistError;
  readonly subscription: Subscription | null;
}

export interface Events {
  state: StateEvent;
  subscribed: SubscribedEvent;
  unsubscribed: UnsubscribedEvent;
  gap: GapEvent;
  revoked: RevokedEvent;
  error: ErrorEvent;
}

export interface Client {
  /** `waiting` for the next attempt; `closed` for good. */
  readonly state: State;
  /** The transport while open, else null. */
  readonly transport: TransportName | null;
  /**
   * Get every message that carries all of these tags, until `unsubscribe`, also across reconnects.
   * Subscriptions made in one turn of the event loop are sent as one request.
   *
   * @throws TypeError tags, handler or `since` are invalid.
   * @throws MistError `closed`: the client is closed.
   */
  subscribe(
    tags: readonly string[],
    handler: Handler,
    options?: SubscribeOptions,
  ): Subscription;
  /**
   * Publish a message, for which the token needs the right to publish each of the tags (`>room:*`).
   * Resolves once it is stored, where the server has a history, and on its way to all subscribers.
   *
   * While there is no connection it waits. Where an answer is lost, the message is sent again with
   * the same key and so published once, unless another credential has taken the token's place: another
   * registered token, or a JWT with another `sub`. Rejects with `timed_out` where no answer came in
   * time: then it may have been published. Messages are published in the order of the calls, but for
   * what had to be sent again, and what is too long for a WebSocket (120 KB) and goes over HTTP.
   *
   * @throws TypeError (rejects) tags, data, or key are invalid.
   * @throws MistError (rejects) `not_granted`, and others that the server refuses it with; `closed`.
   */
  publish(
    tags: readonly string[],
    data: string | Uint8Array,
    options?: PublishOptions,
  ): Promise<Published>;
  /**
   * Watch who is subscribed to all of these tags, until `close`, also across reconnects: the handler
   * is called with who is there, then when that changes. The token needs the right to ask
   * (`@room:*`), and the server has to keep presence there (`--presence`). What ends it otherwise
   * (`not_granted`, `presence_off`) is told by `ready`, and by the event "error".
   *
   * With long polling it is asked every 5 s.
   *
   * @throws TypeError tags or handler are invalid.
   * @throws MistError `closed`: the client is closed.
   */
  presence(tags: readonly string[], handler: (change: PresenceChange) => unknown): PresenceWatch;
  /** Listen to an event. Returns a function that removes the listener. */
  on<Name extends keyof Events>(
    event: Name,
    handler: (event: Events[Name]) => void,
  ): () => void;
  /**
   * Replace the token, without a reconnect if possible: by the one given, or that of `getToken`.
   * Resolves once the server has accepted it; subscriptions that it doesn't allow are revoked. A
   * token unknown to the server ends the client. Rejects with `registry_unavailable` where it can't be
   * checked now: the one before goes on, and the next connection begins with this one.
   */
  refresh(token?: string): Promise<void>;
  /**
   * Close the client. No handler is called after that. Publishes that have no answer yet reject with
   * `closed`; those that had been sent may be published all the same.
   */
  close(): void;
}

interface CommonOptions {
  /** Transports to use; the best one that works is chosen. Default: all. */
  transports?: readonly TransportName[];
  /**
   * The class to make WebSockets of, such as that of the npm package `ws`. Default: the runtime's.
   * Where there is none, as in Node 20, the other transports are used.
   */
  WebSocket?: new (url: string, protocols: string[]) => unknown;
  /** Exponential backoff with full jitter. Defaults: 0.5 and 30. */
  backoff?: { baseSeconds?: number; capSeconds?: number };
  /** Timeout in seconds for opening a transport. Default: 10. */
  timeoutSeconds?: number;
  /** Seconds until a better transport that failed is tried again. Default: 300. */
  retryBetterSeconds?: number;
  /**
   * Messages that may wait for slow handlers. With more, the client disconnects, and reconnects
   * once they are handled; a history has the rest. Default: 10,000.
   */
  maxQueue?: number;
}

export interface TokenOptions extends CommonOptions {
  token: string;
  getToken?: undefined;
}

export interface GetTokenOptions extends CommonOptions {
  /**
   * Called for each attempt to connect, by `refresh`, and before a JWT expires; not while a token that
   * `refresh` was given is good.
   */
  getToken: () => string | Promise<string>;
  token?: undefined;
}

export interface TokenFunctionOptions extends CommonOptions {
  /** As `getToken`. */
  token: () => string | Promise<string>;
  getToken?: undefined;
}

export type ConnectOptions = TokenOptions | GetTokenOptions | TokenFunctionOptions;

/**
 * Connect, and reconnect until `close` or an error that reconnecting can't fix.
 *
 * @param url `https://…` or `http://…`: the server's, for endpoint discovery; a WebSocket is tried
 *   first, then Server-Sent Events, then long polling. `wss://…` or `ws://…`: only a WebSocket.
 * @throws TypeError without a token or `getToken`, or with an invalid URL.
 * @throws SyntaxError the URL has another scheme.
 * @throws MistError `no_websocket`: the runtime has none, and no other transport is wanted.
 */
export function connect(url: string | URL, options: ConnectOptions): Client;
