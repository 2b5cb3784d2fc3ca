"""A group chat: a manager says who speaks next, and all participants see what was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.graphs.agents import Agent, AgentExecutor, AgentResponse, Message
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.builder import TeamBuilder, at_least
from agentflow.graphs.teams.members import Member, call_function, describe, output_of
from agentflow.graphs.teams.team import StopReason, TeamContext, TeamExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["GroupChatBuilder", "GroupChatState"]


class GroupChatState(msgspec.Struct, frozen=True, kw_only=True):
    """What a manager that is a function decides by. `round` counts answers, `participants` are ids."""

    messages: list[Message]
    round: int
    participants: list[str]
    last_speaker: str | None


Manager = Callable[[GroupChatState], Any]
Termination = Callable[[list[Message]], Any]

_CHOICE = {
    "type": "object",
    "properties": {
        "next": {"type": ["string", "null"], "description": "Id of the next speaker; null ends the chat."},
        "reason": {"type": "string"},
    },
    "required": ["next", "reason"],
    "additionalProperties": False,
}


_QUESTION = (
    "Decide who speaks next in this conversation. The participants are:\n{team}\n"
    "Answer with the id of one of them as next, or with null if the task is done."
)


class _GroupChat(TeamExecutor):
    shared = ("manager", "termination")

    def __init__(
        self,
        id: str,
        members: Sequence[Member],
        reviewed: frozenset[str],
        manager: Manager | str,
        max_rounds: int,
        termination: Termination | None,
    ) -> None:
        super().__init__(id, members, reviewed)
        self.manager = manager
        self.max_rounds = max_rounds
        self.termination = termination

    async def begin(self, ctx: TeamContext) -> None:
        await self._choose(ctx)

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        if member == self.manager:
            await self._speak(response.data["next"], ctx)
            return
        said = self.add(response.messages, ctx)
        rounds = self.count_round(ctx)
        ctx.set_state("last_speaker", member)
        ctx.set_state("output", output_of(response))
        if self.termination is not None and await call_function(self.termination, said):
            await self._end("termination", ctx)
        elif rounds >= self.max_rounds:
            await self._end("max_rounds", ctx)
        else:
            await self._choose(ctx)

    async def _choose(self, ctx: TeamContext) -> None:
        """Ask the manager who is next."""
        said = self.conversation(ctx)
        if isinstance(self.manager, str):
            question = Message("user", _QUESTION.format(team=describe(self.members)))
            await ctx.send_message([*said, question], self.manager)
            return
        state = GroupChatState(
            messages=said,
            round=ctx.get_state("rounds", 0),
            participants=[member.id for member in self.members],
            last_speaker=ctx.get_state("last_speaker"),
        )
        await self._speak(await call_function(self.manager, state), ctx)

    async def _speak(self, wanted: Any, ctx: TeamContext) -> None:
        if wanted is None:
            await self._end("completed", ctx)
        else:
            await self.tell(self.speaker(wanted).id, self.conversation(ctx), ctx)

    async def _end(self, reason: StopReason, ctx: TeamContext) -> None:
        await self.finish(ctx.get_state("output"), reason, ctx)


class GroupChatBuilder(TeamBuilder):
    """A conversation in rounds. After each answer: `termination(messages)` ends the chat, then `max_rounds`,
    then the manager picks the next speaker, who sees all that was said; null ends it.

    `manager` is an agent, which answers {next, reason}, or `fn(GroupChatState) -> str | None`; functions may
    be async. The output is the last answer. A speaker who takes no part fails the step: `unknown_speaker`.
    """

    kind = "group_chat"

    def __init__(
        self,
        participants: Sequence[NodeArgument],
        *,
        manager: Agent | AgentExecutor | Manager,
        max_rounds: int = 20,
        termination: Termination | None = None,
        **more: Any,
    ) -> None:
        super().__init__(participants, **more)
        at_least(1, max_rounds=max_rounds)
        if isinstance(manager, Agent | AgentExecutor):
            manager = self.find_manager(manager)
        elif not callable(manager):
            raise ConfigurationError(f"manager is a {type(manager).__name__}: pass an agent or a function")
        self._manager = manager
        self._max_rounds = max_rounds
        self._termination = termination

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        manager = self._manager
        nodes: list[AgentExecutor] = []
        if isinstance(manager, AgentExecutor):
            nodes = [AgentExecutor(manager.agent.with_output_schema(_CHOICE), manager.id)]
            manager = manager.id
        id = self.unused_id(self.kind, [node.id for node in nodes])
        team = _GroupChat(id, self.members, self._reviewed, manager, self._max_rounds, self._termination)
        return self.graph(team, nodes).build()
