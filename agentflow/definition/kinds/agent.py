"""`agent`: turns of a model and calls of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.node import AgentSpec, Binds, NodeBase, next_port
from agentflow.definition.pipeline_nodes import is_given
from agentflow.definition.policy import RetryPolicy

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "rounded"
TAKES = frozenset({"approval", "budget", "cache", "calls", "dependency", "policy"})
RETRY = RetryPolicy()
POLICY_OPTION = "llm_node_policy"


class AgentNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="agent"):
    """An agent at work. `input` is a template; unset, the input is the payload of the token."""

    agent: AgentSpec
    input: Any = msgspec.UNSET
    next: str | None = None


Spec = AgentNode
ports = next_port


def binds(spec: AgentNode) -> Binds:
    """Return the agent; nothing for a stage whose result the request holds already."""
    return Binds() if is_given(spec) else Binds(agent=spec.agent)


def adapted(spec: AgentNode, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent with the model of the run."""
    model = options.get("model")
    return {} if model is None else {"agent": msgspec.structs.replace(spec.agent, model=model, fallback=())}


def check(spec: AgentNode, at: NodeReport) -> None:
    """Check the templates, limits and result schema of the agent."""
    agent = spec.agent
    at.not_blank("agent/name", agent.name)
    if not agent.registered:
        at.not_blank("agent/system_prompt", agent.system_prompt)
    at.at_least_one(agent, "agent/", "max_turns", "max_tool_calls")
    at.template("agent/system_prompt", agent.system_prompt)
    at.template("input", spec.input)
    at.template("agent/context", agent.context)
    at.template("agent/tags", agent.tags)
    if agent.output_schema is not None:
        at.schema("agent/output_schema", agent.output_schema)
