"""A run in a process of its own that may be killed while its second step is at work.

`python -m tests.integration.support.traced STORE RUN run|resume`: the tool of that step says `working` and
then waits until its standard input gives a line or ends. Telemetry is what the environment says.
"""

from __future__ import annotations

import asyncio
import sys

from agentflow import Runtime, Service, function
from agentflow.definition.ir import AgentNode, AgentSpec, EndNode, FunctionRef, ModelRef, StartNode, Workflow
from agentflow.events.tracing import outgoing_headers
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@function(idempotent=True)
async def work(n: int) -> int:
    print("working", outgoing_headers().get("traceparent"), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return n


def answer(request: ModelRequest):
    if request.tools and request.messages[-1].role != "tool":
        return call(request.tools[0].name, n=1)
    return {"n": 1}


def node(index: int, following: str) -> AgentNode:
    spec = AgentSpec(
        name=f"agent{index}",
        system_prompt="Count.",
        model=ModelRef(provider="scripted", model="m"),
        functions=(FunctionRef("shop", "work"),) if index == 1 else (),
        plain_result="object",
    )
    return AgentNode(id=f"n{index}", index=index, agent=spec, next=following)


FLOW = Workflow(
    name="traced",
    nodes=(
        StartNode(id="start", next="n0"),
        node(0, "n1"),
        node(1, "n2"),
        node(2, "end"),
        EndNode(id="end", index=3),
    ),
)


async def main(store: str, run_id: str, mode: str) -> None:
    services = [Service.of("shop", work)]
    async with Runtime(f"sqlite:{store}", models=[ScriptedModel(answer)], services=services) as runtime:
        if mode == "run":
            handle = await runtime.submit(
                FLOW, {"n": 0}, workflow_id=run_id, options={"traceparent": TRACEPARENT}
            )
        else:
            handle = await runtime.resume(run_id)
        print("result", (await handle.result()).state, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
