"""The state file: one writer, one write a line, a torn last line, import (page 004 §14)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.pipeline.state_file import (
    FIELDS,
    StateFile,
    StateFileError,
    import_line,
    read_state_file,
    state_line,
)

NAME = ".agentflow-workflow-state.jsonl"
ACTIVATED = {
    "mode": "workflow",
    "trigger": "explicit_prefix",
    "message": "workflow: do\nit",
    "user_input": "do\nit",
    "execution_requested": True,
    "execution_mode": "delegated",
    "stage3_available": True,
}
NORMALIZED = {
    "status": "ready",
    "objective": "o",
    "constraints": [],
    "context": {},
    "success_criteria": [],
    "blockers": [],
}
STEPS = [{"id": id, "title": id, "action": "x", "owner": "agent", "depends_on": []} for id in ("a", "b")]
PLAN = {"status": "ready", "summary": "p", "steps": STEPS, "risks": ["r"], "artifacts": [], "blockers": []}
DONE = {"step_id": "a", "status": "done", "output": "x", "error": None}


def line(id: str = "wf_1", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "status": "initialized",
        "phase": "executing",
        "created_at": "1",
        "updated_at": "2",
    }
    return state_line(id, activated=ACTIVATED, **{**given, **more})


def test_line_has_the_fields_of_the_page() -> None:
    assert tuple(line()) == FIELDS
    assert tuple(line(blocked_reason="quota")) == (*FIELDS, "blocked_reason")
    found = line(normalized_request=NORMALIZED, plan=PLAN, results={"a": DONE})
    assert (found["objective"], found["risks"], found["executor_results"]) == ("o", ["r"], [DONE])


def test_last_line_of_an_id_wins(tmp_path: Path) -> None:
    for id, phase in (("wf_1", "planning"), ("wf_2", "planning"), ("wf_1", "completed")):
        StateFile(tmp_path, NAME).write(line(id, phase=phase))
    assert (tmp_path / NAME).read_bytes().count(b"\n") == 3
    found, problems = read_state_file(tmp_path / NAME)
    assert {id: one["phase"] for id, one in found.items()} == {"wf_1": "completed", "wf_2": "planning"}
    assert problems == []


def test_state_that_did_not_change_is_written_once(tmp_path: Path) -> None:
    writer = StateFile(tmp_path, NAME)
    for updated in "123":
        writer.write(line(updated_at=updated))
    assert (tmp_path / NAME).read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("left", [0, 1, 17, 300, -2, -1])
def test_line_that_was_torn_is_ignored_and_takes_no_other_along(tmp_path: Path, left: int) -> None:
    path = tmp_path / NAME
    StateFile(tmp_path, NAME).write(line(phase="planning"))
    whole = path.stat().st_size
    StateFile(tmp_path, NAME).write(line(phase="executing"))
    os.truncate(path, whole + left if left >= 0 else path.stat().st_size + left)
    found, problems = read_state_file(path)
    assert found["wf_1"]["phase"] == ("executing" if left == -1 else "planning")
    assert problems == []
    StateFile(tmp_path, NAME).write(line("wf_2"))
    found, problems = read_state_file(path)
    assert list(found) == ["wf_1", "wf_2"]
    assert len(problems) == (left not in (0, -1))


def test_bad_line_in_the_middle_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'{"workflow_id": 3}\n[]\n\n{"workflow_id": "wf_1"}\n{"workflow')
    found, problems = read_state_file(tmp_path / "f")
    assert list(found) == ["wf_1"]
    assert [one.line for one in problems] == [1, 2]


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / NAME).symlink_to(tmp_path / "target")
    with pytest.raises(StateFileError):
        StateFile(tmp_path / "w", NAME).write(line())
    assert (tmp_path / "target").read_text() == "kept"


def test_import_keeps_stages_and_done_results() -> None:
    failed = {"step_id": "b", "status": "failed", "output": "", "error": "e"}
    found = import_line(
        json.loads(
            json.dumps(line(normalized_request=NORMALIZED, plan=PLAN, results={"a": DONE, "b": failed}))
        )
    )
    assert (found.message, found.user_input, found.execution_requested) == (
        "workflow: do\nit",
        "do\nit",
        True,
    )
    assert (found.normalized_request, found.plan) == (NORMALIZED, PLAN)
    assert found.results == {"a": DONE}
    assert found.dropped == ()


def test_import_believes_nothing_that_breaks_its_schema() -> None:
    hostile = line(normalized_request=NORMALIZED, plan={**PLAN, "approved": True}, results={"a": DONE})
    hostile["executor_results"] = [{**DONE, "step_id": "z"}, {"status": "done"}]
    hostile |= {"activation_trigger": "root", "execution_requested": "yes"}
    found = import_line(hostile)
    assert (found.plan, found.results, found.trigger, found.execution_requested) == (None, {}, "api", False)
    assert found.dropped == ("plan", "executor_results[1]")
    with pytest.raises(StateFileError):
        import_line({"workflow_id": "wf_1"})


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as stream:
        stream.write(data)
        stream.flush()
        read_state_file(Path(stream.name))
