// Compiled by test_generated_clients against the types that openapi-typescript makes: no cast is needed.
import type { components, paths } from "./api";
type Schemas = components["schemas"];
type Body<P extends keyof paths> = paths[P] extends { post: { requestBody?: { content: { "application/json": infer B } } } } ? B : never;

const submit: Body<"/workflows"> = { definition: { agents: [{ name: "a", system_prompt: "b" }] }, input: "x", labels: { team: "a" } };
const registered: Body<"/workflows"> = { definition_ref: "triage" };
const decision: Body<"/workflows/{id}/approvals"> = { step_id: "send", decision: "grant" };
const answers: Body<"/workflows/{id}/inputs"> = { responses: { req_1: { size: "XL" } } };
// @ts-expect-error there is no such decision
const wrong: Body<"/workflows/{id}/approvals"> = { step_id: "send", decision: "maybe" };

export async function run(base: string): Promise<string> {
  const made = await fetch(`${base}/workflows`, { method: "POST", body: JSON.stringify(submit) });
  const record: Schemas["RunRecord"] = await made.json();
  const done: "completed" | "failed" | "cancelled" | "pending" | "running" | "waiting" | "paused" = record.state;
  return `${done} ${record.usage.model_calls} ${record.steps["a"]?.attempt} ${record.workflow_id}`;
}

export function told(item: Schemas["RunEvent"]): string {
  switch (item.type) {
    case "workflow.started":
      return item.data.by;
    case "model.call_completed":
      return `${item.data.message.content} ${item.data.usage.input_tokens + item.offset}`;
    case "workflow.step_failed":
      return item.data.error.code;
    case "approval.requested":
      return item.data.digest;
    default:
      return item.type;
  }
}
const fork: Body<"/workflows/{id}/fork"> = { from_step: "draft", edits: { outputs: { fetch: [1] } } };
const anew: Body<"/workflows/{id}/fork"> = { offset: 0, edits: { input: { text: "x" } }, definition_ref: { name: "triage", version: "2" } };
// @ts-expect-error there is nothing of this name to edit
const noEdit: Body<"/workflows/{id}/fork"> = { offset: 0, edits: { prompts: {} } };
const larger: Body<"/workflows/{id}/resume"> = { budget: { max_cost_usd: 0.5, on_exceeded: "ask" } };
// @ts-expect-error a limit is a number
const noLimit: Body<"/workflows/{id}/resume"> = { budget: { max_tokens: "many" } };
const bulk: Body<"/workflows/bulk"> = { command: "cancel", workflow_ids: ["wf_1"], reason: "not needed" };
// @ts-expect-error runs are not restarted in bulk
const noBulk: Body<"/workflows/bulk"> = { command: "restart", workflow_ids: [] };

type Answer<P extends keyof paths, M extends "get" | "post", S extends number> = paths[P] extends { [K in M]: { responses: { [T in S]: { content: { "application/json": infer B } } } } } ? B : never;

export async function look(base: string): Promise<string[]> {
  const compared: Answer<"/workflows/{id}/compare", "get", 200> = await (await fetch(`${base}/workflows/a/compare?with=b`)).json();
  const open: Answer<"/inbox", "get", 200> = await (await fetch(`${base}/inbox`)).json();
  const done: Answer<"/workflows/bulk", "post", 200> = await (await fetch(`${base}/workflows/bulk`, { method: "POST", body: JSON.stringify(bulk) })).json();
  const totals: Answer<"/totals", "get", 200> = await (await fetch(`${base}/totals`)).json();
  const asked = open.items.map((one) => ("outcome" in one ? `${one.outcome} by ${one.by ?? "?"}` : `${one.kind} ${one.request_id}`));
  return [String(compared.equal), compared.activation?.step_id ?? "", ...asked, ...done.items.map((one) => one.state ?? one.code ?? ""), String(totals.requests)];
}
void [fork, anew, noEdit, larger, noLimit, noBulk];
void [registered, decision, answers, wrong];
