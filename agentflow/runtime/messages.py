"""The base of all messages, and the table of their senders and receivers.

A message class stands in the module of its receiver; where that would be an import cycle, beside its sender.

| Message | module | sender | receiver |
|---|---|---|---|
| StartRun, Alarms | runs_supervisor | RunRegistry | RunsSupervisor |
| Overdue | runs_supervisor | its own timer | RunsSupervisor |
| KeepResult | result_cache | RunSupervisor | RunsSupervisor |
| Command and its subclasses | command_messages | RunRegistry | RunSupervisor |
| Done, Refusal | command_messages | RunSupervisor | RunRegistry, as the reply |
| Suspend | supervisor_messages | Runtime | RunSupervisor |
| Wake, SendAgain, WorkStopped | supervisor_messages | its own timers | RunSupervisor |
| CallNotMade | supervisor_messages | AgentActor | RunSupervisor |
| Answered, AskAgain | supervisor_messages | SharedStore's answers, its own timers | RunSupervisor |
| CheckAcknowledged, LogEnd, LookedUp | supervisor_messages | its own timers and reads | RunSupervisor |
| EdgesJudged | edge_judge | its own EdgeJudge | RunSupervisor |
| Handle | handler_calls | RunSupervisor (HandlerDispatcher) | ExecutorActor |
| HandlerDone, HandlerFailed | handler_calls | ExecutorActor | RunSupervisor |
| YieldOutput, AddEvent, BeginCall, EndCall | handler_calls | ExecutorActor (HandlerPort) | RunSupervisor |
| Commit, Barrier | event_bus | RunSupervisor, RunsSupervisor | EventBus |
| Republish | event_bus | RunSupervisor | EventBus |
| Committed, CommitFailed | event_bus | EventBus | the sender of the Commit |
| CallModel | model_calls | RunSupervisor (CallDispatcher) | AgentActor |
| Complete | model_calls | AgentActor | ModelActor |
| ForgetRefusal | model_calls | RunSupervisor (CallDispatcher) | ModelActor |
| ModelCallSuccess, ModelCallFailure | model_calls | ModelActor, through AgentActor | RunSupervisor |
| CallTool | tool_actor | RunSupervisor (CallDispatcher), AgentActor | AgentActor, ToolActor |
| CancelCall, CheckCalls | tool_actor | RunSupervisor (CallDispatcher) | ToolActor |
| CallsMissing | tool_actor | ToolActor | RunSupervisor |
| ToolCallSuccess, ToolCallFailure | tool_actor | ToolActor, also through AgentActor | RunSupervisor |
"""

from __future__ import annotations

import msgspec

__all__ = ["HANDLER_LIMIT_S", "Message"]

HANDLER_LIMIT_S = 10.0
"""Seconds after which a handler that awaits fails its actor. No handler here awaits: only a bug hangs."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The base of all messages."""
