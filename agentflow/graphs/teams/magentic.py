"""A magentic team: a manager gathers facts, makes a plan, and checks after each answer whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.executors import response_handler
from agentflow.graphs.agents import Agent, AgentExecutor, AgentResponse, Message
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.builder import TeamBuilder, at_least
from agentflow.graphs.teams.members import Member, describe, output_of
from agentflow.graphs.teams.team import TeamContext, TeamExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["MagenticBuilder", "PlanDecision", "PlanReview"]


class PlanReview(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a person: the plan, before the team works by it."""

    plan: str


class PlanDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a PlanReview. With `revise` the plan is made again by the feedback, and asked about."""

    decision: Literal["approve", "revise"]
    feedback: str = ""


def _entry(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"answer": answer, "reason": {"type": "string"}},
        "required": ["answer", "reason"],
    }


_LEDGER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "is_request_satisfied": _entry({"type": "boolean"}),
        "is_in_loop": _entry({"type": "boolean"}),
        "is_progress_being_made": _entry({"type": "boolean"}),
        "next_speaker": _entry({"type": "string"}),
        "instruction_or_question": _entry({"type": "string"}),
    },
    "required": [
        *("is_request_satisfied", "is_in_loop", "is_progress_being_made"),
        *("next_speaker", "instruction_or_question"),
    ],
}

_FACTS = (
    "Before the work begins, write down what is known about this request: facts that it states, facts that"
    " must be looked up and where, facts that must be derived, and guesses. Write nothing else."
)
_PLAN = "The facts:\n{facts}\n\nThe team:\n{team}\n\nWrite a short plan of how the team answers the request."
_REVISE = "A person asks for another plan: {feedback}\nWrite the plan again."
_ASK_LEDGER = (
    "The facts:\n{facts}\n\nThe plan:\n{plan}\n\nThe team:\n{team}\n\nJudge where the work stands: is the"
    " request satisfied, does the team go in circles, does it make progress, who is to speak next (the id of"
    " one of the team), and what is that one to do or to answer? Give a reason for each."
)
_FINAL = "The work is done. Write the answer to the request for the person who made it."


class _Manager(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of the manager: one answers with text, one with ledgers, one with the final answer."""

    name: str
    text: AgentExecutor
    ledger: AgentExecutor
    final: AgentExecutor

    @property
    def nodes(self) -> list[AgentExecutor]:
        return [self.text, self.ledger, *([] if self.final is self.text else [self.final])]


