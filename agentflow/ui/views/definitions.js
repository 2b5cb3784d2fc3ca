// Definitions: the registered ones with versions and graph, a form to start a run, and a check of pasted text.

import { get, post, Problem } from "../lib/api.js";
import { button, fill, h, visible } from "../lib/dom.js";
import { when } from "../lib/format.js";
import { formOf, jsonField } from "../lib/form.js";
import { GraphView } from "../lib/graph.js";
import { commandButton, commandForm, empty, facts, panel, problemView } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";
import { inputSchema } from "./run_commands.js";

/** @param {import("../app.js").Context} context */
export async function show(context) {
  const { path } = context;
  if (path[0] === undefined) await list(context);
  else await one(context, path[0]);
}

/** @param {import("../app.js").Context} context */
async function list({ root, signal, session, setTitle }) {
  setTitle(TEXTS.definitions);
  const { items } = await get("/definitions", { signal });
  fill(
    root,
    h("div", { class: "view-head" }, h("h1", null, TEXTS.definitions)),
    items.length
      ? h("div", { class: "tiles" }, items.map((/** @type {any} */ one) =>
          h("a", { class: "card tile", href: `#/definitions/${encodeURIComponent(one.name)}` }, h("h2", null, one.name), h("p", { class: "muted" }, `version ${one.version} · ${one.format}`), h("p", { class: "muted" }, visible(`by ${one.by}, ${when(one.created_at)}`), one.trusted ? null : " · not trusted"))))
      : empty("No definition is registered", h("p", null, "Register one below, or with ", h("code", null, "POST /definitions"), "; ", h("code", null, "agentflow serve --load"), " brings workflows built in Python.")),
    checkBox(session),
  );
}

/** @param {{scopes: string[]}} session */
function checkBox(session) {
  const text = h("textarea", { class: "mono source", id: "source", rows: "14", spellcheck: "false", "aria-label": "Source of a workflow" });
  const gutter = h("pre", { class: "gutter", "aria-hidden": "true" });
  const found = h("div", { "aria-live": "polite" });
  /** @type {Map<number, string>} */
  let marks = new Map();
  const number = () => {
    const lines = text.value.split("\n").length;
    fill(gutter, Array.from({ length: lines }, (_, index) => {
      const mark = marks.get(index + 1);
      return h("span", { class: mark ? `mark-${mark}` : "", "data-line": String(index + 1) }, `${mark ? (mark === "error" ? "✕" : "!") : ""}${index + 1}\n`);
    }));
    gutter.scrollTop = text.scrollTop;
  };
  text.addEventListener("input", () => {
    marks = new Map();
    number();
  });
  text.addEventListener("scroll", () => (gutter.scrollTop = text.scrollTop));
  number();

  /** @param {any[]} diagnostics @param {import("../lib/dom.js").Child} head */
  function show(diagnostics, head) {
    marks = new Map(diagnostics.filter((one) => one.line).map((one) => [one.line, one.severity]));
    number();
    fill(found, head, diagnostics.length
      ? h("ul", { class: "diagnostics" }, diagnostics.map((one) => h("li", { class: `severity-${one.severity}` },
          one.line ? button(`line ${one.line}`, () => go(one.line), { class: "link" }) : null,
          h("span", { class: "tag" }, one.severity), h("code", null, one.code), " ", visible(one.message),
          one.hint ? h("span", { class: "muted" }, ` ${one.hint}`) : null)))
      : null);
  }

  /** @param {number} line */
  function go(line) {
    const before = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(before, before + (text.value.split("\n")[line - 1]?.length ?? 0));
    text.scrollTop = Math.max(0, (line - 4) * 20);
  }

  async function check() {
    try {
      const result = await post("/validate", { definition: text.value });
      show(result.diagnostics, h("p", { class: result.valid ? "valid" : "invalid" }, result.valid ? "✓ This workflow is valid." : "✕ This workflow is not valid."));
    } catch (error) {
      fill(found, problemView(error));
    }
  }

  async function register() {
    try {
      const made = await post("/definitions", { definition: text.value });
      location.hash = `#/definitions/${encodeURIComponent(made.name)}`;
    } catch (error) {
      if (error instanceof Problem && error.diagnostics.length) show(error.diagnostics, problemView(error));
      else fill(found, problemView(error));
    }
  }
  return panel(
    "Check a workflow",
    h("p", { class: "muted" }, "YAML or JSON. Nothing is kept until you register it."),
    h("div", { class: "editor" }, gutter, text),
    h("div", { class: "actions" }, commandButton("Check", session, "run", () => void check(), { class: "button primary" }), commandButton("Register", session, "run", () => void register())),
    found,
  );
}

