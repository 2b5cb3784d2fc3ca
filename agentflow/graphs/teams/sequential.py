"""A sequential team: each participant works on what those before it said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentflow.graphs.agents import AgentResponse
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.builder import TeamBuilder, one_of
from agentflow.graphs.teams.members import Member, output_of
from agentflow.graphs.teams.team import TeamContext, TeamExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["SequentialBuilder"]

History = Literal["conversation", "last"]


class _SequentialTeam(TeamExecutor):
    def __init__(
        self, id: str, members: Sequence[Member], reviewed: frozenset[str], history: History
    ) -> None:
        super().__init__(id, members, reviewed)
        self.history = history

    async def begin(self, ctx: TeamContext) -> None:
        await self.tell(self.members[0].id, self.conversation(ctx), ctx)

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        said = self.add(response.messages, ctx)
        done = self.count_round(ctx)
        if done == len(self.members):
            await self.finish(output_of(response), "completed", ctx)
            return
        told = said if self.history == "conversation" else response.messages
        await self.tell(self.members[done].id, told, ctx)


class SequentialBuilder(TeamBuilder):
    """A chain of participants: each sees the conversation so far, or with `history="last"` only the answer
    before its own. The output is the last answer."""

    kind = "sequential"

    def __init__(
        self, participants: Sequence[NodeArgument], *, history: History = "conversation", **more: Any
    ) -> None:
        super().__init__(participants, **more)
        one_of(("conversation", "last"), history=history)
        self._history: History = history

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        team = _SequentialTeam(self.unused_id(self.kind), self.members, self._reviewed, self._history)
        return self.graph(team).build()
