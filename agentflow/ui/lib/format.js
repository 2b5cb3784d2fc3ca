// Numbers, times and states as people read them. Pure.

import { Digits } from "./exact.js";

/** Signs of states: no state is told by colour alone. */
export const SIGNS = /** @type {Record<string, string>} */ ({
  pending: "○",
  running: "▶",
  waiting: "◔",
  paused: "‖",
  completed: "✓",
  succeeded: "✓",
  failed: "✕",
  skipped: "–",
  cancelled: "⊘",
});

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
  if (ms < 0) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const COUNT = new Intl.NumberFormat("en-US");

/** @param {number | null | undefined} count */
export function count(count) {
  return count === null || count === undefined ? "" : COUNT.format(count);
}

/** @param {number | null | undefined} usd */
export function money(usd) {
  if (usd === null || usd === undefined) return "";
  if (usd === 0) return "$0";
  return usd < 0.01 ? `$${usd.toFixed(6).replace(/0+$/, "")}` : `$${usd.toFixed(2)}`;
}

const LIMITS = /** @type {Record<string, string>} */ ({
  max_cost_usd: "Cost",
  max_tokens: "Tokens",
  max_model_calls: "Model calls",
  max_tool_calls: "Tool calls",
  max_duration_s: "Seconds",
  max_steps: "Steps",
  max_depth: "Depth of runs",
});

/**
 * The name of a limit of a budget.
 * @param {string} name
 */
export const limitName = (name) => LIMITS[name] ?? name;

/**
 * An amount of what a limit counts.
 * @param {string} name
 * @param {number} value
 */
export const amount = (name, value) => (name === "max_cost_usd" ? money(value) : count(Number(value.toFixed(3))));

/** @param {number | null | undefined} size */
export function bytes(size) {
  if (size === null || size === undefined) return "";
  if (size < 1024) return `${size} B`;
  if (size < 1024 ** 2) return `${(size / 1024).toFixed(1)} KiB`;
  if (size < 1024 ** 3) return `${(size / 1024 ** 2).toFixed(1)} MiB`;
  return `${(size / 1024 ** 3).toFixed(1)} GiB`;
}

/**
 * A point in time, as short as it can be told today.
 * @param {string | number | null | undefined} at
 * @param {number} [now]
 */
export function when(at, now = Date.now()) {
  if (at === null || at === undefined) return "";
  const date = new Date(at);
  const ago = now - date.getTime();
  if (ago >= 0 && ago < 5_000) return "just now";
  if (ago >= 0 && ago < 60_000) return `${Math.floor(ago / 1000)} s ago`;
  if (ago >= 0 && ago < 3_600_000) return `${Math.floor(ago / 60_000)} min ago`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (new Date(now).toDateString() === date.toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/**
 * A point in time with milliseconds.
 * @param {string | number} at
 */
export function clock(at) {
  const date = new Date(at);
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${ms}`;
}

/**
 * A point in time with its day and its zone.
 * @param {string | number} at
 */
export function moment(at) {
  const date = new Date(at);
  const minutes = -date.getTimezoneOffset();
  const zone = `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at)} ${zone}`;
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}

/** @param {any} usage */
export function tokens(usage) {
  return usage ? (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0) : 0;
}

/**
 * A value on one line.
 * @param {any} value
 * @param {number} [limit]
 */
export function brief(value, limit = 160) {
  if (value === undefined || value === null) return "";
  const text = typeof value === "string" ? value : beginning(value, limit * 4);
  const flat = text.slice(0, limit * 4).replace(/\s+/g, " ");
  return flat.length > limit ? `${flat.slice(0, limit - 1)}…` : flat;
}

/**
 * The beginning of a value as JSON. A large one is not written to its end.
 * @param {any} value
 * @param {number} room in characters
 * @returns {string}
 */
function beginning(value, room) {
  if (typeof value === "string") return JSON.stringify(value.slice(0, room));
  if (value === null || typeof value !== "object" || value instanceof Digits) return String(JSON.stringify(value));
  const list = Array.isArray(value);
  let text = list ? "[" : "{";
  // By the index: to enumerate the keys of a long list takes longer than to write it.
  const names = list ? null : Object.keys(value);
  const length = names ? names.length : value.length;
  for (let at = 0; at < length; at++) {
    if (at) text += ",";
    if (text.length > room) return text;
    if (names) text += `${JSON.stringify(names[at])}:`;
    text += beginning(value[names ? /** @type {string} */ (names[at]) : at], room - text.length);
  }
  return text + (list ? "]" : "}");
}

const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;

/**
 * A word for a shell: quoted where it has to be. A terminal would carry out a control character that is pasted.
 * @param {string} text
 */
export function shell(text) {
  if (text.search(CONTROL) >= 0) {
    const escaped = text.replace(/[\\']/g, "\\$&").replace(CONTROL, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
    return `$'${escaped}'`;
  }
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
