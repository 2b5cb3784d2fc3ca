"""Requests that leave files and mails: what is claimed is checked by evidence (page 004 §9, §12)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime
from agentflow.config import Config, MessagingConfig, ToolsetsConfig
from agentflow.pipeline.assembly import assemble
from agentflow.testing import call
from tests.integration.pipeline.support import Desk, done, model_of, plan, requests_of, step

DIGEST = "# Actors\n\n" + "\n".join(f"- https://example.com/{i} tells more of it" for i in range(20)) + "\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _config(tmp_path: Any) -> Config:
    return Config(
        store="memory:",
        pipeline={"workspace_roots": [str(tmp_path / "work")]},
        toolsets=ToolsetsConfig(enabled=("file",), messaging=MessagingConfig()),
    )


def _writes(path: str, content: str) -> Any:
    def answer(step_id: str, request: Any) -> Any:
        if not any(m.role == "tool" for m in request.messages):
            return call("file__write", path=path, content=content)
        return done(step_id, artifacts=[{"type": "markdown", "uri": "digest.md", "status": "verified"}])

    return answer


WRITE = step(
    "write",
    toolsets=["file"],
    expected_artifacts=[{"type": "markdown", "uri": "digest.md"}],
    verification={"min_bytes": 400, "min_urls": 3},
)


@pytest.mark.parametrize(
    ("path", "content", "verdict", "reason"),
    [
        ("digest.md", DIGEST, "pass", "all checks hold"),
        ("digest.md", "# Short\n", "fail", "check_failed:min_bytes"),
        ("other.md", DIGEST, "fail", "artifact_missing"),
    ],
)
async def test_a_file_is_written_and_verified_by_its_content(
    tmp_path: Any, path: str, content: str, verdict: str, reason: str
):
    parts = assemble(_config(tmp_path))
    model = model_of(plan(WRITE), _writes(path, content))
    async with Runtime(models=[model], services=parts.services()) as runtime:
        run = (await parts.requests(runtime).submit("幫我規劃一個流程: 寫摘要")).run
        assert run is not None
        result = await run.result()
        events = await _events(runtime, run.workflow_id)
    checks = [e.data for e in events if e.type == "verification.artifact_checked"]
    verdicts = [e.data for e in events if e.type == "verification.step_verdict"]
    steps = result.output["final_output"]["steps"]
    assert [(s["step_id"], s["verdict"]) for s in steps] == [("write", verdict)]
    assert [v.reason for v in verdicts] == [reason]
    written = tmp_path / "work" / run.workflow_id / path
    assert written.read_text() == content
    assert checks[0].step_id == "execute/write"


async def _events(runtime: Runtime, run_id: str) -> list[Any]:
    return [event async for event in runtime.events(run_id)]


async def test_a_file_that_the_step_left_as_it_was_is_stale(tmp_path: Any):
    parts = assemble(_config(tmp_path))
    folder = tmp_path / "work" / "old"
    folder.mkdir(parents=True)
    (folder / "digest.md").write_text(DIGEST)
    claimed = [{"type": "markdown", "uri": "digest.md", "status": "verified"}]
    model = model_of(plan(WRITE), lambda step_id, request: done(step_id, artifacts=claimed))
    async with Runtime(models=[model], services=parts.services()) as runtime:
        run = (await parts.requests(runtime).submit("workflow: x", workspace=str(folder))).run
        assert run is not None
        await run.result()
        verdicts = [e.data for e in await _events(runtime, run.workflow_id) if "step_verdict" in e.type]
    assert (verdicts[0].verdict, verdicts[0].codes) == ("fail", ("artifact_stale",))


@pytest.mark.parametrize(("sends", "verdict"), [(False, "fail"), (True, "pass")])
async def test_a_mail_is_verified_by_the_recorded_call_alone(tmp_path: Any, sends: bool, verdict: str):
    desk = Desk()
    mail = {"type": "email", "uri": "mailto:a@b.example", "status": "verified", "id": "<1@desk>"}

    def answer(step_id: str, request: Any) -> Any:
        if sends and not any(m.role == "tool" for m in request.messages):
            return call("messaging__send", to="a@b.example", body="x")
        return done(step_id, artifacts=[mail])

    expected = [{"type": "email", "uri": "mailto:a@b.example"}]
    steps = plan(step("send", toolsets=["messaging"], expected_artifacts=expected))
    async with Runtime(models=[model_of(steps, answer)], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.decide(run.workflow_id, step_id="send", granted=True)
        result = await run.result()
    assert [s["verdict"] for s in result.output["final_output"]["steps"]] == [verdict]
    assert len(desk.calls) == int(sends)
