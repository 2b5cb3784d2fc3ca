"""Verdicts: evidence decides, never the word of a step (page 004 §9)."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from agentflow.definition.stage_schemas import VerifierOutput, problems_of
from agentflow.pipeline.verification import verify
from agentflow.runtime.file_snapshots import snapshot_files
from agentflow.tools.toolsets.workspace import Workspace


def step(id: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": id, "title": id, "action": "do it", "owner": "agent", "depends_on": [], **more}


def plan_of(*steps: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "ready",
        "summary": "s",
        "steps": list(steps),
        "risks": [],
        "artifacts": [],
        "blockers": [],
    }


def done(id: str = "a", output: str = "done", **more: Any) -> dict[str, Any]:
    return {"step_id": id, "status": "done", "output": output, "error": None, **more}


def undone(id: str, status: str, error: str, code: str) -> dict[str, Any]:
    return {"step_id": id, "status": status, "output": "", "error": error, "code": code}


async def check(steps: Any, results: Any, **more: Any) -> dict[str, Any]:
    steps = steps if isinstance(steps, list) else [steps]
    results = results if isinstance(results, list) else [results]
    given = {"status": "ready", "step_results": results, "blockers": []}
    found = await verify(plan_of(*steps), given, **more)
    assert problems_of(VerifierOutput, found["verifier_output"]) == []
    return found


async def verdict(steps: Any, results: Any, **more: Any) -> tuple[str, str]:
    found = await check(steps, results, **more)
    first = found["verifier_output"]["verdicts"][0]
    return first["verdict"], first["reason"]


def sent(
    output: Any, parameters: Any, *, side_effect: str = "external", step_id: str = "a"
) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "tool_call_id": "call_1",
        "tool": "messaging.send",
        "side_effect": side_effect,
        "parameters": parameters,
        "output": output,
        "offset": 17,
    }


async def test_failed_and_skipped_steps_keep_their_reason() -> None:
    results = [
        undone("a", "failed", "it broke", "x"),
        undone("b", "skipped", "dependency_failed: a", "dependency_failed"),
    ]
    found = await check([step("a"), step("b")], results)
    output = found["verifier_output"]
    assert output["verdicts"] == [
        {"step_id": "a", "verdict": "fail", "reason": "it broke"},
        {"step_id": "b", "verdict": "skipped", "reason": "dependency_failed: a"},
    ]
    assert (output["status"], output["summary"]) == ("partial", "0 passed, 1 failed, 1 skipped")
    assert output["blockers"] == ["a: it broke", "b: dependency_failed: a"]


async def test_blank_output_fails() -> None:
    assert await verdict(step(), done(output=" \n")) == ("fail", "output_empty")


async def test_no_steps_block() -> None:
    found = await verify(plan_of(), {"status": "blocked", "step_results": [], "blockers": ["x"]})
    assert found["verifier_output"]["status"] == "blocked"
    assert found["verifier_output"]["blockers"] == ["no steps"]


async def test_causes_that_can_be_cleared_block() -> None:
    results = [
        undone("a", "skipped", "toolset_unavailable: mail", "toolset_unavailable"),
        undone("b", "skipped", "dependency_skipped: a", "dependency_skipped"),
    ]
    assert (await check([step("a"), step("b")], results))["verifier_output"]["status"] == "blocked"
    results[0] = undone("a", "failed", "it broke", "tool_execution_failed")
    assert (await check([step("a"), step("b")], results))["verifier_output"]["status"] == "partial"


@pytest.mark.parametrize(
    ("side_effect", "expected"),
    [
        ("none", ("pass", "nothing to check")),
        ("write", ("pass", "nothing to check")),
        ("external", ("fail", "artifact_unverified")),
        ("irreversible", ("fail", "artifact_unverified")),
    ],
)
async def test_step_with_nothing_to_check(side_effect: str, expected: tuple[str, str]) -> None:
    found = await check(step(), done(), classes={"a": side_effect})
    first = found["verifier_output"]["verdicts"][0]
    assert (first["verdict"], first["reason"]) == expected
    assert [one["kind"] for one in found["unchecked"]] == (["step"] if expected[0] == "pass" else [])


async def test_free_text_is_unchecked_and_never_passes_for_a_check() -> None:
    found = await check(step(verification="looks good"), done(), classes={"a": "external"})
    assert found["verifier_output"]["verdicts"][0]["reason"] == "artifact_unverified"
    assert found["unchecked"][0]["subject"] == "looks good"


async def test_expected_file_that_was_not_reported_is_looked_up(tmp_path: Path) -> None:
    given = step(expected_artifacts=["out.txt"])
    assert await verdict(given, done(), workspace=str(tmp_path)) == ("fail", "artifact_missing")
    (tmp_path / "out.txt").write_text("x")
    assert (await verdict(given, done(), workspace=str(tmp_path)))[0] == "pass"


async def test_optional_file_may_be_absent_and_is_checked_when_there(tmp_path: Path) -> None:
    given = step(expected_artifacts=[{"type": "json", "uri": "a.json", "required": False}])
    assert (await verdict(given, done(), workspace=str(tmp_path)))[0] == "pass"
    (tmp_path / "a.json").write_text("{")
    assert await verdict(given, done(), workspace=str(tmp_path)) == ("fail", "artifact_invalid_json")


async def test_artifact_that_nobody_expected_is_checked_as_well(tmp_path: Path) -> None:
    made = [{"type": "file", "uri": "a.txt", "status": "verified"}]
    assert await verdict(step(), done(artifacts=made), workspace=str(tmp_path)) == (
        "fail",
        "artifact_missing",
    )


@pytest.mark.parametrize("status", ["pending", "missing"])
async def test_claim_of_pending_or_missing_fails(tmp_path: Path, status: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    made = [{"type": "file", "uri": "./a.txt", "status": status}]
    given = step(expected_artifacts=["a.txt"])
    assert await verdict(given, done(artifacts=made), workspace=str(tmp_path)) == ("fail", "artifact_pending")


async def test_artifacts_are_matched_by_normal_uri(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    made = [{"type": "file", "uri": f"{tmp_path}/sub/../a.txt", "status": "created"}]
    found = await check(step(expected_artifacts=["./a.txt"]), done(artifacts=made), workspace=str(tmp_path))
    assert len(found["checks"]) == 1
    assert found["checks"][0]["evidence"]["sha256"] == hashlib.sha256(b"x").hexdigest()


async def test_first_failing_code_is_the_reason_and_all_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    given = step(
        expected_artifacts=["a.json", "b.txt"], verification={"target": "output", "contains": ["yes"]}
    )
    found = await check(given, done(output="no"), workspace=str(tmp_path))
    assert found["codes"]["a"] == [
        "artifact_empty",
        "artifact_invalid_json",
        "artifact_missing",
        "check_failed:contains",
    ]
    assert found["verifier_output"]["verdicts"][0]["reason"] == "artifact_empty"


async def test_file_older_than_its_step_is_stale(tmp_path: Path) -> None:

    (tmp_path / "a.txt").write_text("x")
    before = {"a": snapshot_files(str(tmp_path), ["a.txt"])}
    given = step(expected_artifacts=["a.txt"])
    assert await verdict(given, done(), workspace=str(tmp_path), before=before) == ("fail", "artifact_stale")
    (tmp_path / "a.txt").write_text("y")
    assert (await verdict(given, done(), workspace=str(tmp_path), before=before))[0] == "pass"


def begun(root: Path, than: Path) -> dict[str, Any]:
    """What a step found that began after the last change of a file."""
    if Workspace(root).clock() is None:
        pytest.skip("this file system does not tell its time")
    while True:  # until the clock that stamps files ticks
        found = snapshot_files(str(root), [])
        if found["."]["time"] > than.stat().st_ctime_ns:
            return found


def produced(*uris: str) -> Any:
    return done(artifacts=[{"type": "file", "uri": uri, "status": "verified"} for uri in uris])


async def test_file_that_nobody_expected_must_be_of_its_step_too(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("x")
    shown: Any = {"workspace": str(tmp_path), "before": {"a": begun(tmp_path, kept)}}
    assert await verdict(step(), produced("kept.txt"), **shown) == ("fail", "artifact_stale")
    os.utime(kept, ns=(2**60, 2**60))
    other = tmp_path / "other.txt"
    other.write_text("y")
    os.utime(other, ns=(0, 0))
    os.rename(other, kept)
    assert (await verdict(step(), produced("kept.txt"), **shown))[0] == "pass"
    # the log of an earlier version has no time
    kept.write_text("x")
    assert (await verdict(step(), produced("kept.txt"), workspace=str(tmp_path), before={"a": {}}))[
        0
    ] == "pass"


async def test_an_old_file_is_new_at_a_path_that_a_step_made(tmp_path: Path) -> None:
    """Neither a link to a file nor another name of its directory stamps the file itself."""
    old = tmp_path / "build" / "sub" / "old.txt"
    old.parent.mkdir(parents=True)
    old.write_text("x")
    shown: Any = {"workspace": str(tmp_path), "before": {"a": begun(tmp_path, old)}}
    stale = ("fail", "artifact_stale")
    assert await verdict(step(), produced("build/sub/old.txt"), **shown) == stale
    (tmp_path / "build" / "beside.txt").write_text("y")  # no new name of the directory
    assert await verdict(step(), produced("build/sub/old.txt"), **shown) == stale
    (tmp_path / "link.txt").symlink_to("build/sub/old.txt")
    (tmp_path / "dir").symlink_to("build/sub")
    for uri in ("link.txt", "dir/old.txt"):
        assert (await verdict(step(), produced(uri), **shown))[0] == "pass"
    os.rename(tmp_path / "build", tmp_path / "dist")
    assert (await verdict(step(), produced("dist/sub/old.txt"), **shown))[0] == "pass"


@pytest.mark.parametrize("has_unnamed_files", [True, False])
async def test_no_file_is_stale_by_a_clock_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_unnamed_files: bool
) -> None:
    """The clock of a network's file system may be behind this machine's."""
    kept = tmp_path / "kept.txt"
    kept.write_text("x")
    open_, unnamed = os.open, getattr(os, "O_TMPFILE", 0)

    def refusing(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & unnamed == unnamed:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return open_(path, flags, *args, **more)

    if has_unnamed_files:
        monkeypatch.setattr(os, "open", refusing)
    else:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    before = {"a": snapshot_files(str(tmp_path), [])}
    monkeypatch.undo()
    assert before["a"]["."] == {"time": None}
    assert (await verdict(step(), produced("kept.txt"), workspace=str(tmp_path), before=before))[0] == "pass"


# -- mail ---------------------------------------------------------------------------------------

_MAIL = step(expected_artifacts=[{"type": "email", "uri": "mailto:ada@example.org"}])


def _mail(**more: Any) -> dict[str, Any]:
    return done(artifacts=[{"type": "email", "uri": "mailto:ada@example.org", "status": "verified", **more}])


async def test_mail_that_was_only_claimed_fails() -> None:
    assert await verdict(_MAIL, _mail(id="<1@x>")) == ("fail", "evidence_missing")
    assert await verdict(_MAIL, done()) == ("fail", "artifact_missing")


async def test_mail_with_a_recorded_call_passes() -> None:
    calls = [sent({"message_id": "<1@x>", "to": "?"}, {"to": "ada@Example.org"})]
    found = await check(_MAIL, _mail(id="<1@x>"), calls=calls)
    assert found["verifier_output"]["verdicts"][0]["verdict"] == "pass"
    assert found["checks"][0]["evidence"] == {"tool_call_id": "call_1", "offset": 17, "id": "<1@x>"}
    assert (await verdict(_MAIL, done(), calls=calls))[0] == "pass"  # not reported, but sent


FALSE_EVIDENCE = {
    "other_address": (
        sent({"id": "<1@x>"}, {"to": "eve@example.org", "body": "to ada@example.org,"}),
        "evidence_mismatch",
    ),
    "address_in_a_name": (
        sent({"id": "<1@x>"}, {"to": '"a, ada@example.org, b" <eve@example.org>'}),
        "evidence_mismatch",
    ),
    "address_in_a_comment": (
        sent({"id": "<1@x>"}, {"to": "eve@example.org (x, ada@example.org, y)"}),
        "evidence_mismatch",
    ),
    "other_id": (sent({"message_id": "<2@x>"}, {"to": "ada@example.org"}), "evidence_missing"),
    "read_only": (sent({"id": "<1@x>"}, {"to": "ada@example.org"}, side_effect="write"), "evidence_missing"),
    "other_step": (sent({"id": "<1@x>"}, {"to": "ada@example.org"}, step_id="b"), "evidence_missing"),
    "id_in_text": (sent("<1@x>", {"to": "ada@example.org"}), "evidence_missing"),
    "nested_id": (sent({"result": {"id": "<1@x>"}}, {"to": "ada@example.org"}), "evidence_missing"),
    "null_id": (sent({"id": None, "message_id": True}, {"to": "ada@example.org"}), "evidence_missing"),
}


@pytest.mark.parametrize(("call", "code"), FALSE_EVIDENCE.values(), ids=FALSE_EVIDENCE)
async def test_call_that_is_no_evidence(call: dict[str, Any], code: str) -> None:
    assert await verdict(_MAIL, _mail(id="<1@x>"), calls=[call]) == ("fail", code)


async def test_message_by_target_and_timestamp() -> None:
    given = step(expected_artifacts=[{"type": "message", "uri": "#general"}])
    made = done(artifacts=[{"type": "message", "uri": "#general", "status": "created", "id": "17.5"}])
    output = {"target": "#general", "timestamp": "17.5"}
    assert (await verdict(given, made, calls=[sent(output, {})]))[0] == "pass"
    assert await verdict(given, made, calls=[sent({**output, "timestamp": "18"}, {})]) == (
        "fail",
        "evidence_missing",
    )


# -- other, checks ------------------------------------------------------------------------------


async def test_other_has_no_check_of_its_own() -> None:
    given = step(expected_artifacts=[{"type": "other", "uri": "a thing"}])
    made = done(artifacts=[{"type": "other", "uri": "a thing", "status": "created"}])
    found = await check(given, made)
    assert found["verifier_output"]["verdicts"][0]["verdict"] == "pass"
    assert [one["kind"] for one in found["unchecked"]] == ["artifact", "step"]
    assert await verdict(given, done()) == ("fail", "artifact_missing")


async def test_url_is_unchecked_and_unverified_without_network() -> None:
    given = step(expected_artifacts=["https://example.org/a"])
    assert await verdict(given, done(), network=False) == ("fail", "artifact_unverified")
    optional = step(expected_artifacts=[{"type": "url", "uri": "https://example.org/a", "required": False}])
    assert (await verdict(optional, done(), network=False))[0] == "pass"


async def test_check_without_target_is_about_the_only_artifact(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Title\n\nhttps://a.org https://b.org\n")
    given = step(expected_artifacts=["a.md"], verification={"headings": ["Title"], "min_urls": 2})
    assert (await verdict(given, done(output="-"), workspace=str(tmp_path)))[0] == "pass"
    two = step(expected_artifacts=["a.md", "b.md"], verification={"headings": ["Title"]})
    (tmp_path / "b.md").write_text("b")
    assert await verdict(two, done(output="-"), workspace=str(tmp_path)) == ("fail", "check_failed:headings")


async def test_check_of_a_file_outside_sees_nothing(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "w" / "link").symlink_to("../secret")
    for target in ("../secret", "link", str(tmp_path / "secret")):
        for key, value in (
            ("contains", ["s3cret"]),
            ("exists", True),
            ("sha256", hashlib.sha256(b"s3cret").hexdigest()),
        ):
            given = step(verification={"target": target, key: value})
            found = await verdict(given, done(), workspace=str(tmp_path / "w"))
            assert found == ("fail", f"check_failed:{key}")


async def test_same_input_gives_the_same_output(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A")
    steps = [
        step(f"s{n}", expected_artifacts=["a.md", "b.md"], verification=["text", {"min_bytes": n}])
        for n in range(5)
    ]
    results = [done(f"s{n}") for n in range(5)]
    assert await check(steps, results, workspace=str(tmp_path)) == await check(
        steps, results, workspace=str(tmp_path)
    )


async def test_artifacts_of_a_run_are_bounded(tmp_path: Path) -> None:
    made = [{"type": "file", "uri": f"{n}.txt", "status": "created"} for n in range(1_001)]
    found = await check(step(), done(artifacts=made), workspace=str(tmp_path))
    assert found["codes"]["a"] == ["artifact_missing", "artifact_unverified"]
