"""`human_in_the_loop`: a person decides, chooses, writes, or fills in a form (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from agentflow.definition.expressions import EvaluationError, Expression, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.human_in_the_loop import HumanNode, option_values
from agentflow.definition.node import NodeBase
from agentflow.definition.pipeline_nodes import PLAN_STEP, stage_of
from agentflow.engine.activation import Activation
from agentflow.engine.approvals import ask_person
from agentflow.engine.decisions import Decisions, scope_fields, step_completed, step_failed, step_fields
from agentflow.engine.handler_results import INPUT_TIMEOUT
from agentflow.engine.ids import derive
from agentflow.engine.kinds.kind import Kind, Prepared
from agentflow.engine.path import NodeState
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression, text_template, value_template
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]

_YES = frozenset({"approve", "approved", "yes", "true"})
_NO = frozenset({"reject", "rejected", "no", "false"})


class _Program(NamedTuple):
    """The compiled fields; None where the node has none."""

    prompt: Template | None
    prefill: Template | None
    decision: Expression | None
    response: Expression | None


class _Answer(NamedTuple):
    """What a person said; `expired` if no one did in time, `withdrawn` if the question was taken back."""

    approved: bool | None = None
    response: Any = None
    by: str | None = None
    at: str | None = None
    expired: bool = False
    withdrawn: str | None = None


class Human(Kind):
    """Asks once, with all that the person is to see; the answer is checked before it is an event."""

    name = "human_in_the_loop"
    takes_answers = True
    shows_more = True
    tells_time = True
    events = frozenset({ev.ApprovalRequested, ev.InputRequested})

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the kind of the review of a plan, or of a step that a person does, if this is one."""
        if not spec.metadata:
            return self
        from agentflow.engine.kinds.stage_review import PLAN_STEP_HUMAN, REVIEW

        if stage_of(spec) is not None:
            return REVIEW
        return PLAN_STEP_HUMAN if PLAN_STEP in spec.metadata else self

    def compile(self, node: Node) -> Any:
        """Return the templates and paths."""
        spec = _spec(node)
        return _Program(
            prompt=None if spec.prompt is None else text_template(spec.prompt),
            prefill=None if spec.form_prefill is msgspec.UNSET else value_template(spec.form_prefill),
            decision=None if spec.decision_path is None else path_expression(spec.decision_path),
            response=None if spec.response_path is None else path_expression(spec.response_path),
        )

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the decision that is there, or all that a person will see."""
        program: _Program = activation.node.program
        spec, scope = _spec(activation.node), state.scope(activation)
        shown: dict[str, Any] = {"input_type": spec.input_type}
        field = "/decision_path"
        try:
            if program.decision is not None:
                shown["decision"] = program.decision.evaluate(scope)
            field = "/response_path"
            if program.response is not None:
                shown["response"] = program.response.evaluate(scope)
            field = "/prompt"
            shown["prompt"] = "" if program.prompt is None else program.prompt.evaluate(scope)
            field = "/form_prefill"
            if spec.input_type == "form" and program.prefill is not None:
                shown["form_data"] = program.prefill.evaluate(scope)
        except EvaluationError as error:
            return expression_error(error, field)
        if spec.options:
            shown["options"] = list(spec.options)
        if spec.form_schema is not None:
            shown["form_schema"] = spec.form_schema
        if spec.assignees:
            shown["assignees"] = list(spec.assignees)
        return Prepared(shown, shown)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether the person is being asked."""
        return activation.status == "waiting"

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once, ask, or go on with the answer."""
        if self.is_idle(activation):
            return []
        answer: _Answer | None = activation.local
        if answer is None:
            decision = activation.input.get("decision")
            if decision is None:
                return _ask(state, activation, now)
            found = _decision_of(activation, decision)
            if isinstance(found, ErrorInfo):
                return step_failed(activation, found, now)
            answer = _Answer(found, activation.input.get("response"), None, iso(now))
        return _end(state, activation, answer, now)

    def answered(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the person said, or that the time is over."""
        if isinstance(data, ev.InputCancelled):
            expired = data.reason == INPUT_TIMEOUT
            activation.local = _Answer(expired=expired, withdrawn=None if expired else data.reason)
        elif isinstance(data, ev.InputReceived):
            activation.local = _Answer(None, data.value, data.by, iso(ts))
        else:
            response = data.response or None
            approved = isinstance(data, ev.ApprovalGranted)
            expired = data.via == "deadline"
            activation.local = _Answer(approved, response, data.by, iso(ts), expired)

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return `human`: the question, what was offered, and what the person changed of it."""
        shown = cast("dict[str, Any]", activation.input or {})
        answer: _Answer | None = activation.local
        offered = shown.get("form_data")
        human = {
            "prompt": shown.get("prompt"),
            "data": offered,
            "options": shown.get("options"),
            "edits": [] if answer is None else _edits(offered, answer.response),
            "by": None if answer is None else answer.by,
        }
        return {"human": human}


def _spec(node: Node) -> HumanNode:
    assert isinstance(node.spec, HumanNode)
    return node.spec


def _ask(state: RunState, activation: Activation, now: int) -> Decisions:
    """Ask the person: an approval, or an input whose answer has a schema."""
    spec = _spec(activation.node)
    if spec.input_type == "approval":
        subject = {key: value for key, value in activation.input.items() if key != "decision"}
        return ask_person(state, activation, subject, spec.timeout, now)
    more: dict[str, Any] = {}
    if spec.timeout is not None:
        more["deadline"] = iso(now + round(spec.timeout * 1e6))
    schema: Any = {"type": "string"}
    if spec.input_type == "choice":
        schema = {"enum": option_values(spec.options)}
    elif spec.input_type == "form":
        schema = spec.form_schema
    asked = ev.InputRequested(
        **scope_fields(activation),
        request_id=derive("req_", now, state.workflow_id, "human", activation.key, activation.attempt),
        request_type=spec.input_type,
        request=activation.input,
        response_schema=schema,
        **more,
    )
    waits = ev.WorkflowStepWaiting(**step_fields(activation), for_="input", ref=asked.request_id, **more)
    return [asked, waits]


def _decision_of(activation: Activation, value: Any) -> bool | ErrorInfo:
    """Return what a value decides: a boolean, or a word for yes or no."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _YES or word in _NO:
        return word in _YES
    message = (
        f"decision_path of {activation.node.id} is neither a boolean nor a word such as approve or reject"
    )
    return ErrorInfo(category="invalid_input", code="invalid_human_decision", message=message)


