// A question to a person: what exactly is asked, and the ways to answer.

import { get, post, Problem, runPath } from "../lib/api.js";
import { announce, button, fill, h, visible } from "../lib/dom.js";
import { moment, when } from "../lib/format.js";
import { formOf, requiredFirst } from "../lib/form.js";
import { jsonView } from "../lib/json.js";
import { commandButton, commandForm, problemView } from "../lib/parts.js";
import { planReview } from "./plan_card.js";

/**
 * @param {any} request as the inbox gives it
 * @param {{actor: string, scopes: string[]}} session
 * @param {() => void | Promise<void>} onDecided
 */
export function requestCard(request, session, onDecided) {
  const id = request.workflow_id;
  const problem = h("div", { "aria-live": "assertive" });
  const isPlan = request.request_type === "review" && typeof request.subject?.plan_digest === "string";
  const title = isPlan ? "Review a plan" : (TITLES[request.kind] ?? request.kind);
  const name = `${request.request_id}-title`;
  return h(
    "article",
    { class: "card request", "aria-labelledby": name, "data-request": request.request_id },
    h(
      "header",
      null,
      h("h2", { id: name }, title, request.step_id ? [": ", request.step_id] : null, request.iteration !== null && request.iteration !== undefined ? ` [${request.iteration}]` : null),
      request.side_effect ? h("span", { class: `tag effect-${request.side_effect}` }, request.side_effect) : null,
      h("span", { class: "grow" }),
      h("a", { href: `#/runs/${encodeURIComponent(id)}` }, h("code", null, id)),
      h("span", { class: "muted", title: moment(request.asked_at) }, when(request.asked_at)),
      request.deadline ? h("span", { class: "tag" }, `until ${when(request.deadline)}`) : null,
    ),
    isPlan ? null : subject(request),
    request.digest ? h("p", { class: "muted" }, "Your decision covers exactly this, digest ", h("code", null, String(request.digest).replace("sha256:", "").slice(0, 16)), ".") : null,
    isPlan ? planReview(request, session, settle) : request.kind === "input" ? answerForm() : decisionForm(),
    problem,
  );

  function decisionForm() {
    const reason = h("input", { type: "text", id: `${request.request_id}-reason`, autocomplete: "off" });
    return h(
      "form",
      { class: "decide", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
      h("div", { class: "field" }, h("label", { for: reason.id }, "Reason"), reason),
      h(
        "div",
        { class: "actions" },
        commandButton("Approve", session, "approve", () => void decide("grant", reason.value), { class: "button primary" }),
        commandButton("Deny", session, "approve", () => void decide("deny", reason.value), { class: "button danger" }),
      ),
    );
  }

  function answerForm() {
    const schema = request.response_schema && typeof request.response_schema === "object" ? request.response_schema : {};
    const field = formOf(requiredFirst(schema), undefined, { label: "Answer" });
    const answer = async () => {
      await post(`${runPath(id)}/inputs`, { responses: { [request.request_id]: field.value() } });
      return "answered";
    };
    return commandForm("Answer", session, "approve", () => void settle(answer), { class: "decide" }, field.element);
  }

  /** @param {"grant" | "deny"} decision @param {string} reason */
  function decide(decision, reason) {
    return settle(async () => {
      await post(`${runPath(id)}/approvals`, {
        request_id: request.request_id,
        decision,
        ...(request.digest ? { digest: request.digest } : {}),
        ...(reason ? { reason } : {}),
      });
      return decision === "grant" ? "approved" : "denied";
    });
  }

  /** @param {() => Promise<string>} act */
  async function settle(act) {
    try {
      announce(`${title} ${await act()}`);
      await onDecided();
    } catch (error) {
      // Two people at once: the second sees who decided.
      const lost = error instanceof Problem && error.status === 409;
      fill(problem, problemView(error), lost ? await decidedBy() : null, lost ? button("Take it off the list", () => void onDecided()) : null);
    }
  }

  async function decidedBy() {
    try {
      const { items } = await get(`${runPath(id)}/requests`, { query: { open: false } });
      const found = items.find((/** @type {any} */ one) => one.request.request_id === request.request_id);
      return found ? h("p", null, `It was ${found.outcome}${found.by ? ` by ${found.by}` : ""}, ${when(found.closed_at)}${found.reason ? `: ${found.reason}` : ""}.`) : null;
    } catch {
      return null;
    }
  }
}

/**
 * What is asked, whole: a decision covers it. Of a question the text stands first, and its form is below.
 * @param {any} request
 */
function subject(request) {
  const asked = request.subject;
  const whole = jsonView(asked, { open: 3, label: "what is asked" });
  if (request.digest || typeof asked?.prompt !== "string") return h("div", { class: "subject" }, whole);
  const { prompt, form_schema: _, input_type: __, ...more } = asked;
  const said = h("p", { class: "prompt" }, visible(prompt));
  return h("div", { class: "subject" }, said, Object.keys(more).length ? h("details", null, h("summary", null, "More about the question"), whole) : null);
}

const TITLES = /** @type {Record<string, string>} */ ({
  step: "Approve a step",
  tool: "Approve a call",
  human: "Decide",
  input: "Answer a question",
});
