"""The engine: a run is `fold(evolve, events)`, and `decide` says what happens next.

Pure: no clock, no randomness, no I/O, no await. Whoever drives it passes times and draws as data, makes
events durable before acting on them, and carries out the calls that they open.
"""

from agentflow.engine.bindings import Bindings, ModelTerms, StepBinding, ToolInfo
from agentflow.engine.deadlines import cancel_finished, interrupted, next_due, unit_lost
from agentflow.engine.decide import decide
from agentflow.engine.evolve import evolve
from agentflow.engine.plan import Plan, compile_plan
from agentflow.engine.respond import (
    attempt_failed,
    model_completed,
    model_failed,
    tool_completed,
    tool_failed,
)
from agentflow.engine.state import RunState

__all__ = [
    "Bindings",
    "ModelTerms",
    "Plan",
    "RunState",
    "StepBinding",
    "ToolInfo",
    "attempt_failed",
    "cancel_finished",
    "compile_plan",
    "decide",
    "evolve",
    "interrupted",
    "model_completed",
    "model_failed",
    "next_due",
    "tool_completed",
    "tool_failed",
    "unit_lost",
]
