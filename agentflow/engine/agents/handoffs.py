"""Hand-overs between agents: functions that the engine offers, whose call ends the work (page 002 §11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agentflow.definition.ir import AgentSpec
from agentflow.engine.agents.conversation import parse
from agentflow.engine.bindings import ToolInfo

if TYPE_CHECKING:
    from agentflow.engine.agents.progress import AgentProgress

__all__ = ["PREFIX", "handed_over", "handoff_tools"]

PREFIX = "handoff_to_"

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What the next one should know."}},
    "additionalProperties": False,
}


def handoff_tools(spec: AgentSpec) -> dict[str, ToolInfo]:
    """Return a function for each of those to whom an agent may hand over, by name."""
    return {
        PREFIX + target: ToolInfo(
            name=PREFIX + target,
            service="",
            function=PREFIX + target,
            description=f"Hand the conversation over to {target}. {about}".rstrip(),
            input_schema=_SCHEMA,
            schema_hash=f"{PREFIX}{target}",
            side_effect="none",
            idempotent=True,
            timeout=60.0,
            declared=True,
        )
        for target, about in spec.handoffs.items()
    }


def handed_over(spec: AgentSpec, progress: AgentProgress) -> dict[str, Any] | None:
    """Return `{handoff_to, message}` if the last turn of an agent hands over; the first such call counts.

    Without a `message`, the text that stands beside the call is passed on, so that no words are lost.

    Other functions that the model calls in the same turn are not called: their results would reach no
    model. A call with wrong arguments is left to be refused like any other.
    """
    for record in progress.tools.values():
        target = record.name.removeprefix(PREFIX)
        if record.name == target or target not in spec.handoffs:
            continue
        text = record.call.arguments.strip()
        found, value = parse(text or "{}")
        given = cast("dict[str, Any]", value)
        if not found or not isinstance(value, dict):
            continue
        message = given.get("message")
        if set(given) <= {"message"} and (message is None or isinstance(message, str)):
            beside = progress.messages[-1].content.strip() if progress.messages else ""
            return {"handoff_to": target, "message": message or beside or None}
    return None
