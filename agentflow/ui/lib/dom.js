// Elements from data. Everything that comes from a run becomes text: nothing here parses markup.

/** @typedef {Node | string | number | null | undefined | false | any[]} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. `on…` members are listeners, `class`, `data-…` and `aria-…` attributes, `style` an object
 * of custom properties and styles; other members are attributes, and `true` is an empty one.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {Record<string, any> | null} [members]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(name, members, ...children) {
  const element = document.createElement(name);
  assign(element, members);
  append(element, children);
  return element;
}

/**
 * Make an SVG element.
 * @param {string} name
 * @param {Record<string, any> | null} [members]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(name, members, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, name));
  assign(element, members);
  append(element, children);
  return element;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Record<string, any> | null | undefined} members
 */
function assign(element, members) {
  for (const [name, value] of Object.entries(members ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, String(text));
    } else if (name === "value" && "value" in element) /** @type {any} */ (element).value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * @param {Element | DocumentFragment} element
 * @param {Child[]} children
 */
export function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
}

/**
 * Replace what is in an element.
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// Characters that change the order of others, or take no room: people would decide about another text than is there.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/**
 * A text in which characters that cannot be seen are named.
 * @param {string} text
 * @returns {Child[]}
 */
export function visible(text) {
  /** @type {Child[]} */
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(HIDDEN)) {
    parts.push(text.slice(at, found.index), h("span", { class: "hidden-character", title: "A character that cannot be seen" }, codeOf(found[0])));
    at = found.index + found[0].length;
  }
  return at ? [...parts, text.slice(at)] : [text];
}

/**
 * The same where only text may stand.
 * @param {string} text
 */
export const visibleText = (text) => text.replace(HIDDEN, (one) => `⟨${codeOf(one)}⟩`);

/** @param {string} character */
const codeOf = (character) => `U+${/** @type {number} */ (character.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}`;

/**
 * A button.
 * @param {Child} label
 * @param {(event: MouseEvent) => void} action
 * @param {Record<string, any>} [members]
 */
export function button(label, action, members) {
  return h("button", { type: "button", class: "button", onclick: action, ...members }, label);
}

/**
 * A button that copies a text.
 * @param {string | (() => string)} text
 * @param {string} [label]
 */
export function copyButton(text, label = "Copy") {
  const element = button(copyIcon(), () => void copy(), { class: "icon-button", "aria-label": label, title: label });
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      element.textContent = "✓";
    } catch {
      element.textContent = "✕";
    }
    setTimeout(() => fill(element, copyIcon()), 1200);
  }
  return element;
}

function copyIcon() {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    svg("rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }),
    svg("path", { d: "M10.5 3.5v-.5a1.5 1.5 0 0 0-1.5-1.5H4A1.5 1.5 0 0 0 2.5 3v6A1.5 1.5 0 0 0 4 10.5h.5" }),
  );
}

/**
 * Say something to people who do not look: a polite live region.
 * @param {string} text
 */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

/**
 * Call `action` once, `delay` ms after the first of several requests.
 * @param {() => void} action
 * @param {number} delay
 * @param {AbortSignal} signal
 */
export function debounced(action, delay, signal) {
  /** @type {number | undefined} */
  let timer;
  signal.addEventListener("abort", () => clearTimeout(timer));
  return () => {
    if (timer !== undefined || signal.aborted) return;
    timer = window.setTimeout(() => {
      timer = undefined;
      action();
    }, delay);
  };
}

/**
 * Call `action` at the next frame, once for all requests before it. One that takes long is called less often, so
 * that most of the time is left for everything else.
 * @param {() => void} action
 * @param {AbortSignal} signal
 */
export function perFrame(action, signal) {
  let asked = false;
  let rest = 0;
  const run = () => {
    asked = false;
    if (signal.aborted) return;
    const began = performance.now();
    action();
    const took = performance.now() - began;
    rest = took > 4 ? began + took * 5 : 0;
  };
  return () => {
    if (asked || signal.aborted) return;
    asked = true;
    const wait = rest - performance.now();
    if (wait > 0) setTimeout(() => requestAnimationFrame(run), wait);
    else requestAnimationFrame(run);
  };
}

// -- keys of one character: people who speak to their computer, or who slip, can turn them off (WCAG 2.1.4)

const SINGLE_KEYS = "single-keys";
let usesSingle = readKeys();

export const usesKeys = () => usesSingle;

/** @param {boolean} on */
export function useKeys(on) {
  usesSingle = on;
  try {
    localStorage.setItem(SINGLE_KEYS, on ? "on" : "off");
  } catch {
    // for this page only, then
  }
}

/**
 * Return whether a key that was pressed is one of the page: with Ctrl, Alt or Meta it is the browser's.
 * @param {KeyboardEvent} event
 */
export function isKey(event) {
  return !event.ctrlKey && !event.metaKey && !event.altKey && (usesSingle || event.key.length > 1);
}

function readKeys() {
  try {
    return localStorage.getItem(SINGLE_KEYS) !== "off";
  } catch {
    return true;
  }
}
