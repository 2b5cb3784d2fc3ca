"""What a person is asked about a call that may have happened without a recorded result (page 000 §11).

The question is the same for functions that agents, tool nodes and handlers call.
"""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.decisions import Decisions, scope_fields, step_fields
from agentflow.engine.ids import derive
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["ask_outcome"]


def ask_outcome(state: RunState, activation: Activation, record: ToolRecord, now: int) -> Decisions:
    """Ask a person what came of a call that may have happened; the activation waits for the answer."""
    question = ev.InputRequested(
        **scope_fields(activation),
        request_id=derive("req_", now, state.workflow_id, record.call.id, record.tries),
        request_type="outcome_unknown",
        request={
            "tool_call_id": record.call.id,
            "tool_name": record.name,
            "parameters": record.parameters,
            "message": f"{record.name} may have been executed; its result was not recorded",
        },
        response_schema={
            "type": "object",
            "properties": {"choice": {"enum": ["retry", "done", "fail"]}, "output": True},
            "required": ["choice"],
            "additionalProperties": False,
        },
    )
    waits = ev.WorkflowStepWaiting(**step_fields(activation), for_="input", ref=question.request_id)
    return [question, waits]
