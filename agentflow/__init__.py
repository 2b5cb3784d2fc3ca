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
    from agentflow import reducers
    from agentflow.client import Client, SyncClient
    from agentflow.definition.diagnostics import DiagnosticCode
    from agentflow.definition.loader import Definition, check_file, load_file, load_text
    from agentflow.definition.normal_form import (
        validate_and_normalize,
        verify_yaml_workflow,
        workflow_to_mermaid,
        yaml_workflow_to_ir,
    )
    from agentflow.definition.policy import Backoff, RetryPolicy
    from agentflow.errors import (
        AgentflowError,
        CheckpointNotFound,
        DefinitionError,
        GraphSignatureMismatch,
        InvalidEdit,
        InvalidOutput,
        UnknownSpeaker,
        WorkflowCancelled,
        WorkflowFailed,
        WorkflowValidationError,
    )
    from agentflow.evals.runner import run_eval
    from agentflow.events.log import EventLog
    from agentflow.executors import (
        Executor,
        ModelAnswer,
        Never,
        WorkflowContext,
        executor,
        handler,
        register_type,
        response_handler,
    )
    from agentflow.graphs import (
        Agent,
        AgentExecutor,
        AgentResponse,
        Case,
        Checkpoint,
        Default,
        Edits,
        GraphRun,
        Message,
        NodeFailure,
        PendingRequest,
        RequestInfoEvent,
        RequestInfoExecutor,
        SubWorkflowRequest,
        SubWorkflowResponse,
        Workflow,
        WorkflowAgent,
        WorkflowBuilder,
        WorkflowExecutor,
        WorkflowFailedEvent,
        WorkflowOutputEvent,
        WorkflowRunResult,
        WorkflowStartedEvent,
        WorkflowStatusEvent,
    )
    from agentflow.graphs.teams import (
        ConcurrentBuilder,
        GroupChatBuilder,
        GroupChatState,
        HandoffBuilder,
        HandoffRequest,
        MagenticBuilder,
        PlanDecision,
        PlanReview,
        SequentialBuilder,
        TeamResult,
        TeamReview,
    )
    from agentflow.records.trace_check import inspect_replay_trace, replay_trace
    from agentflow.runtime import RunHandle, RunRecord, RunResult, Runtime
    from agentflow.tools import Service, ToolContext, function

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentExecutor",
    "AgentResponse",
    "AgentflowError",
    "Backoff",
    "Case",
    "Checkpoint",
    "CheckpointNotFound",
    "Client",
    "ConcurrentBuilder",
    "Default",
    "Definition",
    "DefinitionError",
    "DiagnosticCode",
    "Edits",
    "EventLog",
    "Executor",
    "GraphRun",
    "GraphSignatureMismatch",
    "GroupChatBuilder",
    "GroupChatState",
    "HandoffBuilder",
    "HandoffRequest",
    "InvalidEdit",
    "InvalidOutput",
    "MagenticBuilder",
    "Message",
    "ModelAnswer",
    "Never",
    "NodeFailure",
    "PendingRequest",
    "PlanDecision",
    "PlanReview",
    "RequestInfoEvent",
    "RequestInfoExecutor",
    "RetryPolicy",
    "RunHandle",
    "RunRecord",
    "RunResult",
    "Runtime",
    "SequentialBuilder",
    "Service",
    "SubWorkflowRequest",
    "SubWorkflowResponse",
    "SyncClient",
    "TeamResult",
    "TeamReview",
    "ToolContext",
    "UnknownSpeaker",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowCancelled",
    "WorkflowContext",
    "WorkflowExecutor",
    "WorkflowFailed",
    "WorkflowFailedEvent",
    "WorkflowOutputEvent",
    "WorkflowRunResult",
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "WorkflowValidationError",
    "check_file",
    "executor",
    "function",
    "handler",
    "inspect_replay_trace",
    "load_file",
    "load_text",
    "reducers",
    "register_type",
    "replay_trace",
    "response_handler",
    "run_eval",
    "validate_and_normalize",
    "verify_yaml_workflow",
    "workflow_to_mermaid",
    "yaml_workflow_to_ir",
]

_HOMES = {
    "Agent": "graphs",
    "AgentExecutor": "graphs",
    "AgentResponse": "graphs",
    "AgentflowError": "errors",
    "Backoff": "definition.policy",
    "Case": "graphs",
    "Checkpoint": "graphs",
    "CheckpointNotFound": "errors",
    "Client": "client",
    "ConcurrentBuilder": "graphs.teams",
    "Default": "graphs",
    "Definition": "definition.loader",
    "DefinitionError": "errors",
    "DiagnosticCode": "definition.diagnostics",
    "Edits": "graphs",
    "EventLog": "events.log",
    "Executor": "executors",
    "GraphRun": "graphs",
    "GraphSignatureMismatch": "errors",
    "GroupChatBuilder": "graphs.teams",
    "GroupChatState": "graphs.teams",
    "HandoffBuilder": "graphs.teams",
    "HandoffRequest": "graphs.teams",
    "InvalidEdit": "errors",
    "InvalidOutput": "errors",
    "MagenticBuilder": "graphs.teams",
    "Message": "graphs",
    "ModelAnswer": "executors",
    "Never": "executors",
    "NodeFailure": "graphs",
    "PendingRequest": "graphs",
    "PlanDecision": "graphs.teams",
    "PlanReview": "graphs.teams",
    "RequestInfoEvent": "graphs",
    "RequestInfoExecutor": "graphs",
    "RetryPolicy": "definition.policy",
    "RunHandle": "runtime",
    "RunRecord": "runtime",
    "RunResult": "runtime",
    "Runtime": "runtime",
    "SequentialBuilder": "graphs.teams",
    "Service": "tools",
    "SubWorkflowRequest": "graphs",
    "SubWorkflowResponse": "graphs",
    "SyncClient": "client",
    "TeamResult": "graphs.teams",
    "TeamReview": "graphs.teams",
    "ToolContext": "tools",
    "UnknownSpeaker": "errors",
    "Workflow": "graphs",
    "WorkflowAgent": "graphs",
    "WorkflowBuilder": "graphs",
    "WorkflowCancelled": "errors",
    "WorkflowContext": "executors",
    "WorkflowExecutor": "graphs",
    "WorkflowFailed": "errors",
    "WorkflowFailedEvent": "graphs",
    "WorkflowOutputEvent": "graphs",
    "WorkflowRunResult": "graphs",
    "WorkflowStartedEvent": "graphs",
    "WorkflowStatusEvent": "graphs",
    "WorkflowValidationError": "errors",
    "check_file": "definition.loader",
    "executor": "executors",
    "function": "tools",
    "handler": "executors",
    "inspect_replay_trace": "records.trace_check",
    "load_file": "definition.loader",
    "load_text": "definition.loader",
    "register_type": "executors",
    "replay_trace": "records.trace_check",
    "response_handler": "executors",
    "run_eval": "evals.runner",
    "validate_and_normalize": "definition.normal_form",
    "verify_yaml_workflow": "definition.normal_form",
    "workflow_to_mermaid": "definition.normal_form",
    "yaml_workflow_to_ir": "definition.normal_form",
}


def __getattr__(name: str) -> Any:
    if name == "reducers":
        return importlib.import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