class _MagenticTeam(TeamExecutor):
    def __init__(
        self,
        id: str,
        members: Sequence[Member],
        reviewed: frozenset[str],
        manager: _Manager,
        limits: tuple[int, int, int],
        review_plan: bool,
    ) -> None:
        super().__init__(id, members, reviewed)
        self.manager, self.manager_name = manager.text.id, manager.name
        self.ledger, self.final = manager.ledger.id, manager.final.id
        self.max_rounds, self.max_stalls, self.max_resets = limits
        self.review_plan = review_plan

    async def begin(self, ctx: TeamContext) -> None:
        await self._ask_facts(ctx)

    async def take(self, member: str, response: AgentResponse, ctx: TeamContext) -> None:
        if member == self.ledger:
            await self._judge(response.data, ctx)
        elif member in (self.manager, self.final):
            await self._managed(ctx.get_state("stage", ""), response, ctx)
        else:
            self.add(response.messages, ctx)
            ctx.set_state("output", output_of(response))
            await self._next_round(ctx)

    # -- facts and plan ----------------------------------------------------------------------------

    async def _ask_facts(self, ctx: TeamContext) -> None:
        ctx.set_state("stage", "facts")
        await self._ask(self.manager, [Message("user", _FACTS)], ctx)

    async def _managed(self, stage: str, response: AgentResponse, ctx: TeamContext) -> None:
        if stage == "facts":
            ctx.set_state("facts", response.text)
            question = _PLAN.format(facts=response.text, team=describe(self.members))
            await self._ask_plan([Message("user", question)], ctx)
        elif stage == "plan":
            ctx.set_state("plan", response.text)
            if self.review_plan:
                await ctx.request_info(PlanReview(plan=response.text), PlanDecision)
            else:
                await self._work(ctx)
        else:
            self.add(response.messages, ctx)
            await self.finish(output_of(response), "completed", ctx)

    async def _ask_plan(self, said: list[Message], ctx: TeamContext) -> None:
        """Ask for a plan; `said` is the question, with the plans before it and what was said of them."""
        ctx.set_state("stage", "plan")
        ctx.set_state("planning", said)
        await self._ask(self.manager, said, ctx)

    @response_handler
    async def on_decision(self, review: PlanReview, decision: PlanDecision, ctx: TeamContext) -> None:
        """Work by the plan, or have it made again."""
        if decision.decision == "approve":
            await self._work(ctx)
            return
        planning: list[Message] = ctx.get_state("planning", [])
        plan = Message("assistant", review.plan, self.manager_name)
        feedback = Message("user", _REVISE.format(feedback=decision.feedback))
        await self._ask_plan([*planning, plan, feedback], ctx)

    async def _work(self, ctx: TeamContext) -> None:
        """Tell the team the plan, and begin."""
        ctx.set_state("stage", "work")
        self.add([Message("assistant", ctx.get_state("plan", ""), self.manager_name)], ctx)
        await self._next_round(ctx)

    # -- rounds ------------------------------------------------------------------------------------

    async def _next_round(self, ctx: TeamContext) -> None:
        if ctx.get_state("rounds", 0) >= self.max_rounds:
            await self.finish(ctx.get_state("output"), "max_rounds", ctx)
            return
        self.count_round(ctx)
        facts, plan = ctx.get_state("facts", ""), ctx.get_state("plan", "")
        question = _ASK_LEDGER.format(facts=facts, plan=plan, team=describe(self.members))
        await self._ask(self.ledger, [Message("user", question)], ctx)

    async def _judge(self, ledger: dict[str, Any], ctx: TeamContext) -> None:
        def said(name: str) -> Any:
            return ledger[name]["answer"]

        if said("is_request_satisfied"):
            ctx.set_state("stage", "final")
            await self._ask(self.final, [Message("user", _FINAL)], ctx)
            return
        stalled = said("is_in_loop") or not said("is_progress_being_made")
        stalls = max(0, ctx.get_state("stalls", 0) + (1 if stalled else -1))
        ctx.set_state("stalls", stalls)
        if stalls > self.max_stalls:
            await self._plan_anew(ctx)
            return
        speaker = self.speaker(said("next_speaker"))
        told = self.add([Message("assistant", said("instruction_or_question"), self.manager_name)], ctx)
        await self.tell(speaker.id, told, ctx)

    async def _plan_anew(self, ctx: TeamContext) -> None:
        resets = ctx.get_state("resets", 0) + 1
        if resets > self.max_resets:
            await self.finish(ctx.get_state("output"), "reset_limit", ctx)
            return
        ctx.set_state("resets", resets)
        ctx.set_state("stalls", 0)
        await self._ask_facts(ctx)

    async def _ask(self, node: str, question: list[Message], ctx: TeamContext) -> None:
        """Ask the manager, who sees the conversation; questions do not become part of it."""
        await ctx.send_message([*self.conversation(ctx), *question], node)


class MagenticBuilder(TeamBuilder):
    """A manager that is an agent leads the team: it is asked for facts, for a plan, and in each round for a
    ledger, which says whether the request is satisfied, who is next and what that one is told.

    A round in a loop or without progress is a stall, one with progress takes a stall back; above
    `max_stall_count` facts and plan are made anew, `max_reset_count` times at most. `enable_plan_review` asks
    a person about each plan (PlanReview, answered by PlanDecision). The output is the manager's final answer
    (`completed`), or the last answer (`max_rounds`, `reset_limit`).
    """

    kind = "magentic"

    def __init__(
        self,
        participants: Sequence[NodeArgument],
        *,
        manager: Agent | AgentExecutor,
        max_round_count: int = 20,
        max_stall_count: int = 3,
        max_reset_count: int = 2,
        enable_plan_review: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(participants, **more)
        at_least(1, max_round_count=max_round_count)
        at_least(0, max_stall_count=max_stall_count, max_reset_count=max_reset_count)
        self._manager = self.find_manager(manager)
        self._limits = (max_round_count, max_stall_count, max_reset_count)
        self._review_plan = enable_plan_review

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        manager = self._nodes_of_manager()
        id = self.unused_id(self.kind, [node.id for node in manager.nodes])
        team = _MagenticTeam(id, self.members, self._reviewed, manager, self._limits, self._review_plan)
        return self.graph(team, manager.nodes).build()

    def _nodes_of_manager(self) -> _Manager:
        """Return the nodes of the manager; facts and plans are text, whatever schema it answers by."""
        agent, id = self._manager.agent, self._manager.id
        text = AgentExecutor(agent.with_output_schema(None), id)
        ledger = AgentExecutor(agent.with_output_schema(_LEDGER), self.unused_id(f"{id}_ledger"))
        final = text
        if agent.output_schema is not None:
            final = AgentExecutor(agent, self.unused_id(f"{id}_final"))
        return _Manager(name=agent.name, text=text, ledger=ledger, final=final)
