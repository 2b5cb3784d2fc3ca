// Dialogs of commands to a run: cancel, pause, fork with edits.

import { get, post, runPath } from "../lib/api.js";
import { stableText } from "../lib/diff.js";
import { h } from "../lib/dom.js";
import { formOf, jsonField } from "../lib/form.js";
import { amount, limitName } from "../lib/format.js";
import { loaded } from "../lib/json.js";
import { ask } from "../lib/parts.js";

/** @param {string} label @param {HTMLElement} control */
function field(label, control) {
  control.id = control.id || `ask-${label.toLowerCase().replaceAll(" ", "-")}`;
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control);
}

/**
 * @param {string} id
 * @param {string} command
 */
export function askReason(id, command) {
  const reason = h("input", { type: "text", autocomplete: "off" });
  return ask({
    title: `${command[0]?.toUpperCase()}${command.slice(1)} this run?`,
    content: [field("Reason", reason)],
    action: command,
    confirm: () => post(`${runPath(id)}/${command}`, reason.value ? { reason: reason.value } : {}),
  });
}

/**
 * Go on with a run that a budget stopped, with larger limits.
 * @param {any} record
 * @param {import("../lib/fold.js").Fact | null} pause
 */
export function askResume(record, pause) {
  const limits = /** @type {[string, number][]} */ (Object.entries({ ...record.budget.limits, ...(pause?.data.budget?.scope === "run" ? pause.data.budget.limit : {}) }));
  const controls = limits.map(([name, limit]) => ({ name, limit, control: h("input", { type: "number", step: "any", min: "0", value: String(limit), id: `limit-${name}` }) }));
  return ask({
    title: "Resume with a larger budget?",
    content: [
      pause?.data.detail ? h("p", null, pause.data.detail) : null,
      controls.map(({ name, control }) => field(`${limitName(name)}, used ${amount(name, Number(record.budget.used[name] ?? 0))}`, control)),
    ],
    action: "Resume",
    confirm: async () => {
      const raised = controls.filter(({ limit, control }) => Number(control.value) !== Number(limit));
      if (!raised.length) throw new Error("Raise a limit: with the same ones the run would stop again.");
      await post(`${runPath(record.workflow_id)}/resume`, { budget: Object.fromEntries(raised.map(({ name, control }) => [name, Number(control.value)])) });
    },
  });
}

/** @param {string} id */
export function askCancel(id) {
  const reason = h("input", { type: "text", autocomplete: "off" });
  const hard = h("input", { type: "checkbox", id: "ask-hard" });
  return ask({
    title: "Cancel this run?",
    content: [
      h("p", null, "Work in flight has 5 seconds to end; the run cannot go on afterwards. A fork can."),
      field("Reason", reason),
      h("div", { class: "field check" }, hard, h("label", { for: "ask-hard" }, "At once, without waiting")),
    ],
    action: "Cancel the run",
    danger: true,
    confirm: () =>
      post(`${runPath(id)}/cancel`, { mode: hard.checked ? "hard" : "soft", ...(reason.value ? { reason: reason.value } : {}) }),
  });
}

/**
 * A new run from a point of this one, with another input or other outputs of steps.
 * @param {any} record
 * @param {{offset: number | null, step: string | null, input: any}} from
 */
export async function askFork(record, { offset, step, input: given }) {
  const id = record.workflow_id;
  const input = await loaded(given);
  const steps = Object.keys(record.steps);
  const failed = Object.values(record.steps).some((/** @type {any} */ one) => one.state === "failed");
  const from = h(
    "select",
    null,
    offset !== null ? h("option", { value: "offset" }, `offset ${offset}, which is shown`) : null,
    failed ? h("option", { value: "failure" }, "what failed") : null,
    steps.map((one) => h("option", { value: `step:${one}` }, `step ${one}`)),
    h("option", { value: "begin" }, "its beginning: everything anew, as with another input"),
    offset === null ? h("option", { value: "offset" }, `its end, offset ${record.last_offset}`) : null,
  );
  if (offset === null && step && steps.includes(step)) from.value = `step:${step}`;
  /** @type {import("../lib/form.js").Field} */
  let fields = jsonField(input, { label: "Input", required: false, description: "" });
  try {
    const graph = await get(`${runPath(id)}/graph`);
    const schema = inputSchema(graph);
    if (schema && input && typeof input === "object") fields = formOf(schema, input, { label: "Input" });
  } catch {
    // without its graph the input is edited as JSON
  }
  const outputs = jsonField(undefined, {
    label: "Outputs of steps",
    required: false,
    description: 'in place of what was recorded: {"step": value}',
  });
  const shared = jsonField(undefined, { label: "Shared state", required: false, description: "values that executors share, by key" });
  const own = jsonField(undefined, { label: "State of steps", required: false, description: 'what an executor keeps for itself: {"step": {"key": value}}' });
  let made = "";
  const done = await ask({
    title: "Fork this run",
    content: [
      h("p", null, "A new run goes on from there. What was recorded before is kept and not paid for again; this run stays as it is."),
      field("From", from),
      h("details", { ontoggle: (/** @type {Event} */ event) => {
        // Steps that have begun had the old input.
        if (/** @type {HTMLDetailsElement} */ (event.target).open) from.value = "begin";
      } }, h("summary", null, "Edit the input"), h("p", { class: "hint" }, "With another input the new run begins anew."), fields.element),
      h("details", null, h("summary", null, "Edit results"), outputs.element),
      h("details", null, h("summary", null, "Edit the state"), shared.element, own.element),
    ],
    action: "Fork",
    confirm: async () => {
      /** @type {Record<string, any>} */
      const edits = {};
      const value = fields.value();
      if (value !== undefined && stableText(value) !== stableText(input)) edits["input"] = value;
      for (const [name, field] of Object.entries({ outputs, shared, state: own })) {
        const changed = field.value();
        if (changed !== undefined) edits[name] = changed;
      }
      /** @type {Record<string, any>} */
      const body = Object.keys(edits).length ? { edits } : {};
      if (from.value === "begin") body["offset"] = 0;
      else if (from.value === "offset") body["offset"] = offset ?? record.last_offset;
      else if (from.value === "failure") body["from"] = "failure";
      else body["from_step"] = from.value.slice("step:".length);
      made = (await post(`${runPath(id)}/fork`, body)).workflow_id;
    },
  });
  if (done) location.hash = `#/runs/${encodeURIComponent(made)}`;
}

/**
 * The JSON Schema of the inputs that a graph declares, if any.
 * @param {any} graph
 */
export function inputSchema(graph) {
  if (graph.inputs) {
    const inputs = Object.entries(graph.inputs);
    return {
      type: "object",
      properties: Object.fromEntries(
        inputs.map(([name, spec]) => [
          name,
          {
            ...(typeof spec.schema === "object" ? spec.schema : {}),
            ...(spec.description ? { description: spec.description } : {}),
            ...(spec.has_default ? { default: spec.default ?? null } : {}),
          },
        ]),
      ),
      required: inputs.filter(([, spec]) => (spec.required ?? true) && !spec.has_default).map(([name]) => name),
    };
  }
  return graph.input_schema && typeof graph.input_schema === "object" ? graph.input_schema : null;
}