def _end(state: RunState, activation: Activation, answer: _Answer, now: int) -> Decisions:
    node = activation.node
    if answer.expired:
        if node.targets("on_timeout"):
            return step_completed(state, activation, now, output=None, next_port="on_timeout")
        message = f"{node.id} had no answer in time"
        return step_failed(
            activation, ErrorInfo(category="timeout", code=INPUT_TIMEOUT, message=message), now
        )
    if answer.withdrawn is not None:
        message = f"the question of {node.id} was withdrawn: {answer.withdrawn}"
        return step_failed(
            activation, ErrorInfo(category="policy", code="input_withdrawn", message=message), now
        )
    if answer.approved is None:
        return step_completed(state, activation, now, output=answer.response)
    output = {"approved": answer.approved, "response": answer.response, "by": answer.by, "at": answer.at}
    port = "on_approve" if answer.approved else "on_reject"
    return step_completed(state, activation, now, output=output, next_port=port)


def _edits(offered: Any, response: Any) -> list[dict[str, Any]]:
    """Return what a form's answer changed of what was filled in, key by key."""
    if not isinstance(offered, dict) or not isinstance(response, dict):
        return []
    before, after = cast("dict[str, Any]", offered), cast("dict[str, Any]", response)
    return [
        {"path": key, "before": before.get(key), "after": after.get(key)}
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


KIND = Human()
