"""The engine: a run is `fold(evolve, events)`, and `decide` says what happens next.

Pure: no clock, no randomness, no I/O, no await. The caller passes times and draws as data, makes events
durable before acting on them, and carries out their effects (`effect_of`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentflow.engine.activation import Activation
from agentflow.engine.bindings import Bindings, BoundGraph, ModelTerms, StepBinding, ToolInfo
from agentflow.engine.caching import CacheHit, Lookup, result_key
from agentflow.engine.call_results import (
    attempt_failed,
    model_completed,
    model_failed,
    tool_completed,
    tool_failed,
)
from agentflow.engine.child_requests import request_message, takes_requests
from agentflow.engine.child_runs import (
    ChildReport,
    ChildRequest,
    awaits,
    child_request,
    open_children,
    report_of,
    reported,
)
from agentflow.engine.decide import Found, decide
from agentflow.engine.effects import (
    Effect,
    PassOn,
    Release,
    ReleaseIdle,
    StartCall,
    StartChild,
    StartHandler,
    answered_handler,
    effect_of,
    open_handlers,
)
from agentflow.engine.evolve import evolve
from agentflow.engine.graph import Graph, compile_graph
from agentflow.engine.handler_model_calls import model_call_begun, model_call_ended
from agentflow.engine.handler_results import (
    Question,
    handler_completed,
    handler_failed,
    handler_output,
    request_id_of,
    shared_of,
)
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.judging import Judgement
from agentflow.engine.kinds.kind import BindGraph, Looked, Probe
from agentflow.engine.limits import (
    activation_lost,
    cancel_finished,
    end_run,
    expire,
    interrupted,
    next_due,
    resume_is_due,
)
from agentflow.engine.messages import Outgoing, acceptance, offered
from agentflow.engine.plain_calls import complete_plain_call, has_more
from agentflow.engine.plain_handlers import complete_plain_handler
from agentflow.engine.recorded_calls import Begun, call_begun, call_ended, call_reported
from agentflow.engine.replay import BaseEvent, base_of, cut_of
from agentflow.engine.run_end import outputs_of
from agentflow.engine.shared_store import StoreAccess, answer_prefix
from agentflow.engine.state import OpenCall, RunState

if TYPE_CHECKING:
    from agentflow.engine import commands, plan_commands

__all__ = [
    "Activation",
    "BaseEvent",
    "Begun",
    "BindGraph",
    "Bindings",
    "BoundGraph",
    "CacheHit",
    "ChildReport",
    "ChildRequest",
    "Effect",
    "Found",
    "Graph",
    "IllegalEvent",
    "Judgement",
    "Looked",
    "Lookup",
    "ModelTerms",
    "OpenCall",
    "Outgoing",
    "PassOn",
    "Probe",
    "Question",
    "Release",
    "ReleaseIdle",
    "RunState",
    "StartCall",
    "StartChild",
    "StartHandler",
    "StepBinding",
    "StoreAccess",
    "ToolInfo",
    "acceptance",
    "activation_lost",
    "answer_prefix",
    "answered_handler",
    "attempt_failed",
    "awaits",
    "base_of",
    "call_begun",
    "call_ended",
    "call_reported",
    "cancel_finished",
    "child_request",
    "commands",
    "compile_graph",
    "complete_plain_call",
    "complete_plain_handler",
    "cut_of",
    "decide",
    "effect_of",
    "end_run",
    "evolve",
    "expire",
    "handler_completed",
    "handler_failed",
    "handler_output",
    "has_more",
    "interrupted",
    "model_call_begun",
    "model_call_ended",
    "model_completed",
    "model_failed",
    "next_due",
    "offered",
    "open_children",
    "open_handlers",
    "outputs_of",
    "plan_commands",
    "report_of",
    "reported",
    "request_id_of",
    "request_message",
    "result_key",
    "resume_is_due",
    "shared_of",
    "takes_requests",
    "tool_completed",
    "tool_failed",
]


def __getattr__(name: str) -> Any:
    if name not in ("commands", "plan_commands"):  # imported when the first command is obeyed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
