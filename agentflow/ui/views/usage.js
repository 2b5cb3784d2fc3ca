// Usage: what it costs, by workflow and by run, over the newest runs of a time.

import { get } from "../lib/api.js";
import { fill, h, visible } from "../lib/dom.js";
import { count, money, tokens, when } from "../lib/format.js";
import { badge, empty, heads, problemView } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";

const LARGEST = 2_000;

/** @param {import("../app.js").Context} context */
export async function show({ root, query, signal, setTitle, setQuery }) {
  setTitle(TEXTS.usage);
  const body = h("div");
  const since = h(
    "select",
    { "aria-label": "Time", onchange: () => {
      setQuery({ since: since.value });
      load().catch((error) => signal.aborted || fill(body, problemView(error)));
    } },
    [["24", "last day"], ["168", "last week"], ["720", "last 30 days"], ["", "all time"]].map(([value, text]) => h("option", { value }, text ?? "")),
  );
  since.value = query.get("since") ?? "168";
  fill(root, h("div", { class: "view-head" }, h("h1", null, TEXTS.usage), h("span", { class: "grow" }), since), body);

  async function load() {
    /** @type {any[]} */
    const runs = [];
    let cursor = null;
    do {
      /** @type {any} */
      const page = await get("/workflows", {
        signal,
        query: { usage: true, limit: 500, cursor, since: since.value ? new Date(Date.now() - Number(since.value) * 3_600_000).toISOString() : "" },
      });
      runs.push(...page.items);
      cursor = page.next_cursor;
    } while (cursor && runs.length < LARGEST && !signal.aborted);
    draw(runs, cursor !== null);
  }

  /** @param {any[]} runs @param {boolean} cut */
  function draw(runs, cut) {
    const used = runs.filter((run) => run.usage);
    if (!used.length) {
      fill(body, empty("No run has ended in this time"));
      return;
    }
    /** @type {Map<string, any>} */
    const names = new Map();
    for (const run of used) {
      const name = run.name ?? "(no name)";
      const one = names.get(name) ?? { runs: 0, input: 0, output: 0, calls: 0, tools: 0, cost: 0, unpriced: 0 };
      one.runs += 1;
      one.input += run.usage.input_tokens;
      one.output += run.usage.output_tokens;
      one.calls += run.usage.model_calls;
      one.tools += run.usage.tool_calls;
      if (run.usage.cost_usd === null) one.unpriced += 1;
      else one.cost += run.usage.cost_usd;
      names.set(name, one);
    }
    const most = Math.max(...[...names.values()].map((one) => one.input + one.output), 1);
    const costly = [...used].sort((a, b) => (b.usage.cost_usd ?? 0) - (a.usage.cost_usd ?? 0) || tokens(b.usage) - tokens(a.usage)).slice(0, 20);
    const total = [...names.values()].reduce((sum, one) => ({ cost: sum.cost + one.cost, tokens: sum.tokens + one.input + one.output, runs: sum.runs + one.runs, unpriced: sum.unpriced + one.unpriced }), { cost: 0, tokens: 0, runs: 0, unpriced: 0 });
    fill(
      body,
      cut ? h("p", { class: "muted" }, `The newest ${count(runs.length)} runs of this time.`) : null,
      h(
        "div",
        { class: "numbers" },
        [["Ended runs", count(total.runs)], ["Tokens", count(total.tokens)], ["Cost", money(total.cost)], ["Runs without a price", count(total.unpriced)]].map(([name, value]) =>
          h("div", { class: "number-box" }, h("span", { class: "number-name" }, name ?? ""), h("span", { class: "number-value" }, value ?? "")),
        ),
      ),
      h("section", { class: "panel" }, h("h2", null, "By workflow"),
        h("div", { class: "table-scroll", tabindex: "0" }, h("table", { class: "data wide" },
          h("thead", null, heads(["Workflow", "Runs", "Tokens in", "Tokens out", "Model calls", "Tool calls", "Cost", "Per run"], 1)),
          h("tbody", null, [...names].sort((x, y) => y[1].cost - x[1].cost || y[1].input + y[1].output - x[1].input - x[1].output).map(([name, one]) =>
            h("tr", null,
              h("th", { scope: "row" }, h("a", { href: `#/runs?q=${encodeURIComponent(name)}` }, visible(name)), h("span", { class: "share", "aria-hidden": "true" }, h("span", { style: { width: `${((one.input + one.output) / most) * 100}%` } }))),
              [one.runs, one.input, one.output, one.calls, one.tools].map((value) => h("td", { class: "number" }, count(value))),
              h("td", { class: "number" }, one.cost || !one.unpriced ? money(one.cost) : "–"),
              h("td", { class: "number" }, one.cost ? money(one.cost / one.runs) : "–"))))))),
      h("section", { class: "panel" }, h("h2", null, "The most expensive runs"),
        h("div", { class: "table-scroll", tabindex: "0" }, h("table", { class: "data wide" },
          h("thead", null, heads(["Run", "State", "Started", "Tokens", "Cost"], 3)),
          h("tbody", null, costly.map((run) =>
            h("tr", null,
              h("th", { scope: "row" }, h("a", { href: `#/runs/${encodeURIComponent(run.workflow_id)}?tab=usage` }, visible(run.name ?? run.workflow_id))),
              h("td", null, badge(run.state)),
              h("td", null, when(run.created_at)),
              h("td", { class: "number" }, count(tokens(run.usage))),
              h("td", { class: "number" }, money(run.usage.cost_usd) || "–"))))))),
    );
  }
  await load();
}
