// Where the time went: one row for each step, attempt and call, with waiting apart. The items of a for_each and
// the runs that steps began fold. Rows out of sight are not made, and what is narrower than a pixel is drawn once.

import { button, fill, h } from "./dom.js";
import { duration, SIGNS } from "./format.js";
import { WindowedList } from "./windowed.js";

/** @typedef {import("./fold.js").Span} Span */
/** @typedef {import("./fold.js").RunFold} RunFold */
/**
 * `run`: the id of the run that a row is of, if it is another one than the page is of.
 * @typedef {{spans: Span[], label: string, depth: number, key: string, folds: boolean, open: boolean, span: Span | null, run: string | null}} Row
 */

const ROW = 26;
const BUCKETS = 400;
const DEEPEST = 20;

export class Timeline {
  /**
   * @param {(span: Span, run: string | null) => void} onSelect
   * @param {(run: string) => RunFold} foldOf what is known of a run that a step began; `tick` when it is more
   */
  constructor(onSelect, foldOf) {
    this._onSelect = onSelect;
    this._foldOf = foldOf;
    /** @type {Row[]} */
    this._rows = [];
    /** @type {Map<string, boolean>} what people opened and closed */
    this._open = new Map();
    /** @type {import("./fold.js").RunFold | null} */
    this._fold = null;
    /** @type {string | null} */
    this._selected = null;
    /** @type {string | null} */
    this._step = null;
    this._past = false;
    this._begin = 0;
    this._end = 1;
    this._room = 8;
    this._axis = h("div", { class: "axis", "aria-hidden": "true" });
    this._list = new WindowedList({
      rowHeight: ROW,
      row: (index) => this._row(/** @type {Row} */ (this._rows[index])),
      members: { class: "windowed timeline-rows", tabindex: null },
    });
    this._list.element.addEventListener("keydown", (event) => this._key(event));
    new ResizeObserver(([entry]) => {
      const room = Math.max(1, Math.floor((entry?.contentRect.width ?? 800) / 72));
      if (room === this._room) return;
      this._room = room;
      this.tick();
    }).observe(this._axis);
    this.element = h("div", { class: "timeline" }, h("div", { class: "axis-row" }, h("span"), this._axis), this._list.element);
  }

  /**
   * @param {import("./fold.js").RunFold} fold
   * @param {string | null} selected id of a span or call
   * @param {string | null} step
   * @param {boolean} past
   */
  update(fold, selected, step, past) {
    this._fold = fold;
    this._selected = selected;
    this._step = step;
    this._past = past;
    this._layOut();
  }

  /** Move the ends of what goes on. */
  tick() {
    if (this._fold) this._layOut();
  }

  _layOut() {
    const fold = this._fold;
    if (!fold) return;
    this._begin = fold.start;
    const now = fold.ended || this._past ? fold.last : Date.now();
    this._end = Math.max(now, fold.start + 1);
    this._rows = [];
    this._tree(this._rows, fold, 0, null);
    fill(this._axis, ticks(this._end - this._begin, this._room).map(([at, text]) => h("span", { style: { left: `${at * 100}%` } }, text)));
    this._list.setCount(this._rows.length);
    this._list.refresh();
  }

  /**
   * @param {Row[]} rows
   * @param {RunFold} fold
   * @param {number} depth
   * @param {string | null} run
   */
  _tree(rows, fold, depth, run) {
    const roomy = fold.spans.length + fold.calls.size <= 60;
    for (const [step, spans] of fold.steps) {
      const single = spans.length === 1 ? spans[0] : undefined;
      if (single) {
        this._span(rows, single, depth, roomy, run, single.label);
        continue;
      }
      const key = `${run ?? ""}step:${step}`;
      const open = this._open.get(key) ?? (roomy && spans.length <= 8);
      const items = spans.reduce((sum, span) => sum + (span.iteration === null ? 0 : 1), 0);
      rows.push({ spans, label: `${step} × ${items || spans.length}`, depth, key, folds: true, open, span: null, run });
      if (!open) continue;
      for (const span of spans) this._span(rows, span, depth + 1, roomy, run, span.iteration !== null ? `[${span.iteration}]` : items ? "all items" : span.label);
    }
  }

