// What is selected in a run: the run itself, a step, a call, or an event.

import { get, post, runPath } from "../lib/api.js";
import { button, fill, h, visible } from "../lib/dom.js";
import { parse } from "../lib/exact.js";
import { amount, bytes, clock, count, duration, limitName, money, shell, when } from "../lib/format.js";
import { jsonField } from "../lib/form.js";
import { jsonView } from "../lib/json.js";
import { ask, badge, commandButton, commandLine, empty, errorView, facts, heads, problemView, tabs } from "../lib/parts.js";
import { requestCard } from "./request_card.js";
import { callView } from "./call_view.js";

/**
 * @param {object} about
 * @param {string} about.id
 * @param {any} about.record
 * @param {import("./run.js").Selection} about.selection
 * @param {import("../lib/fold.js").RunFold} about.fold
 * @param {import("../lib/fold.js").Fact[]} about.facts
 * @param {string[]} about.lines
 * @param {number | null} about.at
 * @param {{actor: string, scopes: string[]}} about.session
 * @param {AbortSignal} about.signal
 * @param {Map<string, string>} about.streamed
 * @param {string} about.tab
 * @param {(selection: import("./run.js").Selection) => void} about.select
 * @param {(offset: number | null) => void} about.scrub
 * @param {() => Promise<void>} about.refresh
 * @param {(tab: string) => void} about.onTab
 * @returns {HTMLElement}
 */
export function inspector(about) {
  if (about.facts.length === 0 && about.selection.kind !== "run") return h("p", { class: "muted" }, "loading…");
  switch (about.selection.kind) {
    case "step":
      return ofStep(about, about.selection.step, about.selection.span);
    case "call":
      return ofCall(about, about.selection.id);
    case "event":
      return ofEvent(about, about.selection.offset);
    default:
      return ofRun(about);
  }
}

/** @typedef {Parameters<typeof inspector>[0]} About */

/** @param {About} about */
function ofRun(about) {
  const { record, fold, id, at } = about;
  const error = at === null ? record.error : fold.error;
  const requests = [...fold.requests.values()];
  return h(
    "div",
    null,
    at === null && record.state === "waiting" && requests.length ? openRequests(about) : null,
    at === null && record.state === "waiting" ? signalsView(record) : null,
    at === null && record.state === "paused" ? pauseView(about) : null,
    error ? errorView(error, mending(record, at), failedStep(about, error)) : null,
    tabs(
      "Run",
      [
        { id: "input", title: "Input", make: () => jsonView(record.input, { label: "input" }) },
        {
          id: "output",
          title: "Output",
          make: () =>
            at !== null
              ? h("p", { class: "muted" }, "The output is of the end; the state shows what is known at this offset.")
              : record.output === null
                ? h("p", { class: "muted" }, "No output yet.")
                : jsonView(record.output, { label: "output" }),
        },
        { id: "state", title: "State", make: () => stateView(about) },
        { id: "usage", title: "Usage", make: () => usageView(fold, record) },
        { id: "source", title: "Definition", make: () => definitionView(about) },
        { id: "about", title: "About", make: () => aboutView(record, id) },
      ],
      about.tab || (record.output !== null && at === null ? "output" : "input"),
      about.onTab,
    ),
  );
}

/** @param {any} record @param {number | null} at */
function mending(record, at) {
  return at === null && record.state === "failed" ? `agentflow fork ${shell(record.workflow_id)} --from-failure` : undefined;
}

/** @param {About} about @param {any} error */
function failedStep(about, error) {
  const step = error.details?.step_id;
  return typeof step === "string" && about.fold.steps.has(step) ? button(`Show step ${step}`, () => about.select({ kind: "step", step }), { class: "button small" }) : null;
}

/** @param {any} record */
function signalsView(record) {
  const { signals, timers } = record.waiting ?? { signals: [], timers: [] };
  if (signals.length + timers.length === 0) return null;
  return h(
    "section",
    { class: "card request" },
    timers.length ? h("p", null, `Waits for ${timers.length === 1 ? "a timer" : `${timers.length} timers`}.`) : null,
    signals.map((/** @type {string} */ name) => [h("p", null, "Waits for the signal ", h("code", null, visible(name)), "."), commandLine(`agentflow signal ${shell(record.workflow_id)} ${shell(name)}`)]),
  );
}

