// A JSON value as a tree that can be folded, searched by eye and copied. Parts are made when they are opened.

import { get } from "./api.js";
import { button, copyButton, fill, h, visible } from "./dom.js";
import { Digits, parse } from "./exact.js";
import { bytes, brief } from "./format.js";

const LONG = 1_200;
const MANY = 100;

/**
 * Show a value: text as it is, anything else as a tree.
 * @param {any} value
 * @param {{open?: number, label?: string}} [options] `open`: levels that are open at first
 * @returns {HTMLElement}
 */
export function jsonView(value, { open = 2, label = "value" } = {}) {
  const text = () => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  return h(
    "div",
    { class: "json", role: "group", "aria-label": label },
    h("div", { class: "json-copy" }, copyButton(text, `Copy ${label}`)),
    typeof value === "string" ? longText(value) : part(null, value, open),
  );
}

/**
 * @param {string} value
 * @returns {HTMLElement}
 */
function longText(value) {
  if (value === "") return h("span", { class: "muted" }, "empty text");
  const element = h("pre", { class: "text" }, visible(value.slice(0, LONG)));
  if (value.length > LONG) {
    const more = button(`Show all ${value.length.toLocaleString("en-US")} characters`, () => {
      fill(element, visible(value));
    });
    element.append("… ", more);
  }
  return element;
}

/**
 * @param {string | null} name
 * @param {any} value
 * @param {number} open
 * @returns {HTMLElement}
 */
function part(name, value, open) {
  const key = name === null ? null : [h("span", { class: "json-key" }, visible(name)), ": "];
  if (value === null || typeof value !== "object" || value instanceof Digits) {
    return h("div", { class: "json-leaf" }, key, scalar(value));
  }
  if (isStored(value)) {
    return h("div", { class: "json-leaf" }, key, blob(value));
  }
  const members = /** @type {[string, any][]} */ (
    Array.isArray(value) ? value.map((item, index) => [String(index), item]) : Object.entries(value)
  );
  if (members.length === 0) return h("div", { class: "json-leaf" }, key, Array.isArray(value) ? "[]" : "{}");
  const body = h("div", { class: "json-members" });
  const said = Array.isArray(value) ? `[${members.length}]` : `{${members.length}}`;
  const details = h(
    "details",
    { class: "json-branch", open: open > 0 },
    h("summary", null, key, h("span", { class: "muted" }, said, " ", visible(brief(value, 80)))),
    body,
  );
  let made = 0;
  const more = () => {
    body.querySelector(":scope > .button")?.remove();
    for (const [member, inner] of members.slice(made, made + MANY)) body.append(part(member, inner, open - 1));
    made += MANY;
    if (made < members.length) body.append(button(`${members.length - made} more`, more));
  };
  const begin = () => {
    if (details.open && made === 0) more();
  };
  begin();
  details.addEventListener("toggle", begin);
  return details;
}

/** @param {any} value */
function scalar(value) {
  if (typeof value === "string") {
    if (value.length > LONG || value.includes("\n")) return longText(value);
    return h("span", { class: "json-string" }, visible(JSON.stringify(value)));
  }
  return h("span", { class: "json-scalar" }, String(value));
}

/**
 * Return whether a value is the name of one that the log keeps beside its events.
 * @param {any} value
 */
const isStored = (value) => value !== null && typeof value === "object" && typeof value.$blob === "string" && Object.keys(value).length <= 3;

/**
 * Return a value; one that the log keeps beside its events is loaded.
 * @param {any} value
 * @returns {Promise<any>}
 */
export async function loaded(value) {
  if (!isStored(value)) return value;
  const text = await get(`/blobs/${encodeURIComponent(value.$blob)}`, { as: "text" });
  try {
    return parse(text);
  } catch {
    return text;
  }
}

/**
 * A value that the log keeps beside its events: loaded when it is opened.
 * @param {any} reference
 */
function blob(reference) {
  const holder = h("span", { class: "json-blob" });
  const size = typeof reference.size === "number" ? ` (${bytes(reference.size)})` : "";
  const load = async () => {
    fill(holder, "loading…");
    try {
      fill(holder, jsonView(await loaded(reference), { open: 1, label: "stored value" }));
    } catch (error) {
      fill(holder, String(error), button("Try again", () => void load()));
    }
  };
  holder.append(button(`Load the stored value${size}`, () => void load()));
  return holder;
}