  /**
   * @param {Row[]} rows
   * @param {Span} span
   * @param {number} depth
   * @param {boolean} roomy
   * @param {string | null} run
   * @param {string} label
   */
  _span(rows, span, depth, roomy, run, label) {
    const folds = span.children.length > 0 || span.run !== null;
    // The events of another run are asked for when people open it, and not before.
    const open = folds && (this._open.get(`${run ?? ""}${span.id}`) ?? (span.run === null && roomy));
    rows.push({ spans: [span], label, depth, key: `${run ?? ""}${span.id}`, folds, open, span, run });
    if (!open) return;
    for (const child of span.children) {
      rows.push({ spans: [child], label: child.label, depth: depth + 1, key: `${run ?? ""}${child.id}`, folds: false, open: false, span: child, run });
    }
    if (span.run !== null && depth < DEEPEST) this._tree(rows, this._foldOf(span.run), depth + 1, span.run);
  }

  /** @param {Row} row */
  _row(row) {
    const { span } = row;
    const first = /** @type {Span} */ (row.spans[0]);
    const state = span ? span.state : first.state;
    const chosen = span !== null && row.run === null && span.id === this._selected;
    const related = row.run === null && first.step === this._step;
    const end = row.spans.reduce((latest, one) => Math.max(latest, one.end ?? this._end), 0);
    const length = end - first.start;
    const track = h("span", { class: "track" });
    if (span) this._bars(track, span);
    else this._merged(track, row.spans);
    const told = span
      ? `${row.label}, ${span.kind === "step" ? span.detail : span.kind}, ${state}, ${duration(length)}`
      : `${row.label} activations, ${duration(length)}`;
    return h(
      "div",
      { class: `time-row${chosen ? " selected" : ""}${related ? " related" : ""}`, "data-key": row.key },
      h(
        "span",
        { class: "time-label", style: { "padding-left": `${row.depth * 14}px` } },
        row.folds
          ? button(row.open ? "▾" : "▸", () => this._toggle(row), {
              class: "fold",
              "aria-expanded": String(row.open),
              "aria-label": `${row.open ? "Fold" : "Unfold"} ${row.label}`,
            })
          : h("span", { class: "fold" }),
        h("span", { class: `time-kind kind-${first.kind}`, "aria-hidden": "true" }, first.kind === "model" ? "✦" : first.kind === "tool" ? "ƒ" : (SIGNS[state] ?? "")),
        span
          ? button(row.label, () => this._onSelect(span, row.run), { class: "time-name", "aria-label": told, title: told })
          : button(row.label, () => this._onSelect({ ...first, id: "" }, row.run), { class: "time-name", title: told }),
      ),
      track,
      h("span", { class: "time-length" }, span?.state === "skipped" ? "skipped" : duration(length)),
    );
  }

  /** @param {number} at */
  _x(at) {
    return Math.min(100, Math.max(0, ((at - this._begin) / (this._end - this._begin)) * 100));
  }

  /**
   * @param {HTMLElement} track
   * @param {number} start
   * @param {number | null} end
   * @param {string} name
   * @param {string} title
   */
  _bar(track, start, end, name, title) {
    const left = this._x(start);
    track.append(
      h("span", { class: `bar ${name}`, title, style: { left: `${left}%`, width: `${Math.max(0, this._x(end ?? this._end) - left)}%` } }),
    );
  }

  /**
   * @param {HTMLElement} track
   * @param {Span} span
   */
  _bars(track, span) {
    if (span.state === "skipped") return;
    const state = span.kind === "step" ? span.state : `${span.kind} ${span.state}`;
    if (span.attempts.length === 0) this._bar(track, span.start, span.end, state, duration((span.end ?? this._end) - span.start));
    span.attempts.forEach((attempt, index) => {
      const last = index === span.attempts.length - 1;
      const name = last ? state : `${span.kind} failed`;
      const length = duration((attempt.end ?? this._end) - attempt.start);
      this._bar(track, attempt.start, attempt.end ?? span.end, name, span.attempts.length > 1 ? `attempt ${index + 1}: ${length}` : length);
    });
    for (const wait of span.waits) {
      const end = Math.min(wait.end ?? this._end, this._end);
      this._bar(track, wait.start, end, "wait", `waited${wait.what ? ` for ${wait.what.replaceAll("_", " ")}` : ""}: ${duration(end - wait.start)}`);
    }
  }

