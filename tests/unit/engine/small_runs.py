"""Three runs of the engine alone, ready to be driven: steps with everything, a cycle, a failure."""

from __future__ import annotations

import json
from collections.abc import Callable

from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import ConditionNode, EndNode, StartNode, ToolNode, Workflow
from tests.unit.engine.driver import Driver, Fault, agent, steps, tool


def triage() -> Driver:
    """Guard, for_each, a tool, a repair, a retry, a skip and outputs."""
    failed: list[str] = []

    def model(unit, call):
        last = unit.agent.messages[-1]
        if unit.node.id == "classify" and not failed:
            failed.append("once")
            raise Fault("transient", "server_error")
        if unit.node.id == "classify":
            return '{"urgency": "low"}' if unit.agent.repairs else '{"urgency": 1}'
        if unit.node.id == "look" and last.role != "tool":
            wanted = ToolCall(id=f"call_{unit.iteration}", name="s__add", arguments='{"k": 1}')
            return Message(role="assistant", tool_calls=(wanted,))
        return json.dumps({"seen": unit.iteration})

    schema = {"type": "object", "properties": {"urgency": {"enum": ["low", "high"]}}, "required": ["urgency"]}
    graph = steps(
        agent(
            "classify", input="${{ inputs.text }}", spec={"output_schema": schema, "tags": {"team": "desk"}}
        ),
        agent(
            "look",
            depends_on=("classify",),
            for_each="${{ inputs.items }}",
            input="${{ item }}",
            max_parallel=2,
        ),
        agent("escalate", depends_on=("classify",), guard='steps.classify.outputs.result.urgency == "high"'),
        agent("last", depends_on=("escalate",)),
        outputs={
            "seen": "${{ steps.look.outputs.result.*.seen }}",
            "escalated": "${{ steps.escalate.status }}",
        },
    )
    return Driver(graph, {"text": "Hello", "items": ["a", "b", "c"]}, tools={"look": [tool()]}, model=model)


def loop() -> Driver:
    """A cycle of token nodes with a failed and repeated call."""
    tries: list[int] = []

    def call(name, parameters):
        tries.append(1)
        return {"x": parameters["x"] + 1}

    graph = Workflow(
        name="loop",
        nodes=(
            StartNode(id="__start", next="step"),
            ToolNode(id="step", index=0, tool="s.add", next="more"),
            ConditionNode(
                id="more", index=1, expression="nodes.step.output.x < 2", on_true="step", on_false="__end"
            ),
            EndNode(id="__end", index=2, drain=True),
        ),
    )
    return Driver(graph, {"x": 0}, tools={"step": [tool()]}, call=call)


def failure() -> Driver:
    """A required step fails, its dependent is skipped, another branch goes on."""

    def model(unit, call):
        if unit.node.id == "bad":
            raise Fault("auth", "authentication_failed")
        return "{}"

    return Driver(steps(agent("bad"), agent("good"), agent("after", depends_on=("bad", "good"))), model=model)


CASES: dict[str, Callable[[], Driver]] = {"triage": triage, "loop": loop, "failure": failure}
