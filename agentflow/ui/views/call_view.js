// A model call: what was sent, what came back, as it comes, and what is new since the turn before.

import { get, runPath } from "../lib/api.js";
import { button, fill, h, visible } from "../lib/dom.js";
import { diffLines, shortened, stableText } from "../lib/diff.js";
import { parse } from "../lib/exact.js";
import { count, duration, money } from "../lib/format.js";
import { jsonView } from "../lib/json.js";
import { errorView, facts, problemView } from "../lib/parts.js";

const MANY_LINES = 2_000;

/**
 * @param {string} id
 * @param {string} callId
 * @param {{state: string, streamed: Map<string, string>, signal: AbortSignal, alone?: boolean}} options
 */
export function callView(id, callId, { state, streamed, signal, alone }) {
  const holder = h("div", { class: "call" }, h("p", { class: "muted" }, "loading…"));
  get(`${runPath(id)}/calls/${encodeURIComponent(callId)}`, { signal })
    .then((call) => fill(holder, content(call)))
    .catch((error) => {
      if (!signal.aborted) fill(holder, problemView(error));
    });

  /** @param {any} call */
  function content(call) {
    const usage = call.usage;
    const seconds = (call.duration_ms ?? 0) / 1000;
    const messages = h("div", { class: "messages" });
    let onlyNew = false;
    const draw = () =>
      fill(
        messages,
        call.messages.map((/** @type {any} */ message, /** @type {number} */ index) =>
          onlyNew && index < call.new_from ? null : messageView(message, index >= call.new_from && call.new_from > 0),
        ),
      );
    draw();
    const toggle = h("input", { type: "checkbox", id: "only-new", onchange: () => {
      onlyNew = toggle.checked;
      draw();
    } });
    const changes = h("div");
    return [
      facts([
        ["Turn", String(call.turn)],
        ["Took", duration(call.duration_ms)],
        ["First token", duration(call.first_token_ms)],
        ["Tokens", usage ? `${count(usage.input_tokens)} in · ${count(usage.output_tokens)} out` : ""],
        ["Cached", usage?.cache_read_input_tokens ? count(usage.cache_read_input_tokens) : ""],
        ["Speed", usage && seconds > 0.05 ? `${Math.round(usage.output_tokens / seconds)} tokens/s` : ""],
        ["Cost", usage ? money(usage.cost_usd) || "no price known" : ""],
        ["Finish", call.finish_reason],
        ["Model", call.response_model ?? call.model],
      ]),
      call.error ? errorView(call.error) : null,
      Object.keys(call.parameters).length ? h("details", null, h("summary", null, "Parameters"), jsonView(call.parameters, { label: "parameters" })) : null,
      call.tools.length ? h("p", null, "Tools offered: ", call.tools.map((/** @type {any} */ tool) => h("span", { class: "tag" }, tool.name))) : null,
      h(
        "div",
        { class: "call-tools" },
        h("h3", null, `Sent: ${call.messages.length} messages`),
        call.new_from > 0 ? h("span", { class: "field check" }, toggle, h("label", { for: "only-new" }, "only what is new")) : null,
        call.previous ? button("Compare with the turn before", () => void compare(call, changes), { class: "button small" }) : null,
      ),
      changes,
      messages,
      h("h3", null, "Answer"),
      call.answer
        ? messageView(call.answer, false)
        : state === "running"
          ? h("pre", { class: "text streaming", id: `stream-${callId}`, "aria-live": "off" }, visible(streamed.get(callId) ?? ""))
          : call.partial
            ? jsonView(call.partial, { label: "what had arrived" })
            : h("p", { class: "muted" }, "No answer."),
      alone ? null : h("p", null, h("a", { class: "button small", href: `#/runs/${encodeURIComponent(id)}/calls/${encodeURIComponent(callId)}` }, "Open alone")),
    ];
  }

  /** @param {any} call @param {HTMLElement} into */
  async function compare(call, into) {
    if (into.firstChild) {
      fill(into);
      return;
    }
    try {
      const before = await get(`${runPath(id)}/calls/${encodeURIComponent(call.previous)}`, { signal });
      fill(into, diffView(transcript(before.messages), transcript(call.messages)));
    } catch (error) {
      if (!signal.aborted) fill(into, problemView(error));
    }
  }
  return holder;
}

/** @param {any[]} messages */
function transcript(messages) {
  return messages
    .map((message) => [`[${message.role}]`, message.content && stableText(message.content), ...(message.tool_calls ?? []).map((/** @type {any} */ call) => `→ ${call.name}(${stableText(call.arguments)})`)].filter(Boolean).join("\n"))
    .join("\n\n");
}

/**
 * @param {string} before
 * @param {string} after
 */
export function diffView(before, after) {
  const lines = shortened(diffLines(before, after));
  const signs = { same: " ", added: "+", removed: "−", gap: "" };
  const shown = h("pre", { class: "diff", tabindex: "0", "aria-label": "Changes" });
  /** @param {number} from */
  const more = (from) => {
    const part = lines.slice(from, from + MANY_LINES);
    shown.append(...part.map((line) => h("span", { class: `diff-${line.kind}` }, visible(`${signs[line.kind]} ${line.text}\n`))));
    const left = lines.length - from - part.length;
    if (left) {
      const next = button(`${count(left)} more lines`, () => {
        next.remove();
        more(from + MANY_LINES);
      });
      shown.append(next);
    }
  };
  more(0);
  return shown;
}

/**
 * @param {any} message
 * @param {boolean} fresh
 */
function messageView(message, fresh) {
  return h(
    "article",
    { class: `message role-${message.role}${fresh ? " fresh" : ""}` },
    h("header", null, h("span", { class: "role" }, message.role), message.name ? ` ${message.name}` : null, fresh ? h("span", { class: "tag" }, "new") : null),
    message.content ? jsonView(parsed(message), { label: `${message.role} message`, open: 2 }) : null,
    (message.tool_calls ?? []).map((/** @type {any} */ call) =>
      h("div", { class: "tool-call" }, h("span", { class: "tool-name" }, "ƒ ", call.name), jsonView(read(call.arguments), { label: "arguments" })),
    ),
  );
}

/** @param {any} message */
function parsed(message) {
  return message.role === "tool" ? read(message.content) : message.content;
}

/** @param {string} text */
function read(text) {
  try {
    const value = parse(text);
    return value !== null && typeof value === "object" ? value : text;
  } catch {
    return text;
  }
}
