// Compare: a run beside another, step by step, with the first difference marked.

import { get, runPath } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { stableText } from "../lib/diff.js";
import { count, duration, money, tokens, when } from "../lib/format.js";
import { badge, empty } from "../lib/parts.js";
import { diffView } from "./call_view.js";

/** @param {import("../app.js").Context} context */
export async function show({ root, path, signal, setTitle }) {
  const [id, , other] = /** @type {[string, string, string | undefined]} */ (path);
  setTitle("Compare");
  if (!other) return choose(root, id, signal);
  let [mine, theirs, found] = await Promise.all([
    get(`${runPath(id)}/history`, { signal }),
    get(`${runPath(other)}/history`, { signal }),
    get(`${runPath(id)}/compare`, { signal, query: { with: other } }),
  ]);
  // What came first stands left, as in any comparison.
  if (mine.workflow.created_at > theirs.workflow.created_at) {
    [mine, theirs] = [theirs, mine];
    for (const name of ["input", "output", "usage"]) found[name]?.reverse();
  }
  const a = numbered(mine.steps);
  const b = numbered(theirs.steps);
  const keys = [...new Set([...a.keys(), ...b.keys()])];
  const first = found.activation;
  const detail = h("div", { class: "panel", "aria-live": "polite" });
  let marked = false;
  const rows = keys.map((key) => {
    const left = a.get(key);
    const right = b.get(key);
    const differs = members(left, right);
    const is = !marked && first !== null && (left ?? right).step_id === first.step_id && (left ?? right).iteration === first.iteration && differs.length > 0;
    marked ||= is;
    const row = h(
      "tr",
      { class: `${differs.length ? "differs" : ""}${is ? " first-difference" : ""}` },
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => open(key, left, right) }, key), is ? [" ", h("span", { class: "tag" }, "first difference")] : null),
      h("td", null, left ? badge(left.state) : "–"),
      h("td", { class: "number" }, duration(left?.duration_ms)),
      h("td", null, right ? badge(right.state) : "–"),
      h("td", { class: "number" }, duration(right?.duration_ms)),
      h("td", null, differs.length ? `≠ ${differs.join(", ")}` : "= same"),
    );
    if (is) open(key, left, right);
    return row;
  });

  /** @param {string} key @param {any} left @param {any} right */
  function open(key, left, right) {
    const differs = members(left, right);
    fill(
      detail,
      h("h2", null, key),
      differs.length
        ? differs.map((name) => [h("h3", null, name), diffView(stableText(left?.[name] ?? ""), stableText(right?.[name] ?? ""))])
        : h("p", null, "The same in both runs."),
    );
  }

  fill(
    root,
    h("div", { class: "view-head" }, h("a", { class: "back", href: `#/runs/${encodeURIComponent(id)}`, "aria-label": "The run" }, "‹"), h("h1", null, "Compare"), h("span", { class: found.equal ? "tag" : "tag warn" }, found.equal ? "= the same" : "≠ different")),
    h("div", { class: "pair" }, side("−", mine.workflow), side("+", theirs.workflow)),
    h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Steps of both runs" }, h(
      "table",
      { class: "data wide" },
      h("caption", { class: "visually-hidden" }, "Steps of both runs"),
      h("thead", null, h("tr", null, ["Step", "− state", "− time", "+ state", "+ time", "Difference"].map((name) => h("th", { scope: "col", class: name.endsWith("time") ? "number" : null }, name)))),
      h("tbody", null, rows),
    )),
    detail,
    found.input ? whole("Input", found.input) : null,
    found.output ? whole("State and output", found.output) : null,
  );
}

/** @param {string} title @param {any[]} pair */
function whole(title, pair) {
  return h("section", { class: "panel" }, h("h2", null, title), diffView(stableText(pair[0]), stableText(pair[1])));
}

/** @param {string} sign @param {any} record */
function side(sign, record) {
  const facts = [
    when(record.created_at),
    duration(record.duration_ms),
    `${count(tokens(record.usage))} tokens`,
    money(record.usage.cost_usd) || "no price",
  ];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, `${sign} `, h("a", { href: `#/runs/${encodeURIComponent(record.workflow_id)}` }, record.workflow_id)),
    h("p", null, badge(record.state), ` ${facts.filter(Boolean).join(" · ")}`),
  );
}

/** @param {any} left @param {any} right */
function members(left, right) {
  if (!left || !right) return ["state"];
  return ["state", "attempt", "input", "output", "error", "reason"].filter((name) => {
    const [x, y] = name === "error" ? [left.error?.code, right.error?.code] : [left[name], right[name]];
    return stableText(x ?? null) !== stableText(y ?? null);
  });
}

/** @param {any[]} steps */
function numbered(steps) {
  /** @type {Map<string, any>} */
  const found = new Map();
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const step of steps) {
    const name = step.iteration === null ? step.step_id : `${step.step_id}[${step.iteration}]`;
    const visit = counts.get(name) ?? 0;
    counts.set(name, visit + 1);
    found.set(visit ? `${name} (${visit + 1})` : name, step);
  }
  return found;
}

/**
 * @param {HTMLElement} root
 * @param {string} id
 * @param {AbortSignal} signal
 */
async function choose(root, id, signal) {
  const record = await get(runPath(id), { signal });
  const { items } = await get("/workflows", { signal, query: { name: record.definition.name, limit: 50 } });
  const others = items.filter((/** @type {any} */ run) => run.workflow_id !== id);
  fill(
    root,
    h("div", { class: "view-head" }, h("a", { class: "back", href: `#/runs/${encodeURIComponent(id)}`, "aria-label": "The run" }, "‹"), h("h1", null, "Compare with")),
    others.length
      ? h("ul", { class: "choices" }, others.map((/** @type {any} */ run) => h("li", null, badge(run.state), h("a", { href: `#/runs/${encodeURIComponent(id)}/compare/${encodeURIComponent(run.workflow_id)}` }, run.workflow_id), h("span", { class: "muted" }, when(run.created_at)))))
      : empty("No other run of this workflow", h("p", null, "A fork of this run would be one.")),
  );
}
