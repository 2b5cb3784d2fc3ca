// System: is the machine well? The totals, and the page of metrics in words.

import { get } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { count, duration, when } from "../lib/format.js";
import { badge, facts, panel, problemView } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";

/** @param {import("../app.js").Context} context */
export async function show({ root, signal, setTitle }) {
  setTitle(TEXTS.system);
  const body = h("div", { class: "system" });
  fill(root, h("div", { class: "view-head" }, h("h1", null, TEXTS.system), h("span", { class: "live", "data-live": "live" }, TEXTS.live)), body);
  const opened = new Set();

  async function load() {
    try {
      const [health, version, totals, text] = await Promise.all([
        get("/healthz", { signal }),
        get("/version", { signal }),
        get("/totals", { signal }),
        get("/metrics", { signal, as: "text" }),
      ]);
      draw(health, version, totals, parse(text));
    } catch (error) {
      if (!signal.aborted) fill(body, problemView(error));
    }
    if (!signal.aborted) setTimeout(() => void load(), 2_000);
  }

  /** @param {any} health @param {any} version @param {any} totals @param {Family[]} families */
  function draw(health, version, totals, families) {
    const table = families.find((one) => one.name.includes("mailbox"));
    fill(
      body,
      h(
        "div",
        { class: "numbers" },
        [
          ["Daemon", totals.draining ? "draining" : health.status],
          ["Up for", duration(Date.now() - Date.parse(totals.started_at))],
          ["Open requests", count(totals.requests)],
          ["Streams", count(totals.streams_open)],
          ["Accepted since start", count(totals.runs_accepted)],
          ["Taken up at the start", count(totals.runs_recovered)],
          ["Dead letters", count(sum(families, "agentflow_actor_dead_letters_total"))],
          ["Commit, mean", mean(families, "commit")],
        ].map(([name, value]) => h("div", { class: "number-box" }, h("span", { class: "number-name" }, name ?? ""), h("span", { class: "number-value" }, value || "–"))),
      ),
      h(
        "div",
        { class: "pair" },
        panel(
          "Store and version",
          facts([
            ["Version", version.version],
            ["Python", version.python],
            ["Store", health.store],
            ["Durable", health.durable ? "✓ outlives a power failure" : "✕ in memory alone"],
            ["Started", when(totals.started_at)],
            ["Problem", health.detail],
          ]),
        ),
        panel(
          "Runs",
          h("ul", { class: "choices" }, Object.entries(totals.runs).map(([state, number]) => h("li", null, h("a", { href: `#/runs?state=${state}` }, badge(state)), h("span", { class: "number" }, count(/** @type {number} */ (number)))))),
        ),
      ),
      table ? panel("Mailboxes", samples(table)) : null,
      panel(
        "All measurements",
        h("p", { class: "muted" }, "The page that Prometheus reads, ", h("a", { href: "../metrics" }, "/metrics"), ", in words."),
        families.map((family) => {
          const details = h("details", { open: opened.has(family.name), ontoggle: () => (details.open ? opened.add(family.name) : opened.delete(family.name)) }, h("summary", null, h("strong", null, words(family.name)), " ", h("span", { class: "muted" }, family.help)), samples(family));
          return details;
        }),
      ),
    );
  }
  await load();
}

/** @typedef {{name: string, help: string, type: string, samples: {name: string, labels: Record<string, string>, value: number}[]}} Family */

/**
 * @param {string} text of Prometheus
 * @returns {Family[]}
 */
export function parse(text) {
  /** @type {Family[]} */
  const families = [];
  for (const line of text.split("\n")) {
    const about = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line);
    if (about) {
      const name = about[2] ?? "";
      let family = families.find((one) => one.name === name);
      if (!family) families.push((family = { name, help: "", type: "", samples: [] }));
      if (about[1] === "HELP") family.help = about[3] ?? "";
      else family.type = about[3] ?? "";
      continue;
    }
    const sample = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    const family = families[families.length - 1];
    if (!sample || !family) continue;
    /** @type {Record<string, string>} */
    const labels = {};
    for (const pair of (sample[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[pair[1] ?? ""] = pair[2] ?? "";
    family.samples.push({ name: sample[1] ?? "", labels, value: Number(sample[3]) });
  }
  return families;
}

/** @param {Family} family */
function samples(family) {
  const shown = family.samples.filter((one) => !one.name.endsWith("_bucket"));
  if (!shown.length) return h("p", { class: "muted" }, "Nothing was measured yet.");
  return h(
    "table",
    { class: "data" },
    h("tbody", null, shown.slice(0, 200).map((one) => h("tr", null, h("th", { scope: "row" }, Object.entries(one.labels).map(([name, value]) => `${name}=${value}`).join(" ") || one.name.replace(family.name, "").replace(/^_/, "") || "now"), h("td", { class: "number" }, Number.isInteger(one.value) ? count(one.value) : one.value.toPrecision(4))))),
  );
}

/** @param {string} name */
function words(name) {
  return name.replace(/^agentflow_/, "").replace(/_total$/, "").replaceAll("_", " ");
}

/** @param {Family[]} families @param {string} name */
function sum(families, name) {
  const found = families.flatMap((family) => family.samples).filter((one) => one.name === name || one.name.includes("dead_letters"));
  return found.reduce((all, one) => all + one.value, 0);
}

/** @param {Family[]} families @param {string} part */
function mean(families, part) {
  const family = families.find((one) => one.type === "histogram" && one.name.includes(part));
  const total = family?.samples.filter((one) => one.name.endsWith("_sum")).reduce((all, one) => all + one.value, 0) ?? 0;
  const number = family?.samples.filter((one) => one.name.endsWith("_count")).reduce((all, one) => all + one.value, 0) ?? 0;
  return number ? `${((total / number) * 1000).toFixed(2)} ms` : "";
}
