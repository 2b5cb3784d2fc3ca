"""Graphs written in Python: the builder, the workflows that it makes, and their runs (page 002).

    WorkflowBuilder(name) … .build()   every mistake at once, else a Workflow
    Workflow                           run, stream, answer, resume, checkpoints, forks, drawings
    GraphRun                           one run of it

Lowers to the IR of `definition` and runs on `runtime`; it schedules nothing itself.
"""

from __future__ import annotations

from agentflow.graphs.agents import Agent, AgentExecutor, AgentResponse, Message
from agentflow.graphs.as_agent import WorkflowAgent
from agentflow.graphs.builder import WorkflowBuilder
from agentflow.graphs.cases import Case, Default, NodeFailure
from agentflow.graphs.checkpoints import Edits
from agentflow.graphs.homes import close_runtimes
from agentflow.graphs.requests import RequestInfoExecutor
from agentflow.graphs.results import PendingRequest
from agentflow.graphs.run import GraphRun
from agentflow.graphs.subworkflows import SubWorkflowRequest, SubWorkflowResponse, WorkflowExecutor
from agentflow.graphs.views import (
    RequestInfoEvent,
    WorkflowEvent,
    WorkflowFailedEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
)
from agentflow.graphs.workflow import Workflow
from agentflow.records.checkpoints import Checkpoint
from agentflow.records.runs import RunResult as WorkflowRunResult

__all__ = [
    "Agent",
    "AgentExecutor",
    "AgentResponse",
    "Case",
    "Checkpoint",
    "Default",
    "Edits",
    "GraphRun",
    "Message",
    "NodeFailure",
    "PendingRequest",
    "RequestInfoEvent",
    "RequestInfoExecutor",
    "SubWorkflowRequest",
    "SubWorkflowResponse",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowEvent",
    "WorkflowExecutor",
    "WorkflowFailedEvent",
    "WorkflowOutputEvent",
    "WorkflowRunResult",
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "close_runtimes",
]