  /**
   * Many spans on one track: each pixel is drawn once, in the colour of what needs a look first.
   * @param {HTMLElement} track
   * @param {Span[]} spans
   */
  _merged(track, spans) {
    const ranks = new Uint8Array(BUCKETS);
    const order = ["", "skipped", "succeeded", "waiting", "running", "cancelled", "failed"];
    const width = (this._end - this._begin) / BUCKETS;
    for (const span of spans) {
      const rank = Math.max(1, order.indexOf(span.state));
      const from = Math.min(BUCKETS - 1, Math.max(0, Math.floor((span.start - this._begin) / width)));
      const to = Math.min(BUCKETS - 1, Math.floor(((span.end ?? this._end) - this._begin) / width));
      for (let at = from; at <= to; at++) if (/** @type {number} */ (ranks[at]) < rank) ranks[at] = rank;
    }
    for (let at = 0; at < BUCKETS; ) {
      const rank = /** @type {number} */ (ranks[at]);
      let end = at + 1;
      while (end < BUCKETS && ranks[end] === rank) end++;
      if (rank) this._bar(track, this._begin + at * width, this._begin + end * width, order[rank] ?? "", "");
      at = end;
    }
  }

  /** @param {Row} row */
  _toggle(row) {
    this._open.set(row.key, !row.open);
    this._layOut();
    /** @type {HTMLElement | null} */ (this._list.element.querySelector(`[data-key="${CSS.escape(row.key)}"] .fold`))?.focus();
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const key = /** @type {HTMLElement} */ (event.target).closest("[data-key]")?.getAttribute("data-key");
    const at = this._rows.findIndex((row) => row.key === key);
    const row = this._rows[at];
    if (!row) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const next = Math.max(0, Math.min(this._rows.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      event.preventDefault();
      this._list.scrollTo(next);
      /** @type {HTMLElement | null} */ (this._list.shown(next)?.querySelector(".time-name"))?.focus();
    } else if ((event.key === "ArrowRight" && row.folds && !row.open) || (event.key === "ArrowLeft" && row.open)) {
      event.preventDefault();
      this._toggle(row);
    }
  }
}

const MS = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [...MS, ...[1, 2, 5, 10, 15, 30].map((one) => one * SECOND), ...[1, 2, 5, 10, 15, 30].map((one) => one * MINUTE), ...[1, 2, 3, 6, 12].map((one) => one * HOUR)];

/**
 * Places of the axis, as parts of its length, with their texts: at steps that people count in.
 * @param {number} length in ms
 * @param {number} [most] how many have room
 * @returns {[number, string][]}
 */
export function ticks(length, most = 8) {
  let step = STEPS.find((one) => length / one <= most) ?? DAY;
  while (length / step > most) step *= 2;
  /** @type {[number, string][]} */
  const found = [];
  for (let at = 0; at <= length * 0.97; at += step) found.push([at / length, tick(at, step)]);
  return found;
}

/**
 * @param {number} at
 * @param {number} step
 */
function tick(at, step) {
  if (at === 0) return "0";
  if (step < SECOND) return `${at} ms`;
  if (at < MINUTE) return `${at / SECOND} s`;
  if (at < HOUR) return at % MINUTE ? `${Math.floor(at / MINUTE)} min ${(at % MINUTE) / SECOND} s` : `${at / MINUTE} min`;
  if (at < 2 * DAY) return at % HOUR ? `${Math.floor(at / HOUR)} h ${(at % HOUR) / MINUTE} min` : `${at / HOUR} h`;
  return at % DAY ? `${Math.floor(at / DAY)} d ${(at % DAY) / HOUR} h` : `${at / DAY} d`;
}
