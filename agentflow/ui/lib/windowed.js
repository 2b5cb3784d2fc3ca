// A list of any length in which only the rows in sight are elements.

import { h } from "./dom.js";

const AROUND = 8;
const TALLEST = 8_000_000; // px: browsers cut elements off at about twice this

export class WindowedList {
  /**
   * @param {object} options
   * @param {number} options.rowHeight in px, of every row
   * @param {(index: number) => HTMLElement} options.row makes a row; asked again after `refresh`
   * @param {(first: number, last: number) => void} [options.onWindow] told which rows are in sight
   * @param {Record<string, any>} [options.members] of the scrolling element
   */
  constructor({ rowHeight, row, onWindow, members }) {
    this.rowHeight = rowHeight;
    this.count = 0;
    this._row = row;
    this._onWindow = onWindow;
    /** @type {Map<number, HTMLElement>} */
    this._shown = new Map();
    this.body = h("div", { class: "rows", role: members?.["role"] ? "presentation" : null });
    this.element = h("div", { class: "windowed", tabindex: "0", ...members }, this.body);
    // Kept, because to ask the element for them lays the page out anew.
    this._top = 0;
    this._height = 0;
    this.element.addEventListener(
      "scroll",
      () => {
        this._top = this.element.scrollTop;
        this._ask();
      },
      { passive: true },
    );
    this._asked = false;
    /** @type {{key: string, at: number} | null} */
    this._focused = null;
    new ResizeObserver(([entry]) => {
      this._height = entry?.contentRect.height ?? 0;
      this._ask();
    }).observe(this.element);
  }

  /** @param {number} count */
  setCount(count) {
    if (count === this.count) return;
    this.count = count;
    this.body.style.height = `${Math.min(count * this.rowHeight, TALLEST)}px`;
    for (const [index, element] of this._shown) {
      if (index >= count) {
        element.remove();
        this._shown.delete(index);
      }
    }
    this._ask();
  }

  /** Make all rows in sight anew. */
  refresh() {
    this.refreshFrom(0);
    this._draw();
  }

  /**
   * Make the rows in sight from an index on anew.
   * @param {number} first
   */
  refreshFrom(first) {
    for (const [index, element] of this._shown) {
      if (index < first) continue;
      this._keepFocus(element);
      element.remove();
      this._shown.delete(index);
    }
    this._ask();
  }

  /**
   * Make one row anew, if it is in sight.
   * @param {number} index
   */
  refreshRow(index) {
    const old = this._shown.get(index);
    if (!old) return;
    this._keepFocus(old);
    old.replaceWith(this._make(index));
    this._giveFocus();
  }

  /**
   * Remember the control that has the focus in a row which goes: the row that is made for the same thing gets it.
   * @param {HTMLElement} row
   */
  _keepFocus(row) {
    const active = document.activeElement;
    if (active && row.contains(active)) this._focused = { key: keyOf(row), at: controlsOf(row).indexOf(active) };
  }

  _giveFocus() {
    if (!this._focused) return;
    const { key, at } = this._focused;
    const row = [...this._shown.values()].find((one) => keyOf(one) === key);
    // Who has gone elsewhere meanwhile stays there.
    if (row && document.activeElement === document.body) /** @type {HTMLElement | undefined} */ (controlsOf(row)[at])?.focus({ preventScroll: true });
    this._focused = null;
  }

  /** @param {number} index */
  scrollTo(index) {
    const top = index * this.rowHeight;
    const height = this._height || this.rowHeight; // not laid out yet: the row comes first
    if (top < this._top) this._moveTo(top);
    else if (top + this.rowHeight > this._top + height) this._moveTo(top + this.rowHeight - height);
    this._draw();
  }

  scrollToEnd() {
    this._moveTo(Math.max(0, this.count * this.rowHeight - this._height));
    this._ask();
  }

  get isAtEnd() {
    return this._top + this._height >= (this.count - 1) * this.rowHeight;
  }

  get top() {
    return this._top;
  }

  /** @param {number} top */
  _moveTo(top) {
    if (top === this._top) return;
    this.element.scrollTop = top;
    this._top = top;
  }

  /** @param {number} index */
  shown(index) {
    return this._shown.get(index);
  }

  _ask() {
    if (this._asked) return;
    this._asked = true;
    requestAnimationFrame(() => {
      this._asked = false;
      this._draw();
    });
  }

  /** @param {number} index */
  _make(index) {
    const element = this._row(index);
    element.style.setProperty("transform", `translateY(${index * this.rowHeight}px)`);
    element.style.setProperty("height", `${this.rowHeight}px`);
    this._shown.set(index, element);
    return element;
  }

  _draw() {
    const first = Math.max(0, Math.floor(this._top / this.rowHeight) - AROUND);
    const last = Math.min(this.count, Math.ceil((this._top + (this._height || 600)) / this.rowHeight) + AROUND);
    for (const [index, element] of this._shown) {
      if ((index < first || index >= last) && !element.contains(document.activeElement)) {
        element.remove();
        this._shown.delete(index);
      }
    }
    /** @type {HTMLElement[]} */
    const made = [];
    let before = -1;
    for (let index = first; index < last; index++) {
      if (!this._shown.has(index)) made.push(this._make(index));
      else if (made.length === 0) before = index;
    }
    // In the order of the list, so that the order of reading is that of sight.
    if (made.length && before >= 0) this._shown.get(before)?.after(...made);
    else if (made.length) this.body.prepend(...made);
    this._giveFocus();
    this._onWindow?.(first, last);
  }
}

/** @param {HTMLElement} row */
const keyOf = (row) => row.dataset["key"] ?? row.id;
/** @param {HTMLElement} row @returns {Element[]} */
const controlsOf = (row) => [...row.querySelectorAll("a, button, input")];
