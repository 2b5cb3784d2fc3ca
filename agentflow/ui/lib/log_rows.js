// The rows of the log: one for each event, but the events of the items of a for_each or map that stand together
// fold into one. Pure.

const FEWEST = 8; // events side by side that fold: fewer are read faster than unfolded

/**
 * Events of items that stand together, from place `first` to `last` of the log.
 * @typedef {object} Fold
 * @property {number} number
 * @property {string} key of the activation whose items they are of
 * @property {string} step
 * @property {number} first
 * @property {number} last
 * @property {boolean} open
 * @property {Set<string>} items
 * @property {number} failed events that say that an item has failed
 */
/** @typedef {import("./fold.js").Fact} Fact */

/** @param {string | null} key of an activation, as `/step#visit[item]/inner#visit` */
const itemsOf = (key) => (key === null || !key.includes("[") ? null : key.slice(0, key.indexOf("[")));
/** @param {string} key */
const itemOf = (key) => key.slice(0, key.indexOf("]") + 1);

export class LogRows {
  constructor() {
    /** Each is the place of an event (0 and above), or that of a fold in `folds` (`-1 - number`). */
    /** @type {number[]} */
    this.rows = [];
    /** @type {Fold[]} */
    this.folds = [];
    /** @type {Fold | null} the fold that the next event may belong to; shown from `FEWEST` events on */
    this._last = null;
  }

  /** @param {number} row */
  foldAt(row) {
    const entry = this.rows[row];
    return entry !== undefined && entry < 0 ? /** @type {Fold} */ (this.folds[-1 - entry]) : null;
  }

  /**
   * The place of the event that a row is of, or begins with.
   * @param {number} row
   */
  place(row) {
    const fold = this.foldAt(row);
    return fold ? fold.first : /** @type {number} */ (this.rows[row]);
  }

  /**
   * Take the next event. Returns the first row that is not what it was, which may be one that has gone.
   * @param {Fact} fact
   * @param {number} place
   * @returns {number}
   */
  take(fact, place) {
    const key = itemsOf(fact.key);
    let last = this._last;
    if (key === null || last === null || last.key !== key) {
      this._last = key === null ? null : { number: -1, key, step: fact.step ?? "", first: place, last: place, open: false, items: new Set(), failed: 0 };
      last = this._last;
    }
    if (last === null) return this.rows.push(place) - 1;
    last.last = place;
    last.items.add(itemOf(/** @type {string} */ (fact.key)));
    if (fact.type === "workflow.step_failed") last.failed += 1;
    if (last.number < 0) {
      if (place - last.first + 1 < FEWEST) return this.rows.push(place) - 1;
      last.number = this.folds.push(last) - 1;
      this.rows.length -= FEWEST - 1;
      return this.rows.push(-1 - last.number) - 1;
    }
    if (last.open) this.rows.push(place);
    return this.headOf(last);
  }

  /**
   * Fold or unfold.
   * @param {Fold} fold
   */
  toggle(fold) {
    const after = this.headOf(fold) + 1;
    const count = fold.last - fold.first + 1;
    const events = fold.open ? [] : Array.from({ length: count }, (_, index) => fold.first + index);
    this.rows = [...this.rows.slice(0, after), ...events, ...this.rows.slice(fold.open ? after + count : after)];
    fold.open = !fold.open;
  }

  /**
   * The fold that an event belongs to.
   * @param {number} place
   */
  foldOf(place) {
    const fold = this.folds.findLast((one) => one.first <= place);
    return fold && place <= fold.last ? fold : null;
  }

  /** @param {Fold} fold */
  headOf(fold) {
    return this.rowOf(fold.first) - (fold.open ? 1 : 0);
  }

  /**
   * The row of an event: that of its fold if it is folded; -1 if there is none.
   * @param {number} place
   */
  rowOf(place) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.place(middle) <= place) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
