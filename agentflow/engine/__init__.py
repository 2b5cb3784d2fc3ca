"""The engine: a run is `fold(evolve, events)`, and `decide` says what happens next.

Pure: no clock, no randomness, no I/O, no await. Whoever drives it passes times and draws as data, makes
events durable before acting on them, and carries out the calls that they open.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentflow.engine.bindings import Bindings, ModelTerms, StepBinding, ToolInfo
from agentflow.engine.caching import CacheHit, Lookup, looked_up, result_key
from agentflow.engine.deadlines import (
    cancel_finished,
    expire,
    interrupted,
    next_due,
    resume_is_due,
    unit_lost,
)
from agentflow.engine.decide import decide
from agentflow.engine.evolve import evolve
from agentflow.engine.forking import BaseEvent, base_of, cut_of
from agentflow.engine.plan import Plan, compile_plan
from agentflow.engine.respond import (
    attempt_failed,
    model_completed,
    model_failed,
    tool_completed,
    tool_failed,
)
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine import commands

__all__ = [
    "BaseEvent",
    "Bindings",
    "CacheHit",
    "Lookup",
    "ModelTerms",
    "Plan",
    "RunState",
    "StepBinding",
    "ToolInfo",
    "attempt_failed",
    "base_of",
    "cancel_finished",
    "commands",
    "compile_plan",
    "cut_of",
    "decide",
    "evolve",
    "expire",
    "interrupted",
    "looked_up",
    "model_completed",
    "model_failed",
    "next_due",
    "result_key",
    "resume_is_due",
    "tool_completed",
    "tool_failed",
    "unit_lost",
]


def __getattr__(name: str) -> Any:
    if name != "commands":  # imported when the first command is obeyed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.commands")
