"""A team whose agents hand the conversation over to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.executors import response_handler
from agentflow.graphs.agents import AgentExecutor, AgentResponse, Message
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.builder import TeamBuilder, at_least
from agentflow.graphs.teams.members import Member, find_speaker, output_of, text_of
from agentflow.graphs.teams.team import TeamContext, TeamExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["HandoffBuilder", "HandoffRequest"]

_GO_ON = "Go on with the task, or hand the conversation over."


class HandoffRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the person the team works for: what the participant said. The answer is text; empty text
    ends the conversation."""

    participant: str
    text: str
    messages: list[Message]


class _HandoffTeam(TeamExecutor):
    def __init__(
        self,
        id: str,
        members: Sequence[Member],
        reviewed: frozenset[str],
        start: str,
        targets: Mapping[str, Sequence[str]],
        turn_limit: int,
        *,
        autonomous: bool,
    ) -> None:
        super().__init__(id, members, reviewed)
        self.start = start
        self.agents = frozenset(m.id for m in members if isinstance(m.node, AgentExecutor))
        self.targets = {source: tuple(ids) for source, ids in targets.items()}
        self.turn_limit = turn_limit
        self.autonomous = autonomous

    async def begin(self, ctx: TeamContext) -> None:
        await self.tell(self.start, self.conversation(ctx), ctx)

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        wanted = _target(response, is_agent=member in self.agents)
        target = None if wanted is None else self._find_target(member, wanted)
        said = response.messages if target is None else _without_call(response.messages)
        conversation = self.add(said, ctx)
        output = output_of(response) if target is None else response.text
        if output or target is None:
            ctx.set_state("output", output)
        self.count_round(ctx)
        if target is None and not self.autonomous:
            request = HandoffRequest(participant=member, text=response.text, messages=conversation)
            await ctx.request_info(request, str)
        elif self._is_last_turn(ctx):
            await self.finish(ctx.get_state("output"), "turn_limit", ctx)
        elif target is not None:
            await self.tell(target, conversation, ctx)
        else:
            await self.tell(member, [*conversation, Message("user", _GO_ON)], ctx)

    def _find_target(self, member: str, wanted: str) -> str:
        allowed = [other for other in self.members if other.id in self.targets[member]]
        return find_speaker(wanted, allowed, f"the hand-overs of {member}").id

    def _is_last_turn(self, ctx: TeamContext) -> bool:
        """Count a turn; return whether it was the last one that the limit leaves before a person speaks."""
        turns = ctx.get_state("turns", 0) + 1
        ctx.set_state("turns", turns)
        return turns >= self.turn_limit

    @response_handler
    async def on_person(self, request: HandoffRequest, answer: str, ctx: TeamContext) -> None:
        """Go on with what the person says."""
        if not answer.strip():
            await self.finish(ctx.get_state("output"), "completed", ctx)
            return
        ctx.set_state("turns", 0)
        await self.tell(request.participant, self.add([Message("user", answer)], ctx), ctx)


def _target(response: AgentResponse, *, is_agent: bool) -> str | None:
    """Return the participant to whom an answer hands over, if it does.

    The engine writes both keys for an agent, whose own schema may have one of them; an executor may leave
    out the message.
    """
    data: Any = response.data
    if not isinstance(data, dict):
        return None
    data = cast("dict[str, Any]", data)
    if not data.keys() <= {"handoff_to", "message"} or (is_agent and len(data) < 2):
        return None
    target = data.get("handoff_to")
    return target if isinstance(target, str) else None


def _without_call(messages: Sequence[Message]) -> list[Message]:
    """Return what was said at a hand-over; the call itself is told to no agent."""
    return [
        msgspec.structs.replace(message, data=None)
        for message in messages
        if message.text.strip() and message.text != text_of(message.data)
    ]


class HandoffBuilder(TeamBuilder):
    """Agents that hand over by the function `handoff_to_<id>`, which takes an optional `message`; the next
    one sees the whole conversation. Without `add_handoff` each may hand over to every other.

    An answer without a hand-over is a request to a person (HandoffRequest), whose answer goes to the same
    participant; an empty one ends the conversation. `autonomous`: the participant is told to go on instead.
    `turn_limit` bounds the answers since a person spoke. An executor hands over with
    AgentResponse(data={"handoff_to": id}).
    """

    kind = "handoff"

    def __init__(
        self,
        participants: Sequence[NodeArgument],
        *,
        start: NodeArgument,
        autonomous: bool = False,
        turn_limit: int = 10,
        **more: Any,
    ) -> None:
        super().__init__(participants, **more)
        at_least(1, turn_limit=turn_limit)
        self._start = self.find(start).id
        self._autonomous = autonomous
        self._turn_limit = turn_limit
        self._ways: dict[str, list[str]] = {}

    def add_handoff(self, source: NodeArgument, *targets: NodeArgument) -> HandoffBuilder:
        """Let `source` hand over to these participants, and to no others but those of further calls.

        Raises ConfigurationError for who takes no part, and for a hand-over to oneself.
        """
        giver = self.find(source).id
        takers = [self.find(target).id for target in targets]
        if not takers:
            raise ConfigurationError(f'add_handoff of "{giver}" names no targets')
        if giver in takers:
            raise ConfigurationError(f'"{giver}" cannot hand over to itself')
        self._ways.setdefault(giver, []).extend(takers)
        return self

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        targets = {member.id: self._targets(member) for member in self.members}
        team = _HandoffTeam(
            self.unused_id(self.kind),
            self.members,
            self._reviewed,
            self._start,
            {source: [other.id for other in others] for source, others in targets.items()},
            self._turn_limit,
            autonomous=self._autonomous,
        )
        members = [_offering(member, targets[member.id]) for member in self.members]
        return self.graph(team, members=members).build()

    def _targets(self, member: Member) -> list[Member]:
        """Return those to whom a participant may hand over."""
        allowed = self._ways.get(member.id, []) if self._ways else [other.id for other in self.members]
        return [other for other in self.members if other.id in allowed and other.id != member.id]


def _offering(member: Member, targets: Sequence[Member]) -> Member:
    """Return a participant with the functions by which it may hand over."""
    if not isinstance(member.node, AgentExecutor):
        return member
    agent = member.node.agent.with_handoffs({o.id: o.description or o.name for o in targets})
    return msgspec.structs.replace(member, node=AgentExecutor(agent, member.node.id))
