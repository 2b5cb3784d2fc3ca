"""How a run ends: its output and its one terminal event (page 001 §5.9, page 000 §2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions, elapsed_ms, size_of
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["failure_of", "leftovers", "output_of", "outputs_of", "run_ended", "run_failed"]


def run_ended(state: RunState, now: int) -> Decisions:
    """Nothing is left to do: completed, or failed when a required step failed."""
    if state.has_failed:
        return run_failed(state, failure_of(state), now)
    try:
        output = output_of(state)
    except EvaluationError as error:
        details = {"expression": error.expression, "offset": error.offset, "reason": error.reason}
        info = ErrorInfo(
            category="expression", code="expression_error", message=f"outputs: {error}", details=details
        )
        return run_failed(state, info, now)
    not_run = tuple(i for i in state.graph.step_ids if state.nodes[i].status == "pending")
    return [
        ev.WorkflowCompleted(
            output=output,
            output_size=size_of(output),
            duration_ms=elapsed_ms(state.started_at, now),
            steps=ev.StepCounts(**state.steps_done),
            skipped=tuple(state.skipped),
            **({"not_run": not_run} if not_run else {}),
            usage=state.usage,
        )
    ]


def failure_of(state: RunState) -> ErrorInfo:
    """Return why a run with failed steps fails: the first of them."""
    first = state.nodes[state.failed_steps[0]]
    view: dict[str, Any] = state.nodes_view[first.node.id]["error"] or {}
    return ErrorInfo(
        category=view.get("category", "agent"),
        code=view.get("code", "step_failed"),
        message=f"step {first.node.id} failed: {view.get('message', '')}",
        details={"step_id": first.node.id},
    )


def leftovers(state: RunState) -> Decisions:
    """Return what stays in the buffers of joins whose rounds did not close (page 002 §5)."""
    return [
        ev.MessageUndelivered(
            step_id=message.edge.source.id if message.edge.source else "",
            activation=activation,
            index=message.number,
            type=message.type,
            reason="join_incomplete",
        )
        for path in state.paths.values()
        for held in path.rounds.values()
        for activation, message in held.left()
        if (activation, message.number) not in state.mail.told
    ]


def outputs_of(state: RunState) -> list[ev.Output]:
    """Return what the latest attempts of all activations gave out, in the order of page 002 §16."""
    return [output for _, output in sorted(_ordered(state), key=lambda found: found[0])]


def _ordered(state: RunState) -> Iterator[tuple[tuple[Any, ...], ev.Output]]:
    keeps = state.graph.policy.keeps_messages
    for outputs in state.mail.outputs.values():
        for offset, superstep, visit, data in outputs:
            yield (superstep, data.step_id, visit, data.index) if keeps else (offset,), data


def run_failed(state: RunState, error: ErrorInfo, now: int) -> Decisions:
    """`workflow.failed`, with what the leaves had reached."""
    partial = _leaves(state) if state.graph.dependency_nodes else None
    return [
        ev.WorkflowFailed(
            error=error,
            failed_steps=tuple(state.failed_steps),
            duration_ms=elapsed_ms(state.started_at, now),
            steps=ev.StepCounts(**state.steps_done),
            **({} if partial is None else {"partial_output": partial}),
            usage=state.usage,
        )
    ]


def output_of(state: RunState) -> Any:
    """`outputs` when declared; else what reached the end; else the result of every leaf step."""
    graph = state.graph
    if graph.outputs is not None:
        scope = state.scope()
        return {name: template.evaluate(scope) for name, template in graph.outputs.items()}
    for end in graph.ends:
        if end.is_silent and end.program is not None:
            return end.program.evaluate(state.scope())
    if graph.yields:
        given = [output.value for output in outputs_of(state) if output.kind == "output"]
        return given[-1] if given else None
    if graph.dependency_nodes:
        return _leaves(state)
    return state.root.output


def _leaves(state: RunState) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for step_id in state.graph.leaves:
        node = state.nodes[step_id]
        result[step_id] = state.nodes_view[step_id]["output"] if node.status == "succeeded" else None
    return result
