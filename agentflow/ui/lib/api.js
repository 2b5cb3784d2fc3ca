// The public HTTP API. Whatever the page shows, `curl` can fetch.

import { parse } from "./exact.js";

/** Where the API is: one level above the page, wherever that is mounted. */
export const BASE = new URL("..", document.baseURI).pathname.replace(/\/$/, "");

/** A request that was answered by a problem (RFC 9457), or by nothing. */
export class Problem extends Error {
  /**
   * @param {number} status 0 if the daemon cannot be reached
   * @param {any} body
   */
  constructor(status, body) {
    super(body?.detail || body?.title || `HTTP status ${status}`);
    this.status = status;
    /** @type {string} */
    this.code = body?.code ?? "";
    /** @type {string | undefined} */
    this.hint = body?.hint;
    /** @type {any[]} */
    this.diagnostics = body?.diagnostics ?? [];
    /** @type {any} */
    this.body = body ?? {};
  }
}

export const unreachable = () => new Problem(0, { detail: "The daemon cannot be reached. The page goes on when it answers again.", hint: "agentflow serve" });

/**
 * @typedef {{query?: Record<string, any>, body?: any, signal?: AbortSignal, as?: "json" | "text" | "none"}} Options
 */

/**
 * @param {string} path
 * @param {Record<string, any>} [query] members that are null, undefined or "" are left out
 */
export function urlOf(path, query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return BASE + path + (text ? `?${text}` : "");
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<any>}
 */
export async function request(method, path, { query, body, signal, as = "json" } = {}) {
  let answer;
  try {
    answer = await fetch(urlOf(path, query), {
      method,
      signal: signal ?? null,
      cache: "no-store",
      credentials: "same-origin",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw unreachable();
  }
  if (!answer.ok) throw await problemOf(answer);
  if (as === "none" || answer.status === 204) return null;
  const text = await answer.text();
  return as === "text" ? text : parse(text);
}

/** @param {Response} answer */
async function problemOf(answer) {
  let body;
  try {
    body = await answer.json();
  } catch {
    body = null;
  }
  const problem = new Problem(answer.status, body);
  if (answer.status === 401) window.dispatchEvent(new CustomEvent("unauthorized"));
  return problem;
}

/** @param {string} path @param {Options} [options] */
export const get = (path, options) => request("GET", path, options);
/** @param {string} path @param {any} [body] @param {Options} [options] */
export const post = (path, body, options) => request("POST", path, { ...options, body: body ?? {} });
/** @param {string} id */
export const runPath = (id) => `/workflows/${encodeURIComponent(id)}`;

/** Silence after which a connection counts as broken, as after sleep: the API sends a heartbeat every 15 s. */
const SILENCE_MS = 40_000;

/**
 * Follow a stream of NDJSON lines. A connection that breaks or is silent for 40 s is made again from the position
 * that `query` gives then; it ends when `query` returns null, when the signal is aborted, or at a problem that stays.
 * @param {string} path
 * @param {object} options
 * @param {() => Record<string, any> | null} options.query asked before each connection
 * @param {(lines: string[]) => void | Promise<void>} options.onLines
 * @param {(state: "live" | "waiting" | "ended", problem?: Problem) => void} [options.onState]
 * @param {AbortSignal} options.signal
 */
export async function follow(path, { query, onLines, onState, signal }) {
  let failures = 0;
  while (!signal.aborted) {
    const parameters = query();
    if (parameters === null) break;
    const cut = new AbortController();
    const stop = () => cut.abort();
    let silence = setTimeout(stop, SILENCE_MS);
    const onBytes = () => {
      clearTimeout(silence);
      silence = setTimeout(stop, SILENCE_MS);
    };
    signal.addEventListener("abort", stop);
    try {
      const answer = await fetch(urlOf(path, parameters), { signal: cut.signal, cache: "no-store", credentials: "same-origin" });
      if (!answer.ok || !answer.body) throw await problemOf(answer);
      onState?.("live");
      failures = 0;
      await readLines(answer.body, onLines, onBytes);
      failures += 1;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      const problem = error instanceof Problem ? error : new Problem(0, null);
      if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) {
        onState?.("ended", problem);
        return;
      }
      onState?.("waiting", problem);
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", stop);
    }
    if (query() === null) break;
    await new Promise((resolve) => setTimeout(resolve, Math.min(200 * 2 ** Math.min(failures, 5), 5_000)));
  }
  if (!signal.aborted) onState?.("ended");
}

/**
 * @param {ReadableStream<Uint8Array>} body
 * @param {(lines: string[]) => void | Promise<void>} onLines
 * @param {() => void} onBytes
 */
async function readLines(body, onLines, onBytes) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    const lines = (rest + value).split("\n");
    rest = /** @type {string} */ (lines.pop());
    const full = lines.filter(Boolean);
    if (full.length) await onLines(full);
  }
}
