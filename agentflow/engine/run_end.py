"""How a run ends: its output and its one terminal event (page 001 §5.9, page 000 §2)."""

from __future__ import annotations

from typing import Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions, elapsed_ms, size_of
from agentflow.engine.path import Path
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["output_of", "run_ended", "run_failed"]


def run_ended(state: RunState, now: int) -> Decisions:
    """Nothing is left to do: completed, or failed when a required step failed."""
    if state.has_failed:
        first = state.nodes[state.failed_steps[0]]
        view: dict[str, Any] = state.nodes_view[first.node.id]["error"] or {}
        error = ErrorInfo(
            category=view.get("category", "agent"),
            code=view.get("code", "step_failed"),
            message=f"step {first.node.id} failed: {view.get('message', '')}",
            details={"step_id": first.node.id},
        )
        return run_failed(state, error, now)
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


def run_failed(state: RunState, error: ErrorInfo, now: int) -> Decisions:
    """`workflow.failed`, with what the leaves had reached."""
    partial = _leaves(state.root) if state.graph.dependency_nodes else None
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


def output_of(state: RunState, path: Path | None = None) -> Any:
    """`outputs` when declared; else what reached the end; else the result of every leaf step."""
    path = state.root if path is None else path
    graph = path.graph
    if graph.outputs is not None:
        scope = state.scope(path=path)
        return {name: template.evaluate(scope) for name, template in graph.outputs.items()}
    for end in graph.ends:
        if end.is_silent and end.program is not None:
            return end.program.evaluate(state.scope(path=path))
    if graph.dependency_nodes:
        return _leaves(path)
    return path.output


def _leaves(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for step_id in path.graph.leaves:
        place = path.nodes.get(step_id)
        name = path.graph.nodes[step_id].name
        succeeded = place is not None and place.status == "succeeded"
        result[name] = path.frame.nodes[name]["output"] if succeeded else None
    return result
