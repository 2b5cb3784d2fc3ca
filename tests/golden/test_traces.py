"""The trace of every golden log is valid, with its definition too (page 003 §8)."""

from __future__ import annotations

import json

import pytest

from agentflow.definition.ir import canonical_json, decode_ir
from agentflow.events.envelope import decode
from agentflow.records.trace import trace_of
from agentflow.records.trace_check import inspect_replay_trace
from tests.golden.files import log_names, read_facts, read_lines

TERMINAL = ("workflow.completed", "workflow.failed", "workflow.cancelled")
ENDED = [name for name in log_names() if decode(read_lines(name)[-1]).type in TERMINAL]


@pytest.mark.parametrize("clock", ["wall", "logical"])
@pytest.mark.parametrize("name", ENDED)
def test_the_trace_of_a_run_is_valid(name: str, clock: str):
    workflow = decode_ir(canonical_json(json.loads(canonical_json(read_facts(name).workflow))))
    trace = trace_of([decode(line) for line in read_lines(name)], clock)  # type: ignore[arg-type]
    assert inspect_replay_trace(trace, workflow).violations == ()
