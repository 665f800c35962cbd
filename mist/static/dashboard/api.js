/**
 * The server this page came from. It knows the secret, keeps it in this object and nowhere else,
 * and sends it as a header only.
 */

const PATIENCE = 5000; // milliseconds until an answer that isn't a stream has to be there

/** What a server says when it doesn't do what it was asked. Status 0: it said nothing. */
export class Problem extends Error {
  /** @param {number} pause milliseconds that it wants to be left alone. */
  constructor(status, code, detail, pause = 0) {
    super(detail);
    Object.assign(this, {status, code, pause});
  }
}

async function problemOf(response) {
  let body = {};
  try {
    body = (await response.json()) ?? {};
  } catch {
    // Not one of ours: a proxy's, perhaps. The status has to do.
  }
  const pause = 1000 * Number(response.headers.get("retry-after") ?? 0) || 0;
  const detail = typeof body.detail === "string" ? body.detail : `status ${response.status}`;
  return new Problem(response.status, String(body.code ?? ""), detail, pause);
}

/** UTF-8, as the Latin-1 that a header can hold. */
function asHeader(text) {
  return Array.from(new TextEncoder().encode(text), (it) => String.fromCharCode(it)).join("");
}

export class Api {
  #secret = null;

  get hasSecret() {
    return this.#secret !== null;
  }

  /** @param {string | null} secret null forgets it. */
  use(secret) {
    this.#secret = secret === null ? null : asHeader(secret);
  }

  /** What stands there, as JSON. Throws a Problem. */
  async get(path) {
    const response = await this.#ask(path, {}, AbortSignal.timeout(PATIENCE));
    return this.#read(response);
  }

  /** Throws a Problem. */
  async post(path, body) {
    const headers = {"Content-Type": "application/json"};
    const request = {method: "POST", headers, body: JSON.stringify(body)};
    return this.#read(await this.#ask(path, request, AbortSignal.timeout(4 * PATIENCE)));
  }

  /** A response whose body is to be read as it comes. Throws a Problem. */
  stream(path, headers, signal) {
    return this.#ask(path, {headers}, signal);
  }

  async #read(response) {
    try {
      return await response.json();
    } catch (cause) {
      throw new Problem(0, "unreadable", `no JSON came: ${cause.message}`);
    }
  }

  async #ask(path, request, signal) {
    const headers = {...request.headers};
    if (this.#secret !== null) headers.Authorization = `Bearer ${this.#secret}`;
    let response;
    try {
      response = await fetch(path, {
        ...request, headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
      });
    } catch (cause) {
      const late = cause.name === "TimeoutError";
      throw new Problem(0, late ? "late" : "unreachable", cause.message);
    }
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}
