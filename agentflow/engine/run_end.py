"""How a run ends: its output and its one terminal event (page 001 §5.9, page 000 §2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions, elapsed_ms, size_of
from agentflow.engine.durable_timers import rounds_disarmed
from agentflow.engine.path import Path
from agentflow.engine.pipeline import failure_of_request
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["end_failure", "failure_of", "leftovers", "output_of", "outputs_of", "run_ended", "run_failed"]


def run_ended(state: RunState, now: int) -> Decisions:
    """Nothing is left to do: completed, or failed when a required step failed."""
    if state.has_failed:
        return run_failed(state, failure_of(state), now)
    if state.pipeline is not None and (failure := failure_of_request(state.pipeline)) is not None:
        return run_failed(state, failure, now, output=output_of(state))
    if (failure := end_failure(state, state.root)) is not None:
        return run_failed(state, failure, now, output=_declared_output(state))
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
        *rounds_disarmed(state),
        ev.WorkflowCompleted(
            output=output,
            output_size=size_of(output),
            duration_ms=elapsed_ms(state.started_at, now),
            steps=ev.StepCounts(**state.steps_done),
            skipped=tuple(state.skipped),
            **({"not_run": not_run} if not_run else {}),
            usage=state.usage,
        ),
    ]


def failure_of(state: RunState) -> ErrorInfo:
    """Return why a run with failed steps fails: the first failure."""
    assert state.first_failure is not None
    step_id, (_, error) = state.failed_steps[0], state.first_failure
    hint = (error.details or {}).get("hint")
    return ErrorInfo(
        category=error.category,
        code=error.code,
        message=f"step {step_id} failed: {error.message}",
        details={"step_id": step_id} if hint is None else {"step_id": step_id, "hint": hint},
    )


def leftovers(state: RunState) -> Decisions:
    """Return what stays in the buffers of joins whose rounds did not close (page 002 §5)."""
    held = [found for path in state.paths.values() for one in path.rounds.values() for found in one.left()]
    return [
        ev.MessageUndelivered(
            step_id=message.edge.source.id if message.edge.source else "",
            activation=activation,
            index=message.number,
            type=message.type,
            reason="join_incomplete",
        )
        for activation, message in [*state.mail.left, *held]
        if (activation, message.number) not in state.mail.told
    ]


def outputs_of(state: RunState, path: Path | None = None) -> list[ev.Output]:
    """Return what the latest attempts of all activations gave out, in the order of page 002 §16.

    With `path`: of those on this path and below it.
    """
    found = [output for _, output in sorted(_ordered(state), key=lambda found: found[0])]
    if path is None or path.opener is None:
        return found
    return [output for output in found if output.activation.startswith(f"{path.key}/")]


def _ordered(state: RunState) -> Iterator[tuple[tuple[Any, ...], ev.Output]]:
    keeps = state.graph.policy.keeps_messages
    for outputs in state.mail.outputs.values():
        for offset, superstep, visit, data in outputs:
            yield (superstep, data.step_id, visit, data.index) if keeps else (offset,), data


def end_failure(state: RunState, path: Path) -> ErrorInfo | None:
    """Return the error of an end with `status: failed` that a path has reached; None if it reached none."""
    end = path.terminal
    return None if end is None else end.kind.path_failure(state, path, end)


def _declared_output(state: RunState) -> Any:
    """Return the output that the failing end declares; None without one, or if it cannot be made."""
    end = state.root.terminal
    if end is None or end.program.output is None:
        return None
    if not end.is_silent:
        return state.root.output
    try:
        return end.program.output.evaluate(state.scope(path=state.root))
    except EvaluationError:
        return None


def run_failed(state: RunState, error: ErrorInfo, now: int, *, output: Any = None) -> Decisions:
    """`workflow.failed`, with what the leaves had reached, or what the end that fails the run gives out."""
    partial = output
    if partial is None and state.graph.dependency_nodes:
        partial = _leaves(state.root)
    return [
        *rounds_disarmed(state),
        ev.WorkflowFailed(
            error=error,
            failed_steps=tuple(state.failed_steps),
            duration_ms=elapsed_ms(state.started_at, now),
            steps=ev.StepCounts(**state.steps_done),
            **({} if partial is None else {"partial_output": partial}),
            usage=state.usage,
        ),
    ]


def output_of(state: RunState, path: Path | None = None) -> Any:
    """`outputs` when declared; else what reached the end; else the result of every leaf step."""
    path = state.root if path is None else path
    graph = path.graph
    if state.pipeline is not None and path is state.root:
        return {"final_output": state.pipeline.final_output, "report": state.pipeline.report}
    if graph.outputs is not None:
        scope = state.scope(path=path)
        return {name: template.evaluate(scope) for name, template in graph.outputs.items()}
    for end in graph.ends:
        if end.is_silent and end.program.output is not None:
            return end.program.output.evaluate(state.scope(path=path))
    last = path.terminal
    written = last if last is not None and last.kind.is_end and not last.is_silent else None
    if written is not None and written.program.output is not None:
        return path.output
    if graph.yields:
        given = [output.value for output in outputs_of(state, path) if output.kind == "output"]
        if given or written is None:
            return given[-1] if given else None
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
