"""`agent`: turns of a model and calls of functions, in a context of its own (page 000 §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.expressions import EvaluationError, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentNode
from agentflow.definition.pipeline_nodes import DELEGATE, PLAN_STEP, stage_of
from agentflow.engine.activation import Activation
from agentflow.engine.agents import turns
from agentflow.engine.agents.conversation import response_of
from agentflow.engine.decisions import Decisions
from agentflow.engine.kinds.kind import CALL_EVENTS, Kind, Prepared
from agentflow.engine.messages import Outgoing
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, text_template, value_template
from agentflow.engine.tool_calls import can_start_tools
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.definition.ir import NodeBase
    from agentflow.engine.agents.progress import AgentProgress
    from agentflow.engine.graph import Node

__all__ = ["KIND", "AgentProgram"]


_ELEMENTS = frozenset({"str", "Message", "AgentResponse"})
_TAKES = _ELEMENTS | {"list[Message]", "list[AgentResponse]", "list"}
"""Types of page 002 §11 that an agent in a conversation takes."""


class AgentProgram(NamedTuple):
    """The templates of an agent node; None where it has none."""

    input: Template | None
    tags: Template | None
    context: Template | None
    system_prompt: Template


class Agent(Kind):
    """An agent at work. Its turns are decided in `engine/agents/`."""

    name = "agent"
    takes_slot = True
    events = CALL_EVENTS | {
        ev.AgentInitialized,
        ev.AgentProcessing,
        ev.AgentRetrying,
        ev.AgentCompleted,
        ev.AgentFailed,
        ev.ModelCallStarted,
        ev.ModelCallCompleted,
        ev.ModelCallFailed,
    }
    said: str | None = "last_llm_output"

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the kind of a stage of the request pipeline, or of a step of its plan, if this is one."""
        if not spec.metadata:
            return self
        from agentflow.engine.kinds.stage_agent import PLAN_STEP_AGENT, STAGE_AGENT

        if stage_of(spec) is not None:
            return STAGE_AGENT
        if DELEGATE in spec.metadata:
            from agentflow.engine.kinds.stage_delegate import PLAN_STEP_DELEGATE

            return PLAN_STEP_DELEGATE
        return PLAN_STEP_AGENT if PLAN_STEP in spec.metadata else self

    def compile(self, node: Node) -> Any:
        """Return the templates; the node gets its agent."""
        spec = node.spec
        assert isinstance(spec, AgentNode)
        agent = node.agent = spec.agent
        return AgentProgram(
            input=None if spec.input is msgspec.UNSET else value_template(spec.input),
            tags=text_template(agent.tags) if agent.tags else None,
            context=None if agent.context is None else value_template(agent.context),
            system_prompt=text_template(agent.system_prompt),
        )

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate input, tags and prompt. What a person agreed to is used as it is."""
        program: AgentProgram = activation.node.program
        scope = state.scope(activation)
        snapshot = activation.snapshot
        field = "/agent/input"
        try:
            if snapshot is not None:
                subject = {k: snapshot[k] for k in ("input", "tags", "system_prompt") if k in snapshot}
            else:
                subject: dict[str, Any] = {
                    "input": activation.input if program.input is None else program.input.evaluate(scope)
                }
                field = "/agent/tags"
                if program.tags is not None:
                    subject["tags"] = program.tags.evaluate(scope)
            if program.context is not None:
                field = "/agent/context"
                program.context.evaluate(scope)  # needed at each call of a function, where it must not fail
            if snapshot is None:
                field = "/agent/systemPrompt"
                subject["system_prompt"] = program.system_prompt.evaluate(scope)
        except EvaluationError as error:
            return expression_error(error, field)
        return Prepared(subject["input"], subject)

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return the tags of this piece of work."""
        tags = prepared.subject.get("tags")
        return {"tags": tags} if tags else super().started_fields(state, activation, prepared)

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Open a fresh context."""
        prompt = prepared.subject.get("system_prompt", "")
        return turns.initialize(state, activation, prompt, prepared.input, now)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether its model or all of its functions that there is room for are at work."""
        progress, agent = activation.agent, activation.node.agent
        if progress is None or agent is None:
            return False
        if progress.model_call is not None:
            return True
        return bool(progress.tools) and not can_start_tools(progress, parallel=agent.parallel_tool_calls)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Take the next turn, make the calls of the last one, or end."""
        if activation.agent is None and activation.due_at is None:
            # Only behind a log that was cut inside a batch; evaluating again gives the same.
            prepared = self.prepare(state, activation)
            if isinstance(prepared, ErrorInfo):
                return []
            return self.start(state, activation, Prepared(activation.input, prepared.subject), now)
        return turns.next_turn(state, activation, now)

    def begin_turn(self, state: RunState, activation: Activation, progress: AgentProgress) -> Any:
        """Return `agent.processing`."""
        return turns.begin_turn(activation, progress)

    def answered_with(self, state: RunState, activation: Activation, value: Any, now: int) -> Decisions:
        """Return `agent.completed`."""
        return turns.complete(activation, value, now)

    def context(self, state: RunState, activation: Activation) -> Any:
        """Evaluate the context of the agent's functions."""
        template = activation.node.program.context
        return None if template is None else template.evaluate(state.scope(activation))

    def cache_parts(self, state: RunState, activation: Activation, prepared: Prepared) -> list[Any]:
        """Return the agent, what it starts with, its models and its functions."""
        node, spec = activation.node, activation.node.agent
        assert spec is not None
        agent = msgspec.structs.replace(spec, tags={}, system_prompt="", context=None, model=None)
        binding = state.bindings.of_node(node)
        models = [[ref.name, ref.parameters] for ref in binding.models]
        grant = [[tool.name, tool.schema_hash] for tool in binding.tools.values()]
        prompt = prepared.subject["system_prompt"]
        return [
            msgspec.to_builtins(agent),
            prompt,
            prepared.input,
            self.context(state, activation),
            models,
            grant,
        ]

    def is_typed(self, spec: NodeBase) -> bool:
        """Return True for an agent in a conversation: it sends AgentResponse."""
        return isinstance(spec, AgentNode) and spec.agent.exchanges == "messages"

    def message(self, activation: Activation, output: Any) -> Outgoing:
        """Return an AgentResponse, if the agent takes part in a conversation."""
        spec = activation.node.agent
        if spec is None or spec.exchanges == "values":
            return super().message(activation, output)
        payload = response_of(spec, output, activation.usage)
        return Outgoing(type="AgentResponse", payload=payload)

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether the agent takes messages of these types, or lists of such."""
        spec = node.agent
        if spec is None or spec.exchanges == "values":
            return True
        return not (_ELEMENTS if element else _TAKES).isdisjoint(tags)


KIND = Agent()