const PAUSES = /** @type {Record<string, string>} */ ({
  operator: "Somebody paused this run. It goes on when it is resumed.",
  quota: "The provider's quota is used up.",
  budget: "The budget is used up: the next call does not fit. Resume the run with a larger limit.",
  storage: "The store did not take an event. Resume the run when the store is well.",
  failure: "A step has failed, and the run waits for your decision about it.",
  recovery_limit: "The daemon ended several times while this run was at work. Resume it once the cause is known.",
  drain: "The daemon was stopped. The run goes on when the daemon starts.",
  definition_unavailable: "The code of this workflow is not loaded in the daemon. Start it with the code, then resume the run.",
});

/**
 * Why the run stands still, and what makes it go on.
 * @param {About} about
 */
function pauseView(about) {
  const { fold, id, record } = about;
  const failed = record.pause === "failure" ? [...fold.steps.values()].map((spans) => spans[spans.length - 1]).filter((span) => span?.state === "failed") : [];
  const told = fold.pause?.data ?? {};
  return h(
    "section",
    { "aria-label": "Pause" },
    h("div", { class: "card request" },
      h("h2", null, `Paused: ${String(record.pause ?? "").replaceAll("_", " ")}`),
      h("p", null, PAUSES[record.pause] ?? null),
      told.detail && record.pause !== "failure" ? h("p", { class: "muted" }, visible(String(told.detail))) : null,
      told.resume_after ? h("p", null, `It goes on by itself at ${when(told.resume_after)}.`) : null,
      failed.length ? null : commandLine(`agentflow resume ${shell(id)}${record.pause === "budget" ? ` --budget ${Object.keys(told.budget?.limit ?? { max_cost_usd: 1 })[0]}=…` : ""}`)),
    failed.map((span) => span && [
      h("h3", null, span.step),
      span.error ? errorView(span.error, `agentflow retry ${shell(id)} ${shell(span.step)}`) : null,
      retryButtons(about, span.step),
    ]),
  );
}

/** @param {About} about */
function openRequests(about) {
  const holder = h("div", { class: "cards" });
  get(`${runPath(about.id)}/requests`, { signal: about.signal })
    .then(({ items }) => fill(holder, items.map((/** @type {any} */ one) => requestCard(one, about.session, about.refresh))))
    .catch((error) => {
      if (!about.signal.aborted) fill(holder, problemView(error));
    });
  return holder;
}

/** @param {About} about */
function stateView(about) {
  const holder = h("div", null, h("p", { class: "muted" }, "loading…"));
  get(`${runPath(about.id)}/state`, { signal: about.signal, query: { offset: about.at } })
    .then((state) => fill(holder, jsonView(state, { open: 1, label: "state" })))
    .catch((error) => {
      if (!about.signal.aborted) fill(holder, problemView(error));
    });
  return holder;
}

/** @param {About} about */
function definitionView(about) {
  const holder = h("div", null, h("p", { class: "muted" }, "loading…"));
  get(`${runPath(about.id)}/definition`, { signal: about.signal })
    .then((found) =>
      fill(
        holder,
        facts([
          ["Name", found.definition.name],
          ["Version", found.definition.version],
          ["Format", found.definition.format],
          ["Hash", h("code", null, String(found.definition.hash).slice(0, 23))],
        ]),
        jsonView(found.source, { open: 2, label: "source" }),
      ),
    )
    .catch((error) => {
      if (!about.signal.aborted) fill(holder, problemView(error));
    });
  return holder;
}

/** @param {any} record @param {string} id */
function aboutView(record, id) {
  return h(
    "div",
    null,
    facts([
      ["Id", h("code", null, id)],
      ["Created", record.created_at],
      ["Started", record.started_at],
      ["Ended", record.ended_at],
      ["Offsets", `${record.earliest_offset} to ${record.last_offset}`],
      ["Graph", h("code", null, String(record.ir_hash).slice(0, 23))],
    ]),
    commandLine(`agentflow show ${shell(id)}`),
    commandLine(`agentflow log ${shell(id)} > run.ndjson`),
  );
}

/**
 * @param {import("../lib/fold.js").RunFold} fold
 * @param {any} record
 */
