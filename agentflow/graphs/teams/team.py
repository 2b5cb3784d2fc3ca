"""The executor that all teams share: it keeps the conversation, asks people, and gives out the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from agentflow.executors import Executor, WorkflowContext, handler, response_handler
from agentflow.graphs.agents import AgentResponse, Message
from agentflow.graphs.teams.members import Member, Said, answer_from, find_speaker, messages_in

__all__ = ["StopReason", "TeamContext", "TeamExecutor", "TeamResult", "TeamReview"]

StopReason = Literal["completed", "termination", "max_rounds", "turn_limit", "reset_limit"]


class TeamResult(msgspec.Struct, frozen=True, kw_only=True):
    """The one output of a team."""

    output: Any
    """Text, or the data of an agent with a schema; of a concurrent team what its aggregator made."""

    messages: list[Message]
    """The whole conversation, the task first."""

    stop_reason: StopReason
    """Why it ended; a limit is no error."""

    rounds: int
    """Number of answers; of a magentic team, of ledgers."""


class TeamReview(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a person about an answer, before the team goes on. An empty answer accepts it; other text
    is told to the participant, who answers again."""

    participant: str
    text: str
    response: AgentResponse
    messages: list[Message]


TeamContext: TypeAlias = WorkflowContext[list[Message] | list[AgentResponse], TeamResult]


class TeamExecutor(Executor):
    """Keeps the conversation of a team and says who is next. Subclasses override `begin` and `take`."""

    def __init__(self, id: str, members: Sequence[Member], reviewed: frozenset[str] = frozenset()) -> None:
        super().__init__(id, side_effect="none")
        self.members = tuple(msgspec.structs.replace(member, node=None, given=None) for member in members)
        self.reviewed = reviewed

    async def begin(self, ctx: TeamContext) -> None:
        """Do what comes first; the conversation holds the task."""
        raise NotImplementedError

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        """Do what follows from the answer of a participant. A person has accepted it, if one is asked."""
        raise NotImplementedError

    # -- messages ----------------------------------------------------------------------------------

    @handler
    async def on_said(self, said: Said, ctx: TeamContext) -> None:
        """Begin with a task, which no node sent, or take the answer of a participant."""
        if ctx.source_executor_ids:
            await self.receive(ctx.source_executor_ids[0], said, ctx)
            return
        ctx.set_state("conversation", messages_in(said))
        await self.begin(ctx)

    async def receive(self, source: str, said: Said, ctx: TeamContext) -> None:
        """Take what a node sent; ask a person about the answer first, if the participant is reviewed."""
        names = {member.id: member.name for member in self.members}
        response = answer_from(names.get(source, source), said)
        if source not in self.reviewed:
            await self.take(source, response, ctx)
            return
        review = TeamReview(
            participant=source, text=response.text, response=response, messages=self.conversation(ctx)
        )
        await ctx.request_info(review, str)

    @response_handler
    async def on_review(self, review: TeamReview, answer: str, ctx: TeamContext) -> None:
        """Accept an answer, or have it given again."""
        if not answer.strip():
            await self.take(review.participant, review.response, ctx)
            return
        said = [*review.response.messages, Message("user", answer)]
        self.add(said, ctx)
        told: list[Message] = ctx.get_state(f"told {review.participant}", [])
        await self.tell(review.participant, [*told, *said], ctx)

    # -- for the rules of a team -------------------------------------------------------------------

    async def tell(self, member: str, messages: list[Message], ctx: TeamContext) -> None:
        """Have a participant answer these messages; they are kept while a person may ask for more."""
        if member in self.reviewed:
            ctx.set_state(f"told {member}", messages)
        await ctx.send_message(messages, member)

    def conversation(self, ctx: TeamContext) -> list[Message]:
        """Return what was said so far."""
        return ctx.get_state("conversation", [])

    def add(self, messages: Iterable[Message], ctx: TeamContext) -> list[Message]:
        """Add to the conversation and return all of it."""
        said = [*self.conversation(ctx), *messages]
        ctx.set_state("conversation", said)
        return said

    def count_round(self, ctx: TeamContext) -> int:
        """Count one more answer and return how many there are."""
        rounds = ctx.get_state("rounds", 0) + 1
        ctx.set_state("rounds", rounds)
        return rounds

    async def finish(self, output: Any, reason: StopReason, ctx: TeamContext) -> None:
        """Give out the result of the team."""
        result = TeamResult(
            output=output,
            messages=self.conversation(ctx),
            stop_reason=reason,
            rounds=ctx.get_state("rounds", 0),
        )
        await ctx.yield_output(result)

    def speaker(self, wanted: Any) -> Member:
        """Return the participant of an id or name. Raises UnknownSpeaker."""
        return find_speaker(wanted, self.members, self.id)
