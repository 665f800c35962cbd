/** A subscription's or a message's place in the server's history. */
export interface Position {
  /** Which log; another one gives the same ids to other messages. */
  readonly epoch: string;
  /** After the message of this id. 0 is before the first. Below 2**53. */
  readonly id: number;
}

interface Delivered {
  /** The message's tags, sorted. */
  readonly keys: readonly string[];
  /** Its place in the history; undefined where the server has none. */
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

/** Shared by all handlers that it is for: don't change it. */
export type Message = TextMessage | BytesMessage;

/**
 * Called for each message, in order. What it throws, or its promise is rejected with, becomes
 * an "error" event and hurts no other handler. Its promise is not waited for.
 */
export type Handler = (message: Message) => unknown;

export type State = "connecting" | "open" | "waiting" | "closed";

export type TransportName = "websocket" | "sse" | "polling";

/** What went wrong. */
export class MistError extends Error {
  constructor(
    code: string,
    message: string,
    more?: { closeCode?: number | null; cause?: unknown },
  );
  /**
   * Stable, to be compared: `unauthorized`, `origin_not_allowed`, `bad_request`,
   * `protocol_violation` (these end the client); `connection_lost`, `going_away`, `timed_out`,
   * `too_many_requests`, `too_slow`, `unreachable`, `no_token`, `no_transport` (it tries again);
   * `not_granted`, `history_off`, `history_unavailable`, `invalid_position`,
   * `too_many_subscriptions`, `refused` (a subscription was refused); `handler_failed`;
   * `closed` (by the program); and what a server or a proxy says over HTTP.
   */
  readonly code: string;
  /** The WebSocket close code (or that of an event stream) where there was one. */
  readonly closeCode: number | null;
}

export interface Subscription {
  /** What it asks for, sorted. */
  readonly tags: readonly string[];
  /**
   * Resolves once it holds for the first time: it gets everything from now on, or it has been
   * given what it asked for by `since`. Rejects where it is refused or ends before that.
   */
  readonly ready: Promise<void>;
  /**
   * After the last message that the handler was called with; to be kept, and given as `since`
   * another time. Null where the server has no history, and until it holds.
   */
  readonly position: Position | null;
  /** The handler isn't called any more, not even with what has arrived. */
  unsubscribe(): void;
}

export interface SubscribeOptions {
  /**
   * Where to begin: after a message (its id, or a position that was kept), or with the last N
   * that match (-N). Without it, what comes from now on.
   */
  since?: number | Position | null;
}

export interface StateEvent {
  readonly state: State;
  readonly previous: State;
  /** What it is open by, else null. Told again where a better one took its place. */
  readonly transport: TransportName | null;
  /** Why it is `waiting` or `closed`. */
  readonly error: MistError | null;
  /** Seconds until the next attempt, where it is `waiting`. */
  readonly delay: number | null;
}

/** Messages may be missing from here on, between the one before and the next one. */
export interface GapEvent {
  /**
   * `history`: the server no longer has all that was asked for; `no_history`: it keeps none,
   * and the connection was down.
   */
  readonly reason: "history" | "no_history";
  readonly subscriptions: readonly Subscription[];
}

/** The token doesn't allow these tags any more. The subscriptions have ended. */
export interface RevokedEvent {
  readonly tags: readonly string[];
  readonly subscriptions: readonly Subscription[];
}

/** A subscription was refused, or a handler failed. */
export interface ErrorEvent {
  readonly error: MistError;
  readonly subscription: Subscription | null;
}

export interface Events {
  state: StateEvent;
  gap: GapEvent;
  revoked: RevokedEvent;
  error: ErrorEvent;
}

export interface Client {
  /** `waiting` is for another attempt, `closed` for good. */
  readonly state: State;
  /** What it is open by, else null. */
  readonly transport: TransportName | null;
  /**
   * Get every message that carries all of these tags. Holds until `unsubscribe`, whatever
   * becomes of the connection. Those made in one go are asked for at once.
   *
   * @throws TypeError tags, handler or `since` can't be what they should be.
   * @throws MistError `closed`: the client is.
   */
  subscribe(
    tags: readonly string[],
    handler: Handler,
    options?: SubscribeOptions,
  ): Subscription;
  /** Listen to an event. Returns a function that ends it. */
  on<Name extends keyof Events>(
    event: Name,
    handler: (event: Events[Name]) => void,
  ): () => void;
  /**
   * Bring another token, without a reconnect where that can be: the one given, or what
   * `getToken` gives. Resolves once the server has taken it; subscriptions that it doesn't
   * allow are revoked. One that the server doesn't know ends the client.
   */
  refresh(token?: string): Promise<void>;
  /** End it. No handler is called after that. */
  close(): void;
}

interface CommonOptions {
  /** Which to use; the best that works is. Default: all. */
  transports?: readonly TransportName[];
  /** Each wait is a random part of a span that doubles. Defaults: 0.5 and 30. */
  backoff?: { baseSeconds?: number; capSeconds?: number };
  /** Seconds in which a transport has to be open. Default: 10. */
  timeoutSeconds?: number;
  /** Seconds after which a better transport that didn't work is tried again. Default: 300. */
  retryBetterSeconds?: number;
  /**
   * Messages that may wait for slow handlers. With more, the connection is given up, and made
   * again once they are handed out; a history has the rest. Default: 10,000.
   */
  maxQueue?: number;
}

export interface TokenOptions extends CommonOptions {
  token: string;
  getToken?: undefined;
}

export interface GetTokenOptions extends CommonOptions {
  /** Called for each attempt to connect, and by `refresh`. */
  getToken: () => string | Promise<string>;
  token?: undefined;
}

export type ConnectOptions = TokenOptions | GetTokenOptions;

/**
 * Connect, and stay connected until `close` or until coming back can't help.
 *
 * @param url `https://…` or `http://…`: the server's, where it is asked for its endpoints, of
 *   which a WebSocket is tried first, then Server-Sent Events, then long polling; `wss://…`
 *   or `ws://…`: a WebSocket and nothing else.
 * @throws TypeError there is no token and no `getToken`, or no such URL.
 * @throws SyntaxError the URL has another scheme.
 */
export function connect(url: string | URL, options: ConnectOptions): Client;
