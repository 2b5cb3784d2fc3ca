"""Ready-made teams of agents: sequential, concurrent, group chat, hand-off, magentic (page 002 §11, §16).

Each is an ordinary graph: one node, the executor of the team, keeps the conversation and says who is next;
each participant is a node that it sends messages to and that answers it.
"""

from __future__ import annotations

from agentflow.graphs.teams.concurrent import ConcurrentBuilder
from agentflow.graphs.teams.group_chat import GroupChatBuilder, GroupChatState
from agentflow.graphs.teams.handoff import HandoffBuilder, HandoffRequest
from agentflow.graphs.teams.magentic import MagenticBuilder, PlanDecision, PlanReview
from agentflow.graphs.teams.sequential import SequentialBuilder
from agentflow.graphs.teams.team import TeamResult, TeamReview

__all__ = [
    "ConcurrentBuilder",
    "GroupChatBuilder",
    "GroupChatState",
    "HandoffBuilder",
    "HandoffRequest",
    "MagenticBuilder",
    "PlanDecision",
    "PlanReview",
    "SequentialBuilder",
    "TeamResult",
    "TeamReview",
]
