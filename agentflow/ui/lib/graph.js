// The graph of a run, at the positions that the API gives: nodes with state by colour and sign, one of them
// selected, moved and zoomed by mouse, wheel and keys.

import { button, h, svg, visibleText } from "./dom.js";
import { SIGNS } from "./format.js";

export class GraphView {
  /**
   * @param {any} layout as `GET …/graph?format=layout` gives it
   * @param {(step: string | null) => void} onSelect
   */
  constructor(layout, onSelect) {
    this.layout = layout;
    /** @type {Map<string, {box: SVGElement, title: SVGElement, sign: SVGElement, told: SVGElement, kind: string, for_each: boolean}>} */
    this._nodes = new Map();
    this._zoom = 1;
    this._x = 0;
    this._y = 0;
    this._view = svg("g", null);
    this._svg = svg(
      "svg",
      { class: "graph", role: "group", "aria-label": `Graph of ${layout.name}` },
      svg(
        "defs",
        null,
        svg(
          "marker",
          { id: "arrow", viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
          svg("path", { d: "M0 0.8 L8 4 L0 7.2 z", class: "arrow" }),
        ),
      ),
      this._view,
    );
    for (const node of layout.nodes) if (node.group) this._draw(node, onSelect);
    for (const edge of layout.edges) this._edge(edge);
    for (const node of layout.nodes) if (!node.group) this._draw(node, onSelect);
    this._svg.addEventListener("click", (event) => {
      if (event.target === this._svg && !this._moved) onSelect(null);
    });
    this._move();
    this.element = h(
      "div",
      { class: "graph-pane" },
      /** @type {any} */ (this._svg),
      h(
        "div",
        { class: "graph-tools", role: "toolbar", "aria-label": "Graph" },
        button("+", () => this.zoom(1.25), { class: "icon-button", "aria-label": "Zoom in" }),
        button("−", () => this.zoom(0.8), { class: "icon-button", "aria-label": "Zoom out" }),
        button("⤢", () => this.fit(), { class: "icon-button", "aria-label": "Fit the graph" }),
      ),
    );
    this._fitted = false;
    new ResizeObserver(() => {
      if (!this._fitted || this._auto) this.fit();
    }).observe(this.element);
    this._auto = true;
  }

  /**
   * @param {any} node
   * @param {(step: string | null) => void} onSelect
   */
  _draw(node, onSelect) {
    const { x, y, width, height } = node;
    if (node.kind === "join") {
      const radius = width / 2;
      this._view.append(
        svg("circle", { cx: x + radius, cy: y + radius, r: radius, class: "join" }, svg("title", null, "join")),
      );
      return;
    }
    if (node.kind === "start" || node.kind === "end") {
      this._view.append(
        svg(
          "g",
          { class: "node edge-of-run" },
          svg("rect", { x: x + width / 2 - 36, y: y + height / 2 - 13, width: 72, height: 26, rx: 13 }),
          svg("text", { x: x + width / 2, y: y + height / 2 + 4, class: "name", "text-anchor": "middle" }, node.kind),
        ),
      );
      return;
    }
    const middle = x + width / 2;
    const top = node.group ? y + 17 : y + 18;
    const sign = svg("text", { x: x + 14, y: top, class: "sign", "text-anchor": "middle" }, "");
    const told = svg("text", { x: middle, y: top + 15, class: "kind", "text-anchor": "middle" }, "");
    const label = fitted(visibleText(node.label), width - 40);
    const title = svg("title", null, node.id);
    const box = svg(
      "g",
      {
        class: `node${node.group ? " group" : ""}${node.conditional ? " conditional" : ""}`,
        role: "button",
        tabindex: "0",
        "data-step": node.id,
        onclick: () => onSelect(node.id),
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            onSelect(node.id);
          }
        },
      },
      title,
      svg("rect", { x, y, width, height, rx: 9 }),
      sign,
      svg("text", { x: middle + 6, y: top, class: "name", "text-anchor": "middle" }, label),
      told,
    );
    this._view.append(box);
    this._nodes.set(node.id, { box, title, sign, told, kind: node.kind, for_each: node.for_each });
    this.setState(node.id, null);
  }

  /** @param {any} edge */
  _edge(edge) {
    this._view.append(
      svg("path", { d: curve(edge.points), class: `edge${edge.dashed ? " dashed" : ""}`, "marker-end": "url(#arrow)" }),
    );
    if (edge.label && edge.label_at) {
      const told = visibleText(edge.label);
      const label = told.length > 28 ? `${told.slice(0, 27)}…` : told;
      const { x, y } = edge.label_at;
      this._view.append(
        svg("text", { x, y: y + 4, class: "edge-label", "text-anchor": "middle" }, svg("title", null, told), label),
      );
    }
  }

  /**
   * Show the states of all steps.
   * @param {(step: string) => {state: string, counts: Record<string, number>, attempt: number} | null} stateOf
   */
  update(stateOf) {
    for (const step of this._nodes.keys()) this.setState(step, stateOf(step));
  }

  /**
   * @param {string} step
   * @param {{state: string, counts: Record<string, number>, attempt: number} | null} found
   */
  setState(step, found) {
    const node = this._nodes.get(step);
    if (!node) return;
    const state = found?.state ?? "pending";
    if (node.box.dataset["state"] !== state) {
      node.box.dataset["state"] = state;
      node.sign.textContent = SIGNS[state] ?? "";
    }
    const all = Object.values(found?.counts ?? {}).reduce((sum, one) => sum + one, 0);
    const done = found?.counts["succeeded"] ?? 0;
    let told = node.kind.replaceAll("_", " ");
    if (node.for_each && all <= 1) told += " · for each";
    if (all > 1) told += ` · ${done}/${all}`;
    if ((found?.attempt ?? 1) > 1) told += ` · attempt ${found?.attempt}`;
    if (node.told.textContent !== told) node.told.textContent = told;
    // The name that screen readers say, and what the mouse shows.
    const name = `${step}, ${told}, ${state}`;
    if (node.title.textContent !== name) node.title.textContent = name;
  }

  /** @param {string | null} step */
  select(step) {
    for (const [id, node] of this._nodes) {
      node.box.classList.toggle("selected", id === step);
      node.box.setAttribute("aria-pressed", String(id === step));
    }
  }

  /** @param {number} factor */
  zoom(factor) {
    const { clientWidth, clientHeight } = this.element;
    this._zoomAt(factor, clientWidth / 2, clientHeight / 2);
  }

  /**
   * @param {number} factor
   * @param {number} x
   * @param {number} y
   */
  _zoomAt(factor, x, y) {
    const zoom = Math.min(3, Math.max(0.1, this._zoom * factor));
    this._x = x - ((x - this._x) / this._zoom) * zoom;
    this._y = y - ((y - this._y) / this._zoom) * zoom;
    this._zoom = zoom;
    this._auto = false;
    this._place();
  }

  fit() {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth || !clientHeight) return;
    const { width, height } = this.layout;
    this._zoom = Math.min(1.25, (clientWidth - 8) / width, (clientHeight - 8) / height);
    // Text stays readable: what is too tall then begins at its top.
    this._zoom = Math.max(this._zoom, Math.min(0.55, (clientWidth - 8) / width));
    this._x = Math.max(4, (clientWidth - width * this._zoom) / 2);
    this._y = Math.max(4, (clientHeight - height * this._zoom) / 2);
    this._fitted = this._auto = true;
    this._place();
  }

  _place() {
    this._view.setAttribute("transform", `translate(${this._x} ${this._y}) scale(${this._zoom})`);
  }

  _move() {
    this._moved = false;
    /** @type {{x: number, y: number} | null} */
    let from = null;
    this._svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX - this._x, y: event.clientY - this._y };
      this._moved = false;
    });
    this._svg.addEventListener("pointermove", (event) => {
      if (!from || !(event.buttons & 1)) return;
      const x = event.clientX - from.x;
      const y = event.clientY - from.y;
      if (!this._moved && Math.hypot(x - this._x, y - this._y) < 4) return;
      this._moved = true;
      this._auto = false;
      this._x = x;
      this._y = y;
      this._place();
    });
    this._svg.addEventListener("pointerup", () => (from = null));
    this._svg.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        const place = this._svg.getBoundingClientRect();
        this._zoomAt(event.deltaY < 0 ? 1.12 : 0.89, event.clientX - place.left, event.clientY - place.top);
      },
      { passive: false },
    );
  }
}

/**
 * A label that has room, cut where it has none. Widths are those of the layout.
 * @param {string} label
 * @param {number} room in px at 100 %
 */
function fitted(label, room) {
  let width = 0;
  let text = "";
  for (const character of label) {
    width += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f000}-\u{3fffd}]/u.test(character) ? 13 : 7.8;
    if (width > room + 0.01) return `${text.slice(0, -1)}…`;
    text += character;
  }
  return label;
}

/**
 * A line through points, with bends that are round.
 * @param {{x: number, y: number}[]} points
 */
export function curve(points) {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x} ${first.y}`;
  let { x: px, y: py } = first;
  for (const { x, y } of rest) {
    const middle = (py + y) / 2;
    path += px === x || py === y ? ` L${x} ${y}` : ` C${px} ${middle} ${x} ${middle} ${x} ${y}`;
    [px, py] = [x, y];
  }
  return path;
}