export function usageView(fold, record) {
  /** @param {Map<string, any>} table @param {string} title */
  const table = (table, title) =>
    h(
      "table",
      { class: "data" },
      h("thead", null, heads([title, "Calls", "In", "Out", "Cached", "Tools", "Cost"], 1)),
      h(
        "tbody",
        null,
        [...table].map(([name, one]) =>
          h("tr", null, h("th", { scope: "row" }, name), [one.calls, one.input, one.output, one.cached, one.tools].map((value) => h("td", { class: "number" }, count(value))), h("td", { class: "number" }, one.unpriced && !one.cost ? "–" : money(one.cost))),
        ),
      ),
    );
  if (fold.usage.calls + fold.usage.tools === 0) return empty("Nothing was used yet");
  const limits = Object.entries(record.budget?.limits ?? {});
  return h(
    "div",
    null,
    limits.length
      ? h(
          "table",
          { class: "data" },
          h("thead", null, heads(["Budget", "Limit", "Used", "Reserved", "Left"], 1)),
          h("tbody", null, limits.map(([name, limit]) => {
            const used = Number(record.budget.used[name] ?? 0);
            const reserved = Number(record.budget.reserved[name] ?? 0);
            return h("tr", null, h("th", { scope: "row" }, limitName(name)), [Number(limit), used, reserved, Math.max(0, Number(limit) - used - reserved)].map((value) => h("td", { class: "number" }, amount(name, value))));
          })),
        )
      : null,
    table(fold.usageOfStep, "Step"),
    fold.usageOfModel.size ? table(fold.usageOfModel, "Model") : null,
  );
}

/**
 * @param {About} about
 * @param {string} step
 * @param {string | undefined} spanId
 */
function ofStep(about, step, spanId) {
  const { fold, id, record } = about;
  const spans = fold.steps.get(step) ?? [];
  const span = spans.find((one) => one.id === spanId) ?? spans[spans.length - 1];
  if (!span) {
    return h("div", null, h("h2", null, step), empty("This step has not begun", h("p", { class: "muted" }, about.at === null ? "" : "at this offset")));
  }
  const many =
    spans.length > 1
      ? h(
          "select",
          {
            "aria-label": "Activation",
            onchange: (/** @type {Event} */ event) => about.select({ kind: "step", step, span: /** @type {HTMLSelectElement} */ (event.target).value }),
          },
          spans.slice(-500).map((one) => h("option", { value: one.id, selected: one === span }, `${one.label} · ${one.state}`)),
        )
      : null;
  if (many) many.value = span.id;
  const error = span.error;
  const held = error && about.at === null && record.state === "paused";
  const requests = [...fold.requests.values()].filter((one) => one.step === step);
  return h(
    "div",
    null,
    h("div", { class: "inspector-head" }, h("h2", null, step), badge(span.state), h("span", { class: "tag" }, span.detail), many),
    facts([
      ["Started", clock(span.start)],
      ["Took", duration((span.end ?? fold.last) - span.start)],
      ["Attempt", String(span.attempt)],
      ["Events", h("span", null, offsetLink(about, span.offset), " to ", offsetLink(about, span.last))],
      ["Run", span.run ? h("a", { href: `#/runs/${encodeURIComponent(span.run)}` }, h("code", null, span.run)) : null],
    ]),
    requests.length && about.at === null ? openRequests(about) : null,
    error ? errorView(error, held ? `agentflow retry ${shell(id)} ${shell(step)}` : undefined) : null,
    held ? retryButtons(about, step) : null,
    span.attempts.length > 1 || span.waits.length ? attemptsView(span, fold) : null,
    tabs(
      "Step",
      [
        { id: "input", title: "Input", make: () => fromEvent(about, span.offset, ["input"]) },
        { id: "output", title: "Output", make: () => (span.end === null ? h("p", { class: "muted" }, "No output yet.") : fromEvent(about, span.last, ["output", "reason"])) },
        { id: "calls", title: `Calls ${span.children.length || ""}`, make: () => callsView(about, span) },
      ],
      about.tab || (span.end !== null && span.state === "succeeded" ? "output" : "input"),
      about.onTab,
    ),
  );
}

/**
 * @param {About} about
 * @param {number} offset
 */
function offsetLink(about, offset) {
  return button(String(offset), () => about.scrub(offset), { class: "link", title: "Look at the run at this offset" });
}

/**
 * @param {import("../lib/fold.js").Span} span
 * @param {import("../lib/fold.js").RunFold} fold
 */
