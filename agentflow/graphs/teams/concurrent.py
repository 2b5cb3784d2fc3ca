"""A concurrent team: all participants work on the task at once, and one function makes one result of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.executors import Executor, handler
from agentflow.graphs.agents import AgentResponse, Message
from agentflow.graphs.cases import NodeFailure
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.builder import TeamBuilder, at_least, one_of
from agentflow.graphs.teams.members import Member, Said, call_function, output_of
from agentflow.graphs.teams.team import TeamContext, TeamExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["ConcurrentBuilder"]

Aggregator = Callable[[list[AgentResponse]], Any]


class _ConcurrentTeam(TeamExecutor):
    shared = ("aggregator",)

    def __init__(
        self,
        id: str,
        members: Sequence[Member],
        reviewed: frozenset[str],
        aggregator: Aggregator | str | None,
        max_in_flight: int,
    ) -> None:
        super().__init__(id, members, reviewed)
        self.aggregator = aggregator
        self.max_in_flight = max_in_flight

    async def begin(self, ctx: TeamContext) -> None:
        begun = min(self.max_in_flight, len(self.members))
        ctx.set_state("begun", begun)
        ctx.set_state("task", self.conversation(ctx))
        for member in self.members[:begun]:
            await self.tell(member.id, self.conversation(ctx), ctx)

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        self.count_round(ctx)
        await self._settle(member, response, ctx)

    @handler
    async def on_failure(self, failure: NodeFailure, ctx: TeamContext) -> None:
        """Keep the slot of a participant that failed; its data says why."""
        member = ctx.source_executor_ids[0]
        ctx.set_state("failed", [*ctx.get_state("failed", []), member])
        error = {"code": failure.error.code, "message": failure.error.message}
        await self._settle(member, AgentResponse(data={"error": error}), ctx)

    async def _settle(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        """Fill the slot of a participant, and have the next one begin or all answers put together."""
        answers: dict[str, AgentResponse] = {**ctx.get_state("answers", {}), member: response}
        ctx.set_state("answers", answers)
        begun = ctx.get_state("begun", 0)
        if begun < len(self.members):
            ctx.set_state("begun", begun + 1)
            task: list[Message] = ctx.get_state("task", [])
            await self.tell(self.members[int(begun)].id, task, ctx)
        elif len(answers) == len(self.members):
            await self._aggregate(answers, ctx)

    async def _aggregate(self, answers: dict[str, AgentResponse], ctx: TeamContext) -> None:
        responses = [answers[member.id] for member in self.members]
        self.add([said for response in responses for said in response.messages], ctx)
        if isinstance(self.aggregator, str):
            await ctx.send_message(responses, self.aggregator)
        elif self.aggregator is not None:
            output = await call_function(self.aggregator, responses)
            await self.finish(msgspec.to_builtins(output), "completed", ctx)
        else:
            failed: list[str] = ctx.get_state("failed", [])
            slots = [None if m.id in failed else output_of(answers[m.id]) for m in self.members]
            await self.finish(slots, "completed", ctx)


class _AggregatedTeam(_ConcurrentTeam):
    """A concurrent team whose aggregator is an executor, which may send anything."""

    def can_handle(self, data: Any) -> bool:
        """Return whether `data` is a task: what only the aggregator sends is none."""
        if isinstance(data, list):
            return bool(data) and all(isinstance(item, Message) for item in data)  # type: ignore[reportUnknownVariableType]
        return isinstance(data, str | Message | AgentResponse)

    async def receive(self, source: str, said: Said, ctx: TeamContext) -> None:
        if source == self.aggregator:
            await self.on_aggregated(said, ctx)
        else:
            await super().receive(source, said, ctx)

    @handler
    async def on_aggregated(self, output: Any, ctx: TeamContext) -> None:
        """Give out what the executor that aggregates made."""
        source = "".join(ctx.source_executor_ids[:1])
        if source != self.aggregator:
            raise TypeError(f"{source or 'the caller'} sends {type(output).__name__}, which is no answer")
        if isinstance(output, AgentResponse):
            output = output_of(output)
        await self.finish(msgspec.to_builtins(output), "completed", ctx)


class ConcurrentBuilder(TeamBuilder):
    """All participants at once, `max_in_flight` of them at most. The output is the list of their answers in
    the order of the participants, or what `aggregator` makes of them: a function of list[AgentResponse], or
    an executor that takes it and returns the output.

    `on_error`: a participant that fails fails the run, or with `collect` leaves null in its slot; an
    aggregator gets an AgentResponse without messages then, whose data is {"error": {code, message}}.
    """

    kind = "concurrent"

    def __init__(
        self,
        participants: Sequence[NodeArgument],
        *,
        aggregator: Aggregator | Executor | None = None,
        on_error: Literal["fail", "collect"] = "fail",
        max_in_flight: int = 8,
        **more: Any,
    ) -> None:
        super().__init__(participants, **more)
        at_least(1, max_in_flight=max_in_flight)
        one_of(("fail", "collect"), on_error=on_error)
        if isinstance(aggregator, Executor) and aggregator.id in {member.id for member in self.members}:
            raise ConfigurationError(f'the aggregator and a participant have the id "{aggregator.id}"')
        self._aggregator = aggregator
        self._on_error = on_error
        self._max_in_flight = max_in_flight

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        aggregator = self._aggregator
        if isinstance(aggregator, Executor):
            id = self.unused_id(self.kind, [aggregator.id])
            team = _AggregatedTeam(id, self.members, self._reviewed, aggregator.id, self._max_in_flight)
            builder = self.graph(team, [aggregator])
        else:
            id = self.unused_id(self.kind)
            team = _ConcurrentTeam(id, self.members, self._reviewed, aggregator, self._max_in_flight)
            builder = self.graph(team)
        if self._on_error == "collect":
            for member in self.members:
                builder.add_error_edge(member.node, team)
        return builder.build()
