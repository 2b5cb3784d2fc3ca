// JSON as it was written. A double holds no integer beyond 2^53 exactly: people would approve, and forks would
// send, another number than the log has. Pure.

const DIGITS = /\d{16}/;
/** @type {any} Browsers that lack it (Firefox before 135, Safari before 18.4) show the nearest double. */
const { rawJSON } = /** @type {any} */ (JSON);

/** An integer that no double holds: written and sent as its digits, and a double where it is counted with. */
export class Digits {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }

  toJSON() {
    return rawJSON(this.text);
  }
}

/**
 * Parse JSON; integers that a double cannot hold become Digits. Raises SyntaxError.
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  if (!rawJSON || !DIGITS.test(text)) return JSON.parse(text);
  return JSON.parse(text, /** @type {any} */ ((/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ from) =>
    typeof value === "number" ? numberOf(from.source) : value));
}

/**
 * The number that a text says.
 * @param {string} text
 * @returns {number | Digits}
 */
export function numberOf(text) {
  const value = Number(text);
  const isExact = Number.isSafeInteger(value) || !/^-?[1-9]\d*$/.test(text) || String(value) === text;
  return isExact || !rawJSON ? value : new Digits(text);
}