function attemptsView(span, fold) {
  return h(
    "table",
    { class: "data" },
    h("thead", null, h("tr", null, ["Attempt", "Took", "Ended", "Then waited"].map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      null,
      span.attempts.map((one, index) =>
        h(
          "tr",
          null,
          h("th", { scope: "row" }, String(index + 1)),
          h("td", null, duration((one.end ?? fold.last) - one.start)),
          h("td", null, one.error ? h("code", null, one.error.code) : one.state),
          h("td", null, one.delay ? duration(one.delay) : "–"),
        ),
      ),
    ),
    span.waits.length
      ? h("caption", null, `Waited ${duration(span.waits.reduce((sum, wait) => sum + ((wait.end ?? fold.last) - wait.start), 0))}: ${span.waits.map((wait) => wait.what.replaceAll("_", " ")).filter(Boolean).join(", ")}`)
      : null,
  );
}

/** @param {About} about @param {string} step */
function retryButtons(about, step) {
  /** @param {string} action */
  const decide = async (action) => {
    const output = action === "done" ? jsonField(undefined, { label: "Output of the step", required: true, description: "" }) : null;
    await ask({
      title: `${RETRIES[action]?.[0]}: ${step}`,
      content: [h("p", null, RETRIES[action]?.[1]), output?.element],
      action: RETRIES[action]?.[0] ?? action,
      confirm: async () => post(`${runPath(about.id)}/retry`, { step_id: step, action, ...(output ? { output: output.value() } : {}) }),
    });
    await about.refresh();
  };
  return h("div", { class: "actions" }, Object.keys(RETRIES).map((action) => commandButton(RETRIES[action]?.[0], about.session, "run", () => void decide(action), { class: action === "retry" ? "button primary" : "button" })));
}

const RETRIES = /** @type {Record<string, [string, string]>} */ ({
  retry: ["Retry", "The step is tried again, with new attempts."],
  done: ["Mark as done", "The step has succeeded with an output that you give, and the run goes on."],
  skip: ["Skip", "The step counts as skipped, and the run goes on."],
  fail: ["Let it fail", "The step has failed for good."],
});

/**
 * Members of an event's data, read from the log that the page has.
 * @param {About} about
 * @param {number} offset
 * @param {string[]} names
 */
function fromEvent(about, offset, names) {
  const line = about.lines[offset - (about.facts[0]?.offset ?? 0)];
  const data = line ? parse(line).data : {};
  const shown = names.filter((name) => data[name] !== undefined);
  if (!shown.length) return h("p", { class: "muted" }, "Nothing.");
  return h("div", null, shown.map((name) => jsonView(data[name], { label: name })));
}

/** @param {About} about @param {import("../lib/fold.js").Span} span */
function callsView(about, span) {
  if (!span.children.length) return h("p", { class: "muted" }, "No calls.");
  return h(
    "ul",
    { class: "calls" },
    span.children.map((call) =>
      h(
        "li",
        null,
        badge(call.state),
        button(call.label, () => about.select({ kind: "call", id: call.id }), { class: "link" }),
        h("span", { class: "muted" }, call.detail, " · ", duration((call.end ?? about.fold.last) - call.start), call.usage ? ` · ${count(call.usage.input_tokens)} in, ${count(call.usage.output_tokens)} out` : ""),
      ),
    ),
  );
}

/** @param {About} about @param {string} callId */
function ofCall(about, callId) {
  const { fold, id } = about;
  const call = fold.calls.get(callId);
  if (!call) return empty("This call has not begun");
  const head = h(
    "div",
    { class: "inspector-head" },
    h("h2", null, call.label),
    badge(call.state),
    h("span", { class: "tag" }, call.detail),
    button(call.step, () => about.select({ kind: "step", step: call.step }), { class: "link" }),
  );
  if (call.kind === "model") {
    return h("div", null, head, callView(id, callId, { state: call.state, streamed: about.streamed, signal: about.signal }));
  }
  return h(
    "div",
    null,
    head,
    facts([
      ["Started", clock(call.start)],
      ["Took", duration((call.end ?? fold.last) - call.start)],
      ["Side effect", call.detail],
      ["Attempts", String(call.attempts.length)],
    ]),
    call.error ? errorView(call.error) : null,
    h("h3", null, "Arguments"),
    fromEvent(about, call.offset, ["parameters"]),
    h("h3", null, "Result"),
    call.end === null ? h("p", { class: "muted" }, "No result yet.") : fromEvent(about, call.last, ["output"]),
  );
}

/** @param {About} about @param {number} offset */
function ofEvent(about, offset) {
  const line = about.lines[offset - (about.facts[0]?.offset ?? 0)];
  if (!line) return empty("The event has not come yet");
  const event = parse(line);
  return h(
    "div",
    null,
    h("div", { class: "inspector-head" }, h("h2", null, event.type), h("span", { class: "tag" }, `offset ${event.offset}`), h("span", { class: "muted" }, bytes(line.length))),
    h(
      "div",
      { class: "actions" },
      button("Look at this moment", () => about.scrub(offset)),
      event.data?.step_id ? button(`Step ${event.data.step_id}`, () => about.select({ kind: "step", step: event.data.step_id })) : null,
      event.data?.model_call_id ?? event.data?.tool_call_id ? button("The call", () => about.select({ kind: "call", id: event.data.model_call_id ?? event.data.tool_call_id })) : null,
    ),
    facts([["At", event.timestamp], ["Id", h("code", null, event.id)]]),
    jsonView(event.data, { open: 2, label: "data" }),
  );
}
