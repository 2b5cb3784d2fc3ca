"""The fixed graph of the five stages (page 004 §1): the same for every request, but for its settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from agentflow.definition.delegates import DELEGATE_TASK
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    EndNode,
    ErrorRoute,
    FunctionRef,
    HumanNode,
    ModelRef,
    Options,
    StartNode,
    SubgraphNode,
    ToolNode,
    Workflow,
    canonical_json,
    ir_hash,
)
from agentflow.definition.loader import Definition, definition_of
from agentflow.definition.pipeline_nodes import PIPELINE, TOOLS, marks
from agentflow.definition.plan_compiler import parallel_of
from agentflow.definition.stage_schemas import NORMALIZED_REQUEST, PLAN
from agentflow.definition.toolsets import Toolsets
from agentflow.engine.kinds.stage_review import REVIEW_SCHEMA
from agentflow.pipeline.prompts import VERSIONS, prompt

__all__ = ["FORMAT", "pipeline_definition", "pipeline_graph"]

FORMAT = "pipeline"
_WRITE = ErrorRoute(next="write")


def pipeline_graph(
    settings: Mapping[str, Any],
    *,
    given: Collection[str] = (),
    model: ModelRef | str | None = None,
    name: str = "request",
) -> Workflow:
    """Return the graph of the stages. `given`: stages whose results the request brings. Stage 3 is
    bound to no model if a foreign delegate does the work."""
    toolsets = Toolsets.of_value(settings.get("toolsets") or [])
    tools = sorted({tool.name for toolset in toolsets if toolset.enabled for tool in toolset.tools})
    functions = tuple(FunctionRef(*_parts(tool)) for tool in tools)
    foreign = settings.get("delegate") or "built-in"
    is_foreign = foreign not in ("built-in", "none")
    called = [*tools, f"{foreign}.{DELEGATE_TASK}"] if is_foreign else tools
    delegate = AgentSpec(name="delegate", system_prompt=prompt("delegate"), model=model, functions=functions)
    kept = {
        **settings,
        "toolsets": toolsets.to_value(),
        "prompts": dict(VERSIONS),
        "delegate_prompt": prompt("delegate"),
    }
    nodes = (
        StartNode(id="__start", next="normalize"),
        AgentNode(
            id="normalize",
            index=0,
            agent=_agent("normalizer", prompt("normalize"), NORMALIZED_REQUEST, model),
            next="plan",
            on_error=_WRITE,
            metadata=marks("normalize", given="normalize" in given),
        ),
        AgentNode(
            id="plan",
            index=1,
            agent=_agent("planner", prompt("plan"), PLAN, model),
            next="review",
            on_error=_WRITE,
            metadata=marks("plan", given="plan" in given),
        ),
        HumanNode(
            id="review",
            index=2,
            input_type="form",
            form_schema=REVIEW_SCHEMA,
            next="execute",
            on_error=_WRITE,
            metadata=marks("review"),
        ),
        SubgraphNode(
            id="execute",
            index=3,
            graph_path="nodes.review.output.graph",
            isolation="inline",
            grants=None if is_foreign else delegate,
            next="verify",
            on_error=_WRITE,
            metadata={**marks("execute"), TOOLS: called},
        ),
        ToolNode(
            id="verify",
            index=4,
            tool="pipeline.verify",
            next="write",
            on_error=_WRITE,
            metadata=marks("verify"),
        ),
        ToolNode(id="write", index=5, tool="pipeline.write", next="__end", metadata=marks("write")),
        EndNode(id="__end"),
    )
    options = Options(max_parallel=parallel_of(settings))
    return Workflow(name=name, nodes=nodes, options=options, metadata={PIPELINE: kept})


def pipeline_definition(workflow: Workflow) -> Definition:
    """Return the definition of the fixed graph; its format is `pipeline`."""
    checked = definition_of(workflow, is_own=True)
    return msgspec.structs.replace(
        checked,
        format=FORMAT,
        source=canonical_json(workflow).decode(),
        hash=ir_hash(workflow),
    )


def _agent(name: str, text: str, schema: dict[str, Any], model: ModelRef | str | None) -> AgentSpec:
    return AgentSpec(name=name, system_prompt=text, model=model, output_schema=schema, max_turns=8)


def _parts(tool: str) -> tuple[str, str]:
    service, _, function = tool.rpartition(".")
    return service, function
