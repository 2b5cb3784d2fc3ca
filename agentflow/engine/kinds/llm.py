"""`llm`: one question to a model, with calls of functions and a checked answer (page 003 §4).

It has the turns of an agent (`engine/agents/`) and none of its events: `node.llm_input_resolved` begins each
turn, and its retries and its end are those of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from agentflow.definition.conversation import Message
from agentflow.definition.expressions import EvaluationError, Expression, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.llm import LlmNode
from agentflow.definition.policy import RetryPolicy
from agentflow.engine.activation import Activation
from agentflow.engine.agents import conversation, healing, turns
from agentflow.engine.agents.conversation import BadAnswer, check_answer, read_answer
from agentflow.engine.agents.failure import agent_failed
from agentflow.engine.agents.progress import AgentProgress, ToolRecord
from agentflow.engine.decisions import Decisions, scope_fields, step_completed
from agentflow.engine.kinds.agent import Agent
from agentflow.engine.kinds.kind import CALL_EVENTS, Kind, Prepared
from agentflow.engine.path import NodeState
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression, text_template
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]

_OWN_CODES = frozenset(
    {
        "budget_exceeded",
        "cancelled",
        "outcome_unknown",
        "tool_roundtrips_exceeded",
        "max_tool_calls_exceeded",
        "run_deadline",
    }
)
"""Codes that say by themselves why the node failed."""


class _Program(NamedTuple):
    """The compiled fields; None where the node has none."""

    prompt: Template
    system: Template | None
    messages: Expression | None


class Llm(Agent):
    """A model call with its repairs, retries and calls of functions."""

    name = "llm"
    events = CALL_EVENTS | {
        ev.NodeLlmInputResolved,
        ev.NodeHealed,
        ev.NodeStreamDisabled,
        ev.ModelCallStarted,
        ev.ModelCallCompleted,
        ev.ModelCallFailed,
    }
    retry = RetryPolicy()
    has_agent_events = False
    shows_more = True

    def compile(self, node: Node) -> Any:
        """Return the templates and the path; the node gets an agent without a name."""
        spec = _spec(node)
        node.agent = spec.agent
        return _Program(
            prompt=text_template(spec.prompt),
            system=None if spec.system is None else text_template(spec.system),
            messages=None if spec.messages_path is None else path_expression(spec.messages_path),
        )

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate prompt and system to text, and read the history."""
        if activation.snapshot is not None:
            value = {k: activation.snapshot[k] for k in _PARTS if k in activation.snapshot}
            return Prepared(value, value)
        program: _Program = activation.node.program
        scope = state.scope(activation)
        field = "/prompt"
        try:
            value: dict[str, Any] = {"prompt": _text(program.prompt.evaluate(scope))}
            field = "/system"
            if program.system is not None:
                value["system"] = _text(program.system.evaluate(scope))
            field = "/messages_path"
            if program.messages is not None:
                value["messages"] = program.messages.evaluate(scope)
        except EvaluationError as error:
            return expression_error(error, field)
        problem = None if program.messages is None else _message_problem(value["messages"])
        if problem is not None:
            message = f"messages_path of {activation.node.id} {problem}"
            return ErrorInfo(category="invalid_input", code="invalid_messages", message=message)
        return Prepared(value, value)

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return nothing: it has no tags."""
        return Kind.started_fields(self, state, activation, prepared)

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Say what the model will be asked."""
        spec = _spec(activation.node)
        moves: Decisions = []
        if spec.stream and spec.heal:
            message = "an answer that is healed is shown when it is whole"
            moves.append(ev.NodeStreamDisabled(**scope_fields(activation), reason="heal", message=message))
        count = len(opening_of(prepared.input, prompted=spec.append_prompt_as_user))
        return [*moves, _resolved(state, activation, prepared.input, count)]

    def begin_turn(self, state: RunState, activation: Activation, progress: AgentProgress) -> Any:
        """Return the event that begins the next turn."""
        count = len(progress.messages) + len(progress.pending)
        return _resolved(state, activation, activation.input, count)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Take the next turn, make the calls of the last one, or end."""
        if activation.agent is None:  # only behind a log that was cut inside a batch
            return self.start(state, activation, Prepared(activation.input, {}), now)
        error = _failed_call(activation, activation.agent)
        if error is not None:
            return agent_failed(activation, error, now)
        return turns.next_turn(state, activation, now)

    def shown_as(self, activation: Activation) -> Literal["text", "lines", "nothing"]:
        """Return how deltas show the answer: only `stream` does, and not an answer that is healed."""
        spec = _spec(activation.node)
        if not spec.stream or spec.heal:
            return "nothing"
        return "lines" if spec.stream_json_as_text else "text"

    def calls_settled(self, progress: AgentProgress) -> None:
        """Keep the calls of a turn for `nodes.ID.tool_calls`."""
        records = progress.tools.values()
        progress.calls += [_call_view(record) for record in records]
        progress.call_error = next((r.error for r in records if r.state == "failed"), None)

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return the calls of its last attempt; nothing without functions."""
        if not _spec(activation.node).tools:
            return {}
        return {"tool_calls": [] if activation.agent is None else list(activation.agent.calls)}

    def open_conversation(self, state: RunState, activation: Activation) -> AgentProgress:
        """Return the conversation with which its first turn begins."""
        value = activation.input
        progress = AgentProgress(f"{state.workflow_id}{activation.key}", value.get("system", ""), None)
        binding = state.bindings.of_node(activation.node)
        progress.models = binding.models
        progress.offered = frozenset((tool.name, tool.schema_hash) for tool in binding.offered())
        progress.pending = opening_of(value, prompted=_spec(activation.node).append_prompt_as_user)
        return progress

    def retried(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold a repeated model call, or a turn in which the model repairs its answer."""
        progress, due = activation.agent, activation.due_at
        assert progress is not None
        activation.due_at = None
        if data.kind == "repair":
            progress.repairs += 1
            progress.has_answer = False
            progress.pending = [conversation.repair(data.error)]
            state.timers.disarm(f"retry {activation.key}")
        else:
            progress.due_at = progress.asked_at = due

    def answered_with(self, state: RunState, activation: Activation, value: Any, now: int) -> Decisions:
        """Return the end of the step: there is no event of an agent before it."""
        return step_completed(state, activation, now, output=value)

    def read_answer(self, activation: Activation, progress: AgentProgress) -> tuple[Any, Decisions]:
        """Return the value of the answer, its last fenced block if it has any. With `heal` one that is nearly
        JSON is read too, with the event that says what was changed. Raises BadAnswer."""
        node, spec = _spec(activation.node), activation.node.agent
        assert spec is not None
        try:
            return read_answer(spec, progress.answer, last_block=True), []
        except BadAnswer:
            if not node.heal or node.output_schema is None or progress.finish_reason == "length":
                raise
            found = healing.heal(progress.answer)
            if found is None:
                raise
        value, coerced = healing.coerce(found[0], node.output_schema)
        check_answer(node.output_schema, value)
        return value, [ev.NodeHealed(**scope_fields(activation), changes=[*found[1], *coerced])]

    def failure(self, activation: Activation, error: ErrorInfo) -> ErrorInfo:
        """Return the failure of the node; its cause is that of the last attempt."""
        if activation.agent is not None and error is _failed_call(activation, activation.agent):
            return error
        if error.code in _OWN_CODES or error.category in ("cancelled", "policy"):
            return error
        spec, attempts = _spec(activation.node), activation.attempt
        code, details = "llm_retry_exhausted", dict[str, Any]()
        if error.code == "max_turns_exceeded":
            code, details = "tool_roundtrips_exceeded", {"limit": spec.max_tool_roundtrips}
        elif error.category == "invalid_output":
            code, details = "invalid_output", error.details or {}
        elif error.category == "timeout":
            policy = activation.node.retry
            limit = activation.node.timeout if error.code == "step_deadline" else policy.timeout
            code = "llm_timeout"
            details = {"timeout_ms": None if limit is None else round(limit * 1000), "attempts": attempts}
        else:
            details = {"attempts": attempts, "last_error": msgspec.to_builtins(error)}
        message = f"{activation.node.id}: {error.message}"
        return ErrorInfo(category=error.category, code=code, message=message, details=details, cause=error)

    def cache_parts(self, state: RunState, activation: Activation, prepared: Prepared) -> list[Any]:
        """Return what it starts with."""
        return Kind.cache_parts(self, state, activation, prepared)

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return nothing: its functions get their arguments alone."""
        return None


_PARTS = ("prompt", "system", "messages")


def _spec(node: Node) -> LlmNode:
    assert isinstance(node.spec, LlmNode)
    return node.spec


def _text(value: Any) -> str:
    """Return a prompt as text: null is the empty one, other values are their JSON."""
    return "" if value is None else conversation.compact(value)


def _failed_call(activation: Activation, progress: AgentProgress) -> ErrorInfo | None:
    """Return the error of the first call that failed, if the node must fail by it."""
    if _spec(activation.node).tool_errors != "fail" or progress.tools:
        return None
    return progress.call_error


def _call_view(record: ToolRecord) -> dict[str, Any]:
    """Return what expressions see of a call."""
    return {
        "id": record.call.id,
        "name": record.name,
        "arguments": record.parameters,
        "output": record.output,
        "error": None if record.error is None else msgspec.to_builtins(record.error),
    }


def opening_of(value: dict[str, Any], *, prompted: bool = True) -> list[Message]:
    """Return the first messages: system, history, and the prompt as the user's if it is sent."""
    messages = [Message(role="system", content=value["system"])] if value.get("system") else []
    messages += [msgspec.convert(one, Message) for one in value.get("messages", ())]
    return [*messages, Message(role="user", content=value["prompt"])] if prompted else messages


def _message_problem(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "gave no list of messages, or an empty one"
    for index, one in enumerate(cast("list[Any]", value)):
        try:
            msgspec.convert(one, _Given)
        except msgspec.ValidationError as error:
            return f"gave a message {index} that is none: {error}"
    return None


class _Given(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a history, as a value of the run holds it."""


def _resolved(
    state: RunState, activation: Activation, value: dict[str, Any], count: int
) -> ev.NodeLlmInputResolved:
    spec, program = _spec(activation.node), cast("_Program", activation.node.program)
    models = state.bindings.of_node(activation.node).models
    return ev.NodeLlmInputResolved(
        **scope_fields(activation),
        prompt=value["prompt"],
        template=spec.prompt,
        system=value.get("system"),
        messages_count=count,
        model=models[0].name if models else spec.model,
        schema_=spec.output_schema,
        stream=spec.stream and not spec.heal,
        heal=spec.heal,
        bindings=_bindings(state, activation, program.prompt),
    )


def _bindings(state: RunState, activation: Activation, template: Template) -> tuple[ev.Binding, ...]:
    scope = state.scope(activation)
    found: list[ev.Binding] = []
    for index, (_, _, expression) in enumerate(template.expressions):
        try:
            value = expression.evaluate(scope)
        except EvaluationError:
            value = None  # evaluated once already: only what was changed since can fail
        found.append(
            ev.Binding(
                index=index,
                expression=expression.source,
                source_path=next((_dotted(r.path) for r in expression.references), None),
                resolved=value,
                resolved_type=_type_of(value),
                missing=value is None and not all(_is_there(scope, r.path) for r in expression.references),
            )
        )
    return tuple(found)


def _is_there(value: Any, path: tuple[str | int | None, ...]) -> bool:
    """Return whether a value has the member of a path, null or not, as far as its names are known."""
    for part in path:
        if isinstance(value, dict):
            if part is not None and str(part) not in value:
                return False
            value = cast("dict[str, Any]", value).get(str(part))
        elif isinstance(value, list) and isinstance(part, int):
            items = cast("list[Any]", value)
            if not 0 <= part < len(items):
                return False
            value = items[part]
        elif part is not None:
            return False
        if part is None:
            return True
    return True


def _dotted(path: tuple[str | int | None, ...]) -> str:
    return ".".join("*" if part is None else str(part) for part in path)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(name for kind, name in _TYPES if isinstance(value, kind))


_TYPES = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"), (object, "object"))

KIND = Llm()
