// Differences of texts by lines, and of JSON values by members. Pure.

import { Digits } from "./exact.js";

/** @typedef {{kind: "same" | "added" | "removed", text: string}} Line */

const LARGEST = 4_000_000; // cells of the table: beyond it whole texts are shown

/**
 * The lines of two texts, with those that were removed before those that were added.
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function diffLines(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let endA = a.length;
  let endB = b.length;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA--;
    endB--;
  }
  /** @param {string} text @returns {Line} */
  const same = (text) => ({ kind: "same", text });
  return [
    ...a.slice(0, start).map(same),
    ...middle(a.slice(start, endA), b.slice(start, endB)),
    ...a.slice(endA).map(same),
  ];
}

/**
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Line[]}
 */
function middle(a, b) {
  /** @type {Line[]} */
  const lines = [];
  /** @param {string} text */
  const removed = (text) => lines.push({ kind: "removed", text });
  /** @param {string} text */
  const added = (text) => lines.push({ kind: "added", text });
  if (a.length * b.length > LARGEST) {
    a.forEach(removed);
    b.forEach(added);
    return lines;
  }
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i * width + j] =
        a[i] === b[j]
          ? /** @type {number} */ (table[(i + 1) * width + j + 1]) + 1
          : Math.max(
              /** @type {number} */ (table[(i + 1) * width + j]),
              /** @type {number} */ (table[i * width + j + 1]),
            );
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      lines.push({ kind: "same", text: /** @type {string} */ (a[i]) });
      i++;
      j++;
    } else if (
      /** @type {number} */ (table[(i + 1) * width + j]) >= /** @type {number} */ (table[i * width + j + 1])
    ) {
      removed(/** @type {string} */ (a[i++]));
    } else added(/** @type {string} */ (b[j++]));
  }
  while (i < a.length) removed(/** @type {string} */ (a[i++]));
  while (j < b.length) added(/** @type {string} */ (b[j++]));
  return lines;
}

const AROUND = 20;
const SHORT = 200; // lines that are read faster than what is left out is missed

/**
 * The lines that differ and those around them; what is left out between them is one entry with its number of lines.
 * @param {Line[]} lines
 * @returns {(Line | {kind: "gap", text: string})[]}
 */
export function shortened(lines) {
  if (lines.length <= SHORT) return lines;
  const isNear = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.kind !== "same") isNear.fill(1, Math.max(0, index - AROUND), index + AROUND + 1);
  });
  /** @type {(Line | {kind: "gap", text: string})[]} */
  const found = [];
  for (let at = 0; at < lines.length; ) {
    let end = at;
    while (end < lines.length && !isNear[end]) end++;
    if (end > at) found.push({ kind: "gap", text: `… ${end - at} lines are the same` });
    else found.push(/** @type {Line} */ (lines[end++]));
    at = end;
  }
  return found;
}

/**
 * A value as text with sorted members, so that order makes no difference.
 * @param {any} value
 * @returns {string}
 */
export function stableText(value) {
  if (typeof value === "string") return value;
  return JSON.stringify(sorted(value), null, 2) ?? "";
}

/** @param {any} value @returns {any} */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object" || value instanceof Digits) return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, sorted(value[name])]),
  );
}
