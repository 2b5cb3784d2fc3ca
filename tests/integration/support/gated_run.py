"""A run with one gate or cache in a process of its own, which prints what its log gets.

`python -m tests.integration.support.gated_run STORE NAME`: submits the graph NAME, or goes on with it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agentflow import Runtime
from agentflow.definition.ir import (
    CacheReadNode,
    CacheWriteNode,
    ConditionNode,
    DebounceNode,
    EndNode,
    EventTriggerNode,
    HumanNode,
    StartNode,
    ThrottleNode,
    WaitNode,
    Workflow,
)
from agentflow.errors import AgentflowError

RUN = "wf_gated"
WINDOW_S = 0.6


def graph(*nodes: Any) -> Workflow:
    """Return a chain of nodes."""
    end = EndNode(id="__end", drain=True)
    return Workflow(name="gated", nodes=(StartNode(id="__start", next=nodes[0].id), *nodes, end))


def _throttled(scope: Any) -> Workflow:
    gate = ThrottleNode(
        id="gate", key_path="input.k", window=WINDOW_S, mode="delay", scope=scope, next="twice"
    )
    again = ConditionNode(id="twice", expression="nodes.gate.visits < 2", on_true="gate", on_false="__end")
    return graph(gate, again)


def _debounced(scope: Any) -> Workflow:
    gate = DebounceNode(
        id="gate", key_path="input.k", window=WINDOW_S, mode="trailing", scope=scope, next="__end"
    )
    return graph(gate)


GRAPHS = {
    "debounce": _debounced("run"),
    "debounce_definition": _debounced("definition"),
    "throttle": _throttled("run"),
    "throttle_definition": _throttled("definition"),
    "cache": graph(
        CacheWriteNode(id="write", key_path="input.k", value_path="input.v", scope="global", next="gate"),
        WaitNode(id="gate", duration=WINDOW_S, next="read"),
        CacheReadNode(id="read", key_path="input.k", scope="global", next="__end"),
    ),
    "wait": graph(WaitNode(id="gate", duration=WINDOW_S, next="__end")),
    "event_timeout": graph(
        EventTriggerNode(id="gate", event="go", timeout=WINDOW_S, next="__end", on_timeout="__end")
    ),
}
"""Graphs whose node `gate` waits for a timer."""

ASKING = {
    "human": graph(HumanNode(id="gate", on_approve="__end", on_reject="__end")),
    "input": graph(HumanNode(id="gate", input_type="text", next="__end")),
    "event": graph(EventTriggerNode(id="gate", event="go", next="__end")),
}
"""Graphs whose node `gate` waits for an answer, which the second process gives twice."""


async def answer(runtime: Runtime, name: str) -> None:
    """Give the answer that a run waits for, and once more; what the second one says is printed."""
    handle = await runtime.attach(RUN)
    asked = (await handle.result()).pending_requests
    request = asked[0].request_id if asked else ""
    for data in (1, 2):
        try:
            if name == "event":
                await runtime.signal(RUN, "go", data, signal_id="sig_1")
            elif name == "human":
                await runtime.decide(RUN, granted=True, step_id="gate")
            else:
                await runtime.answer(RUN, request, f"text {data}")
        except AgentflowError as error:
            print("refused", error.code, flush=True)


async def main(store: str, name: str) -> None:
    async with Runtime(store) as runtime:
        if await runtime.rows():
            await runtime.recover()
            handle = await runtime.attach(RUN)
            if name in ASKING:
                await answer(runtime, name)
        else:
            handle = await runtime.submit((GRAPHS | ASKING)[name], {"k": "a", "v": {"n": 1}}, workflow_id=RUN)
        async for event in runtime.events(RUN):
            print(event.type, getattr(event.data, "step_id", ""), flush=True)
        result = await handle.result()
        print("result", result.state, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
