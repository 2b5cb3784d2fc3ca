"""Templates and toolsets in whole runs: files, mail and commands are real, and no model is asked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from agentflow.config import MessagingConfig, TerminalConfig, ToolsetsConfig
from agentflow.errors import DefinitionError
from agentflow.models import Models
from agentflow.pipeline.requests import Requests
from agentflow.pipeline.settings import PipelineSettings
from agentflow.pipeline.template_store import TemplateStore
from agentflow.pipeline.templates import bind
from agentflow.runtime import Runtime
from agentflow.tools.toolsets.registry import ToolsetRegistry


def setting(tmp_path: Path, *enabled: str, **sections: Any) -> tuple[PipelineSettings, ToolsetRegistry]:
    settings = PipelineSettings(workspace_roots=(str(tmp_path / "roots"),))
    return settings, ToolsetRegistry(ToolsetsConfig(enabled=enabled, **sections), settings.roots)


def step(id: str, tool: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "title": id,
        "action": "call",
        "owner": "tool",
        "depends_on": [],
        "toolsets": [tool.partition(".")[0]],
        "call": {"tool": tool, "parameters": parameters},
        **more,
    }


def plan_of(*steps: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "ready",
        "summary": "s",
        "steps": list(steps),
        "risks": [],
        "artifacts": [],
        "blockers": [],
    }


async def grant_open(runtime: Runtime, workflow_id: str) -> None:
    for request in await runtime.requests(workflow_id):
        await runtime.decide(workflow_id, request_id=request.request_id, granted=True, by="ada")


async def test_template_of_the_product_does_its_work_without_a_model(tmp_path: Path) -> None:
    settings, registry = setting(tmp_path, "file")
    template = TemplateStore(tmp_path / "user").get("write_note").template
    bound = bind(template, {"title": "建 ${{ x }}", "text": "{{title}} stays"})
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        requests = Requests(runtime, settings, toolsets=registry.toolsets())
        run = await requests.submit_plan(bound.plan, context=bound.context, template=template.name)
        output = (await run.result()).output
        rows = await runtime.log.read(run.workflow_id, 0)
        events = [row.type for row in rows]
    final, report = output["final_output"], output["report"]
    assert final["status"] == "ready"
    assert final["verification_summary"] == "2 passed, 0 failed, 0 skipped"
    written = (tmp_path / "roots" / run.workflow_id / "note.md").read_bytes()
    assert written.decode() == "# 建 ${{ x }}\n\n{{title}} stays\n"
    assert report["artifacts"][0]["evidence"]["sha256"] == hashlib.sha256(written).hexdigest()
    assert not any(type.startswith(("model.", "agent.")) for type in events)


async def test_call_of_a_function_outside_the_toolsets_is_refused(tmp_path: Path) -> None:
    settings, registry = setting(tmp_path, "file", "web")
    plan = plan_of(step("a", "web.fetch", {"url": "https://example.org"}, toolsets=["file"]))
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        with pytest.raises(DefinitionError) as error:
            await Requests(runtime, settings, toolsets=registry.toolsets()).submit_plan(plan)
    assert [one.code for one in error.value.diagnostics] == ["E_PLAN_TOOLSET"]


async def test_failed_call_fails_its_step_and_the_others_go_on(tmp_path: Path) -> None:
    settings, registry = setting(tmp_path, "file")
    plan = plan_of(
        step("a", "file.write", {"path": "../x", "content": "evil"}),
        step("b", "file.write", {"path": "b", "content": "good"}),
        step("c", "file.read", {"path": "b"}, depends_on=["a"]),
    )
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        run = await Requests(runtime, settings, toolsets=registry.toolsets()).submit_plan(plan)
        final = (await run.result()).output["final_output"]
    assert final["status"] == "partial"
    assert [one["status"] for one in final["steps"]] == ["failed", "done", "skipped"]
    assert not (tmp_path / "roots" / "x").exists()


async def test_toolset_that_is_down_skips_its_step(tmp_path: Path) -> None:
    settings, registry = setting(tmp_path, "file", "terminal")
    plan = plan_of(step("a", "terminal.run", {"command": "id"}))
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        run = await Requests(runtime, settings, toolsets=registry.toolsets()).submit_plan(plan)
        final = (await run.result()).output["final_output"]
    assert final["status"] == "blocked"
    assert final["blockers"] == ["a: toolset_unavailable: terminal"]


async def test_command_waits_for_an_approval(tmp_path: Path) -> None:
    settings, registry = setting(tmp_path, "terminal", terminal=TerminalConfig(allow=("*",)))
    plan = plan_of(
        step("a", "terminal.run", {"command": "echo hi > out.txt"}, expected_artifacts=["out.txt"])
    )
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        run = await Requests(runtime, settings, toolsets=registry.toolsets()).submit_plan(plan)
        await run.rest()
        assert not (tmp_path / "roots" / run.workflow_id / "out.txt").exists()
        await grant_open(runtime, run.workflow_id)
        final = (await run.result()).output["final_output"]
    assert final["status"] == "ready"
    assert (tmp_path / "roots" / run.workflow_id / "out.txt").read_text() == "hi\n"


async def test_mail_with_evidence_passes_and_its_address_decides(tmp_path: Path) -> None:
    import asyncio

    from aiosmtpd.smtp import SMTP

    from tests.unit.tools.toolsets.test_services import Mailbox

    box, loop = Mailbox(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, loop=loop), "127.0.0.1", 0)
    url = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = MessagingConfig(smtp_url=url, sender="bot@example.org")
    settings, registry = setting(tmp_path, "messaging", messaging=config)
    plan = plan_of(
        step(
            "a",
            "messaging.send",
            {"to": "ada@example.org", "subject": "Digest", "body": "hi"},
            expected_artifacts=[{"type": "email", "uri": "mailto:ada@example.org"}],
        ),
        step(
            "b",
            "messaging.send",
            {"to": "ada@example.org", "body": "hi"},
            expected_artifacts=["mailto:bob@example.org"],
        ),
    )
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        run = await Requests(runtime, settings, toolsets=registry.toolsets()).submit_plan(plan)
        await run.rest()
        await grant_open(runtime, run.workflow_id)
        output = (await run.result()).output
    server.close()
    verdicts = [one["verdict"] for one in output["final_output"]["steps"]]
    assert verdicts == ["pass", "fail"]
    evidence = output["report"]["artifacts"][0]["evidence"]
    (sent,) = [mail for mail in box.messages if mail["Subject"] == "Digest"]  # the steps run side by side
    assert evidence["id"] == sent["Message-ID"]


@pytest.mark.parametrize("trusted", [True, False])
async def test_document_that_is_not_trusted_runs_no_command(tmp_path: Path, trusted: bool) -> None:
    _, registry = setting(tmp_path, "terminal", terminal=TerminalConfig(allow=("*",)))
    graph = {
        "name": "g",
        "nodes": [
            {"type": "start", "id": "s", "next": "t"},
            {"type": "tool", "id": "t", "tool": "terminal.run", "input": {"command": "echo hi"}, "next": "e"},
            {"type": "end", "id": "e"},
        ],
    }
    async with Runtime("memory:", models=Models([]), services=registry.services()) as runtime:
        bound = await runtime.bind(runtime_load(graph), trusted=trusted)
    codes = [one.code for one in bound.diagnostics if one.severity == "error"]
    assert codes == ([] if trusted else ["E_UNKNOWN_SERVICE"])


def runtime_load(graph: dict[str, Any]) -> Any:
    from agentflow.definition.ir import canonical_json, decode_ir
    from agentflow.definition.loader import definition_of

    return definition_of(decode_ir(canonical_json(graph)))
