"""A field that a kind takes beside its own has an effect at run time; that others are refused is tested with
the checker (page 003 §2, §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import Approval, GlobalUpdate
from agentflow.definition.kinds import KINDS
from agentflow.events import catalogue as ev
from tests.conformance.kinds import rows_of_calls, rows_of_data, rows_of_flow, rows_of_gates  # noqa: F401
from tests.conformance.kinds.row import ROWS, Play, Row

WORKING = [name for name, kind in KINDS.items() if not kind.is_border]
ASKED = [name for name in WORKING if "approval" in KINDS[name].takes]


def play(row: Row, field: str, value: Any, **of_workflow: Any) -> Play:
    """Run a row whose node has this field."""
    workflow = row.workflow("eager")
    nodes = [msgspec.structs.replace(n, **{field: value}) if n.id == "n" else n for n in workflow.nodes]
    return Play(row, "eager", msgspec.structs.replace(workflow, nodes=tuple(nodes), **of_workflow)).play()


def sound(kind: str) -> Row:
    """Return a row in which the node succeeds."""
    return next(row for row in ROWS if row.kind == kind and row.failed is None and "eager" in row.policies)


def failing(kind: str) -> Row | None:
    """Return a row in which the node fails, if the kind can."""
    return next((row for row in ROWS if row.kind == kind and row.failed and "eager" in row.policies), None)


FAILING = [name for name in WORKING if failing(name) is not None]


@pytest.mark.parametrize("kind", ASKED)
def test_an_approval_is_asked_for_before_the_node_starts(kind: str):
    row = msgspec.structs.replace(sound(kind), answers={**sound(kind).answers, "n": True})
    log = [data for data, _, _ in play(row, "approval", Approval()).log]
    asked = [i for i, d in enumerate(log) if isinstance(d, ev.ApprovalRequested) and d.step_id == "n"]
    began = [i for i, d in enumerate(log) if isinstance(d, ev.WorkflowStepStarted) and d.step_id == "n"]
    assert asked
    assert asked[0] < began[0]


WRITES: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "set_globals": ({"a": "nodes.n.status"}, lambda found: found == "succeeded"),
    "update_globals": ({"a": GlobalUpdate(op="increment")}, lambda found: found > 1),
}


@pytest.mark.parametrize("field", WRITES)
@pytest.mark.parametrize("kind", WORKING)
def test_a_node_that_succeeds_writes_its_globals(kind: str, field: str):
    value, is_written = WRITES[field]
    before = dict(sound(kind).workflow("eager").globals)
    played = play(sound(kind), field, value, globals={**before, "a": 1})
    assert is_written(played.state.root.frame.globals["a"])


@pytest.mark.parametrize(("field", "value"), [("on_error", "skip"), ("required", False)])
@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_that_is_borne_lets_the_run_complete(kind: str, field: str, value: Any):
    row = failing(kind)
    assert row is not None
    assert play(row, "required", True).state.status == "failed"
    played = play(row, field, value)
    assert played.state.status == "completed"
    assert any(isinstance(d, ev.WorkflowStepFailed) for d in played.ends())
