"""One run of an agent with four functions, killed as soon as an event is durable: `OFFSET STORE`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition import load_value
from agentflow.definition.conversation import ReasoningPart
from agentflow.definition.loader import Definition
from agentflow.models import ModelReply, ModelRequest
from agentflow.testing import ScriptedModel, call

RUN = "wf_killed"


def note(**line: Any) -> None:
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


@function(idempotent=True)
def count(ctx: ToolContext) -> str:
    note(function="count", key=ctx.idempotency_key)
    return "counted"


@function(side_effect="irreversible")
async def pay(ctx: ToolContext) -> str:
    note(function="pay", key=ctx.idempotency_key)
    await asyncio.sleep(0.02)
    return "paid"


@function(idempotent=True)
async def wait(ctx: ToolContext) -> str:
    note(function="wait", key=ctx.idempotency_key)
    await asyncio.sleep(0.05)
    return "waited"


@function(side_effect="none")
def fail(ctx: ToolContext) -> str:
    note(function="fail", key=ctx.idempotency_key)
    raise ValueError("no way")


class Thinking(ScriptedModel):
    """Signs each answer, and notes which signatures each request brings back."""

    def __init__(self) -> None:
        def answer(request: ModelRequest) -> Any:
            answers = sum(m.role == "assistant" for m in request.messages)
            turns: list[Any] = [
                [call("s__count"), call("s__pay"), call("s__wait"), call("s__fail")],
                call("s__count"),
                "done",
            ]
            return turns[answers]

        super().__init__(answer)

    async def complete(self, request: ModelRequest, **more: Any) -> ModelReply:
        back = [m.reasoning_for("scripted", "signed") for m in request.messages if m.role == "assistant"]
        note(model=len(back), reasoning=back)
        reply = await super().complete(request, **more)
        part = ReasoningPart(provider="scripted", format="signed", data={"signature": len(back)})
        return msgspec.structs.replace(
            reply, message=msgspec.structs.replace(reply.message, reasoning=(part,))
        )


def open_runtime(store: str) -> Runtime:
    return Runtime(store, models=[Thinking()], services=[Service.of("s", count, pay, wait, fail)])


def definition() -> Definition:
    tools = [f"s.{name}" for name in ("count", "pay", "wait", "fail")]
    agent = {"name": "a", "system_prompt": "p", "model": "scripted:m", "tools": tools}
    return load_value({"agents": [agent]})


async def main(offset: int, store: str) -> None:
    async with open_runtime(store) as runtime:
        await runtime.submit(definition(), "go", workflow_id=RUN)
        async for event in runtime.events(RUN):
            if event.offset == offset:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
