// The plan of a request that waits for its review: what would be done, step by step, and the ways to go on.

import { get, post, request as send, runPath } from "../lib/api.js";
import { button, fill, h, visible } from "../lib/dom.js";
import { jsonField } from "../lib/form.js";
import { ask, commandButton, facts, problemView } from "../lib/parts.js";
import { diffView } from "./call_view.js";
import { stableText } from "../lib/diff.js";

/**
 * @param {any} request
 * @param {{scopes: string[]}} session
 * @param {(act: () => Promise<string>) => Promise<void>} settle carries out a decision, and says why it was refused
 */
export function planReview(request, session, settle) {
  const path = runPath(request.workflow_id);
  const shown = h("div", { class: "plan" }, h("p", { class: "muted" }, "loading…"));
  const reason = h("input", { type: "text", id: `${request.request_id}-reason`, autocomplete: "off" });
  /** @type {any} */
  let view = null;
  /** @type {any} the plan as it was proposed, once it was edited here */
  let before = null;

  async function load() {
    try {
      view = await get(`${path}/plan`);
      draw();
    } catch (error) {
      fill(shown, problemView(error));
    }
  }

  function draw() {
    const { plan, diagnostics } = view;
    fill(
      shown,
      plan.summary ? h("p", null, visible(plan.summary)) : null,
      h(
        "div",
        { class: "table-scroll", tabindex: "0" },
        h(
          "table",
          { class: "data" },
          h("thead", null, h("tr", null, ["Step", "What it does", "By", "After", "With", "Approval"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", null, plan.steps.map((/** @type {any} */ step) =>
            h("tr", null,
              h("th", { scope: "row" }, step.id),
              h("td", null, h("strong", null, visible(step.title)), h("div", { class: "muted" }, visible(step.action))),
              h("td", null, step.owner),
              h("td", null, (step.depends_on ?? []).join(", ") || "–"),
              h("td", null, (step.toolsets ?? []).join(", ") || "–"),
              h("td", null, step.requires_approval ? "✓ asked for" : "–")))),
        ),
      ),
      facts([
        ["Risks", list(plan.risks)],
        ["Artifacts", list(plan.artifacts)],
        ["Blockers", list(plan.blockers)],
      ]),
      diagnostics.length ? h("ul", { class: "diagnostics" }, diagnostics.map((/** @type {any} */ one) => h("li", null, h("code", null, one.code), ` ${one.message}`))) : null,
      before ? h("details", null, h("summary", null, "What you changed"), diffView(stableText(before), stableText(plan))) : null,
      h("p", { class: "muted" }, "Your decision covers exactly this plan, digest ", h("code", null, String(view.plan_digest).replace("sha256:", "").slice(0, 16)), "."),
    );
  }

  async function edit() {
    const field = jsonField(view.plan, { label: "Plan", required: true, description: "Checked before it is stored: nothing is stored of a plan that is not valid." });
    field.element.querySelector("textarea")?.setAttribute("rows", "18");
    await ask({
      title: "Edit the plan",
      content: [field.element],
      action: "Store the plan",
      confirm: async () => {
        const was = before ?? view.plan;
        view = await send("PUT", `${path}/plan`, { body: { plan: field.value(), plan_digest: view.plan_digest } });
        before = was;
        draw();
      },
    });
  }

  void load();
  return h(
    "form",
    { class: "decide", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
    shown,
    h("div", { class: "field" }, h("label", { for: reason.id }, "Reason"), reason),
    h(
      "div",
      { class: "actions" },
      commandButton("Execute", session, SCOPE, () => void settle(async () => {
        await post(`${path}/execute`, { plan_digest: view.plan_digest });
        return "executed";
      }), { class: "button primary" }),
      commandButton("Edit", session, SCOPE, () => void edit()),
      commandButton("Reject", session, SCOPE, () => void settle(async () => {
        await post(`${path}/reject`, reason.value ? { reason: reason.value } : {});
        return "rejected";
      }), { class: "button danger" }),
      button("Load it again", () => void load(), { class: "link" }),
    ),
  );
}

const SCOPE = "run";

/** @param {any[] | undefined} items */
function list(items) {
  return items?.length ? h("ul", { class: "plain" }, items.map((one) => h("li", null, visible(typeof one === "string" ? one : JSON.stringify(one))))) : null;
}
