"""A request in Chinese that asks to see the plan first: it is reviewed, edited and executed.

    python examples/requests/review.py

Offline, a script stands in for the models of the stages. What runs is the edited plan: one step more, and a
check of the file. Both steps are calls of the toolset `file`, so that no delegate is asked.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from agentflow import Runtime
from agentflow.config import Config, ToolsetsConfig
from agentflow.pipeline.assembly import assemble
from agentflow.testing import ScriptedModel

TEXT = "幫我規劃一個寫週報的流程，先給我看"


async def main(folder: Path) -> None:
    """Print how the text is judged, the plan, and what became of it."""
    config = Config(
        store="memory:",
        pipeline={"workspace_roots": [str(folder)]},
        toolsets=ToolsetsConfig(enabled=("file",)),
    )
    parts = assemble(config)
    async with Runtime(config.store, models=[offline()], services=parts.services()) as runtime:
        accepted = await parts.requests(runtime).submit(TEXT)
        print("matched: ", accepted.activation.matched.intent, accepted.activation.matched.action)
        print("review:  ", accepted.activation.matched.review)
        assert accepted.run is not None
        run_id = accepted.run.workflow_id
        await accepted.run.rest()
        stored = await runtime.plan(run_id)
        print("proposed:", [step["id"] for step in stored.plan["steps"]], written(folder / run_id))
        steps: list[Any] = stored.plan["steps"]
        steps[0]["verification"] = {"headings": ["週報"], "contains": ["完成"]}
        copy = call_of("copy", "備份", "backup.md", "# 備份\n", depends_on=["report"])
        await runtime.edit_plan(
            run_id, {**stored.plan, "steps": [*steps, copy]}, plan_digest=stored.plan_digest
        )
        await runtime.execute(run_id)
        final = (await accepted.run.result()).output["final_output"]
        for step in final["steps"]:
            print("step:    ", step["step_id"], step["status"], step["verdict"])
        print("written: ", written(folder / run_id))
        print("status:  ", final["status"])


def written(workspace: Path) -> list[str]:
    """Return the names of the files of a workspace."""
    return sorted(path.name for path in workspace.glob("*.md"))


def call_of(id: str, title: str, path: str, content: str, *, depends_on: Any = ()) -> dict[str, Any]:
    """Return a step that is one call."""
    return {
        "id": id,
        "title": title,
        "action": f"寫 {path}",
        "owner": "tool",
        "depends_on": list(depends_on),
        "toolsets": ["file"],
        "expected_artifacts": [path],
        "call": {"tool": "file.write", "parameters": {"path": path, "content": content}},
    }


def offline() -> ScriptedModel:
    """Stages 1 and 2."""
    model = ScriptedModel(name="offline")
    normalized = {
        "status": "ready",
        "objective": "寫一份週報",
        "constraints": [],
        "context": {},
        "success_criteria": ["有標題"],
        "blockers": [],
    }
    report = call_of("report", "週報", "report.md", "# 週報\n\n- 完成\n")
    plan = {
        "status": "ready",
        "summary": "寫週報",
        "steps": [report],
        "risks": [],
        "artifacts": ["report.md"],
        "blockers": [],
    }
    model.add([normalized], when="You turn a request")
    model.add([plan], when="You plan.")
    return model


if __name__ == "__main__":
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
