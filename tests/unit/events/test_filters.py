"""Types are chosen by name or by family."""

from __future__ import annotations

import pytest

from agentflow.events.filters import TypeFilter


@pytest.mark.parametrize(
    ("patterns", "yes", "no"),
    [
        (["output"], ["output"], ["outputs", "output.x"]),
        (["tool.*"], ["tool.call_started", "tool.x.y"], ["tool", "toolset.x"]),
        (["agent.failed", "workflow.*"], ["agent.failed", "workflow.failed"], ["agent.completed"]),
        (["*"], ["anything", "a.b"], []),
        ([], [], ["output"]),
    ],
)
def test_a_filter_wants_names_and_families(patterns, yes, no):
    wanted = TypeFilter(patterns)
    assert all(map(wanted, yes))
    assert not any(map(wanted, no))


@pytest.mark.parametrize("pattern", ["", "*.failed", "tool.*.x", "to*", "tool.**"])
def test_a_star_elsewhere_is_refused(pattern):
    with pytest.raises(ValueError, match="family"):
        TypeFilter([pattern])
