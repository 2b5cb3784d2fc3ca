// Compiled by test_generated_clients against the types that openapi-typescript makes: no cast is needed.
import type { components, paths } from "./api";
type Schemas = components["schemas"];
type Body<P extends keyof paths> = paths[P] extends { post: { requestBody: { content: { "application/json": infer B } } } } ? B : never;

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
void [registered, decision, answers, wrong];
