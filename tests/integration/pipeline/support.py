"""Requests against a stand-in model: its lanes are the stages and the delegate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from agentflow import Runtime
from agentflow.events.log import Append, EventLog
from agentflow.events.memory import MemoryLog
from agentflow.events.rows import RunMeta, StoredEvent
from agentflow.pipeline.requests import Requests
from agentflow.pipeline.settings import PipelineSettings
from agentflow.testing import ScriptedModel
from agentflow.tools import Service, ToolContext, function

__all__ = [
    "Desk",
    "asked",
    "delegate_of",
    "done",
    "model_of",
    "normalized",
    "plan",
    "requests_of",
    "restored",
    "step",
]

NORMALIZER, PLANNER, DELEGATE = "You turn a request", "You plan.", "You do one step"


def normalized(**more: Any) -> dict[str, Any]:
    """An answer of stage 1."""
    base = {"status": "ready", "objective": "Mail a digest", "constraints": ["short"], "context": {}}
    return {**base, "success_criteria": [], "blockers": [], **more}


def step(id: str, *depends_on: str, toolsets: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """A step of a plan."""
    base = {"id": id, "title": id.upper(), "action": f"do {id}", "owner": "agent"}
    return {**base, "depends_on": list(depends_on), "toolsets": list(toolsets), **more}


def plan(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer of stage 2."""
    base = {"status": "ready", "summary": "the plan", "risks": [], "artifacts": [], "blockers": []}
    return {**base, "steps": list(steps), **more}


def done(step_id: str, **more: Any) -> dict[str, Any]:
    """A result of the delegate."""
    return {"step_id": step_id, "status": "done", "output": f"{step_id} is done", "error": None, **more}


def step_of(request: Any) -> str:
    """The step that a request to the model is about."""
    asked = next(m for m in request.messages if m.role == "user")
    return msgspec.json.decode(asked.content)["step_id"]


def delegate_of(answer: Callable[[str, Any], Any] | None = None) -> Callable[[Any], Any]:
    """A delegate that answers by step, so that the order of siblings does not matter."""

    def reply(request: Any) -> Any:
        step_id = step_of(request)
        return done(step_id) if answer is None else answer(step_id, request)

    return reply


def model_of(
    plan: Any = None, delegate: Callable[[str, Any], Any] | None = None, *, normal: Any = None
) -> ScriptedModel:
    """A model with a script for each stage; one answer may be a list of answers."""
    model = ScriptedModel()
    model.add(_list(normal or normalized()), when=NORMALIZER)
    if plan is not None:
        model.add(plan if callable(plan) else _list(plan), when=PLANNER)
    model.add(delegate_of(delegate), when=DELEGATE)
    return model


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def asked(model: ScriptedModel, stage: str) -> int:
    """How many requests of one stage the model got."""
    return sum(any(m.role == "system" and stage in m.content for m in r.messages) for r in model.requests)


class Desk:
    """Two services, whose calls are counted: `files` writes, `messaging` sends."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def services(self) -> list[Service]:
        @function(side_effect="write")
        def note(text: str, ctx: ToolContext) -> dict[str, Any]:
            """Write a note."""
            self.calls.append(f"note {text}")
            return {"written": len(text)}

        @function(side_effect="external")
        def send(to: str, body: str, ctx: ToolContext) -> dict[str, Any]:
            """Send a mail."""
            self.calls.append(f"send {to}")
            return {"message_id": f"<{len(self.calls)}@desk>", "to": to}

        return [Service.of("files", note), Service.of("messaging", send)]


def requests_of(runtime: Runtime, root: Any, **settings: Any) -> Requests:
    """Requests whose workspaces lie below `root`."""
    return Requests(runtime, PipelineSettings(workspace_roots=(str(root),), **settings))


async def restored(run_id: str, log: EventLog, rows: list[StoredEvent]) -> MemoryLog:
    """A log that ends behind these events, as a process leaves it that dies there."""
    cut, row = MemoryLog(), await log.run(run_id)
    source = await log.get_definition(row.definition_hash)
    assert source is not None
    await cut.put_definition(row.definition_hash, source)
    labels = {"agentflow.format": "pipeline"}
    meta = RunMeta(
        name="request", definition_hash=row.definition_hash, created_at=rows[0].ts, labels=labels, owner=None
    )
    await cut.append(Append(run_id, 1, 0, rows, "running", meta))
    owner = (await cut.run(run_id)).owner
    assert owner is not None
    await cut.release(run_id, owner)
    return cut