/** @param {import("../app.js").Context} context @param {string} name */
async function one({ root, query, signal, session, setTitle }, name) {
  setTitle(name);
  const place = `/definitions/${encodeURIComponent(name)}`;
  const wanted = query.get("version") ?? "";
  const [found, versions, layout, graph] = await Promise.all([
    get(place, { signal, query: { version: wanted } }),
    get(`${place}/versions`, { signal }),
    get(`${place}/graph`, { signal, query: { version: wanted, format: "layout" } }).catch(() => null),
    get(`${place}/graph`, { signal, query: { version: wanted, format: "json" } }).catch(() => null),
  ]);
  const schema = graph ? inputSchema(graph) : null;
  const field = schema ? formOf(schema, undefined, { label: "Input" }) : jsonField(undefined, { label: "Input", required: false, description: "" });
  const problem = h("div", { "aria-live": "assertive" });
  const labels = h("input", { type: "text", id: "start-labels", autocomplete: "off", placeholder: "name=value, name=value" });
  const start = async () => {
    try {
      const given = Object.fromEntries(labels.value.split(",").map((one) => one.trim()).filter(Boolean).map((one) => one.split("=", 2).map((part) => part.trim())));
      const input = field.value();
      const record = await post("/workflows", {
        definition_ref: { name: found.name, version: found.version },
        ...(input === undefined ? {} : { input }),
        ...(labels.value ? { labels: given } : {}),
      });
      location.hash = `#/runs/${encodeURIComponent(record.workflow_id)}`;
    } catch (error) {
      fill(problem, problemView(error));
    }
  };
  const view = layout ? new GraphView(layout, () => {}) : null;
  fill(
    root,
    h("div", { class: "view-head" }, h("a", { class: "back", href: "#/definitions", "aria-label": "All definitions" }, "‹"), h("h1", null, name), h("span", { class: "tag" }, found.version)),
    h(
      "div",
      { class: "pair" },
      panel("Start a run", commandForm("Start", session, "run", () => void start(), {}, field.element, h("div", { class: "field" }, h("label", { for: labels.id }, "Labels"), labels), problem)),
      panel("Graph", h("div", { class: "graph-box" }, view ? view.element : "The graph cannot be drawn.")),
    ),
    h(
      "div",
      { class: "pair" },
      panel("Versions", h("ul", { class: "choices" }, versions.items.map((/** @type {any} */ one) => h("li", null, h("a", { href: `#/definitions/${encodeURIComponent(name)}?version=${encodeURIComponent(one.version)}`, "aria-current": one.version === found.version ? "true" : null }, one.version), h("span", { class: "muted" }, `by ${one.by}, ${when(one.created_at)}`)))),
        facts([["Format", found.format], ["Hash", h("code", null, String(found.hash).slice(0, 23))], ["Trusted", found.trusted ? "✓ may run code of this machine" : "– may not"]]),
        h("a", { class: "button small", href: `#/runs?q=${encodeURIComponent(name)}` }, "Its runs")),
      panel("Source", h("pre", { class: "text source-view", tabindex: "0" }, visible(typeof found.source === "string" ? found.source : JSON.stringify(found.source, null, 2)))),
    ),
  );
}
