"""Every row of page 003 §4: outputs, ports, events, codes and limits, by both policies and over crashes."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.kinds import KINDS
from agentflow.events import catalogue as ev
from tests.conformance.kinds import rows_of_calls, rows_of_data, rows_of_flow, rows_of_gates  # noqa: F401
from tests.conformance.kinds.row import ANY, ROWS, Play, Row, timeless

CASES = {f"{one.kind}: {one.name}, {policy}": (one, policy) for one in ROWS for policy in one.policies}


def check(played: Play, row: Row) -> None:
    """Compare a finished run with its row."""
    state, ends = played.state, played.ends()
    if row.failed is None:
        assert state.status == "completed", state.error
    else:
        found = [d.error for d in ends if isinstance(d, ev.WorkflowStepFailed)] or [state.error]
        assert found[-1].code == row.failed, found[-1]
        if row.category is not None:
            assert found[-1].category == row.category
        if row.details is not ANY:
            details = found[-1].details or {}
            assert {k: details.get(k) for k in row.details} == row.details
    if row.out is not ANY:
        assert timeless(ends[-1].output) == row.out
    if row.way is not ANY:
        assert timeless(state.output) == row.way
    if row.visits is not None:
        assert state.nodes["n"].visits == row.visits
    if row.events is not None:
        last = ends[-1].activation
        own = [d for d, _, _ in played.log if getattr(d, "activation", None) == last]
        assert tuple(d.EVENT_TYPE for d in own) == row.events
    seen = state.root.frame.nodes["n"] if row.view else {}
    assert {key: seen.get(key) for key in row.view} == row.view


@pytest.mark.parametrize("name", CASES)
def test_a_row_holds(name: str):
    one, policy = CASES[name]
    check(Play(one, policy).play(), one)


@pytest.mark.parametrize("name", CASES)
def test_a_row_holds_after_a_crash_at_every_event(name: str):
    """Behind every batch of events, which a store keeps whole or not at all; of supersteps behind one in
    three, another third of them with each row."""
    one, policy = CASES[name]
    whole = Play(one, policy).play()
    expected = whole.outcome()
    cuts = whole.bounds[1:] if policy == "eager" else whole.bounds[1 + ROWS.index(one) % 3 :: 3]
    for cut in cuts:
        assert whole.after_crash(cut).play().outcome() == expected, (
            f"after event {cut - 1}, {whole.types()[cut - 1]}"
        )


def test_every_kind_has_rows_and_every_field_of_a_kind_is_in_one():
    seen: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for one in ROWS:
        seen[one.kind] |= set(one.node)
        for other in one.others:
            seen[other["type"]] |= set(other)
    missing: dict[str, Any] = {}
    for name, kind in KINDS.items():
        own = {f.encode_name for f in _fields(kind.spec)} - _COMMON
        absent = own - seen[name] - _ELSEWHERE.get(name, set())
        if absent:
            missing[name] = absent
    assert not missing


def _fields(spec: Any) -> Any:
    import msgspec

    return msgspec.structs.fields(spec)


_COMMON = {f.encode_name for f in _fields(next(iter(KINDS.values())).spec.__mro__[1])}
_ELSEWHERE = {
    "subgraph": {"graph", "graph_path", "isolation", "exchange", "accepts", "grants"},
    "tool": {"handler_file"},
    "executor": {"intermediate"},
    "map": {"exchange"},
    "merge": {"call_policy"},
}
"""Fields whose rows need runs of their own: see `test_graphs_at_paths`, `test_subworkflows`, `test_workers`,
and the suites of pages 002 and 004."""
