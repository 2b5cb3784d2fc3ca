"""agentflow: an actor-model runtime for AI-agent workflows that must not lose work.

    from agentflow import Runtime

    async with Runtime("sqlite:runs.db") as runtime:
        result = await runtime.run("triage.yaml", {"ticket": "The invoice is wrong."})

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.client import Client, SyncClient
    from agentflow.definition.loader import Definition, check_file, load_file, load_text
    from agentflow.errors import (
        AgentflowError,
        DefinitionError,
        InvalidOutput,
        WorkflowCancelled,
        WorkflowFailed,
    )
    from agentflow.runtime import RunHandle, RunRecord, RunResult, Runtime
    from agentflow.tools import Service, ToolContext, function

__version__ = "0.1.0"

__all__ = [
    "AgentflowError",
    "Client",
    "Definition",
    "DefinitionError",
    "InvalidOutput",
    "RunHandle",
    "RunRecord",
    "RunResult",
    "Runtime",
    "Service",
    "SyncClient",
    "ToolContext",
    "WorkflowCancelled",
    "WorkflowFailed",
    "check_file",
    "function",
    "load_file",
    "load_text",
]

_HOMES = {
    "AgentflowError": "errors",
    "Client": "client",
    "Definition": "definition.loader",
    "DefinitionError": "errors",
    "InvalidOutput": "errors",
    "RunHandle": "runtime",
    "RunRecord": "runtime",
    "RunResult": "runtime",
    "Runtime": "runtime",
    "Service": "tools",
    "SyncClient": "client",
    "ToolContext": "tools",
    "WorkflowCancelled": "errors",
    "WorkflowFailed": "errors",
    "check_file": "definition.loader",
    "function": "tools",
    "load_file": "definition.loader",
    "load_text": "definition.loader",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
