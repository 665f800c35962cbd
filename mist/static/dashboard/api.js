/**
 * HTTP client of the server this page came from. It keeps the secret in this object and nowhere
 * else, and sends it only as a header.
 */

const TIMEOUT = 5000; // milliseconds until a response that isn't a stream must be complete

/** An error response. Status 0: there was no response. */
export class Problem extends Error {
  /** @param {number} pause milliseconds to wait before the next request (Retry-After). */
  constructor(status, code, detail, pause = 0) {
    super(detail);
    Object.assign(this, {status, code, pause});
  }
}

/**
 * What has become of a request that was not answered as asked, as a sentence for who made it.
 *
 * @param {{status, message}} problem a Problem, or what is like one.
 * @param {string} what is said of a refused one.
 */
export function sentenceOf({status, message}, what = "Refused") {
  return status === 0 ? "The server does not respond." : `${what}: ${message}.`;
}

async function problemOf(response) {
  let body = {};
  try {
    body = (await response.json()) ?? {};
  } catch {
    // Not a problem document, perhaps a proxy's page: the status has to do.
  }
  const pause = 1000 * Number(response.headers.get("retry-after") ?? 0) || 0;
  const detail = typeof body.detail === "string" ? body.detail : `status ${response.status}`;
  return new Problem(response.status, String(body.code ?? ""), detail, pause);
}

/** UTF-8 bytes as Latin-1 characters, the form that a header takes. */
function asHeader(text) {
  return Array.from(new TextEncoder().encode(text), (it) => String.fromCharCode(it)).join("");
}

export class Api {
  #secret = null;

  get hasSecret() {
    return this.#secret !== null;
  }

  /** @param {string | null} secret null signs out. */
  use(secret) {
    this.#secret = secret === null ? null : asHeader(secret);
  }

  /** GET a path, decoded from JSON. Throws a Problem. */
  async get(path) {
    const response = await this.#fetch(path, {}, AbortSignal.timeout(TIMEOUT));
    return this.#read(response);
  }

  /** POST JSON to a path. Throws a Problem. */
  async post(path, body) {
    const headers = {"Content-Type": "application/json"};
    const request = {method: "POST", headers, body: JSON.stringify(body)};
    return this.#read(await this.#fetch(path, request, AbortSignal.timeout(4 * TIMEOUT)));
  }

  /** Change something: PUT, PATCH or DELETE. What is answered, null for nothing. Throws a Problem. */
  async send(method, path, body) {
    const request = body === undefined ? {method}
      : {method, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
    const response = await this.#fetch(path, request, AbortSignal.timeout(4 * TIMEOUT));
    return response.status === 204 ? null : this.#read(response);
  }

  /** Whether a text is the server's secret, which it is asked. Throws a Problem if not. */
  async check(secret) {
    const headers = {Authorization: `Bearer ${asHeader(secret)}`};
    await this.#fetch("/v1/tokens?limit=1", {headers}, AbortSignal.timeout(TIMEOUT));
    this.use(secret);
  }

  /** A response with a streaming body. Throws a Problem. */
  stream(path, headers, signal) {
    return this.#fetch(path, {headers}, signal);
  }

  async #read(response) {
    try {
      return await response.json();
    } catch (cause) {
      throw new Problem(0, "unreadable", `invalid JSON: ${cause.message}`);
    }
  }

  async #fetch(path, request, signal) {
    const headers = {...(this.#secret === null ? {} : {Authorization: `Bearer ${this.#secret}`}), ...request.headers};
    let response;
    try {
      // A proxy may have this page, and so all of the server, below a path of its own.
      response = await fetch(`.${path}`, {
        ...request, headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
      });
    } catch (cause) {
      const timedOut = cause.name === "TimeoutError";
      throw new Problem(0, timedOut ? "timed_out" : "unreachable", cause.message);
    }
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}
