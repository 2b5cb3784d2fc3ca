"""A text goes back to its writer until a person has nothing more to say."""

from __future__ import annotations

import msgspec

from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler


class Draft(msgspec.Struct, frozen=True):
    text: str
    version: int = 1


class Remark(msgspec.Struct, frozen=True):
    """What a person asks for; the draft is given back with it."""

    draft: Draft
    text: str


class Writer(Executor):
    @handler
    async def on_topic(self, topic: str, ctx: WorkflowContext[Draft]) -> None:
        await ctx.send_message(Draft(f"About {topic}."))

    @handler
    async def on_remark(self, remark: Remark, ctx: WorkflowContext[Draft]) -> None:
        draft = remark.draft
        await ctx.send_message(Draft(f"{draft.text} {remark.text}", draft.version + 1))


class Editor(Executor):
    @handler
    async def on_draft(self, draft: Draft, ctx: WorkflowContext) -> None:
        await ctx.request_info(draft, str)

    @response_handler
    async def on_answer(self, draft: Draft, answer: str, ctx: WorkflowContext[Remark, Draft]) -> None:
        if answer:
            await ctx.send_message(Remark(draft, answer))
        else:
            await ctx.yield_output(draft)


workflow = (
    WorkflowBuilder("draft")
    .set_start_executor(Writer("writer"))
    .add_edge("writer", Editor("editor"))
    .add_edge("editor", "writer")
    .build()
)


async def main() -> None:
    result = await workflow.run("owls")
    for remark in ("They hunt at night.", "They hear well.", ""):
        (request,) = result.pending_requests
        result = await workflow.send_responses(result.workflow_id, {request.request_id: remark})
    print(f"draft loop: version {result.output.version}: {result.output.text}")
