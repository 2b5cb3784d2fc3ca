"""Workflow.as_agent: a workflow that is asked like an agent (page 002 §11, §16)."""

from __future__ import annotations

from typing import Any, Never

import msgspec
import pytest

from agentflow import (
    AgentResponse,
    Executor,
    GroupChatBuilder,
    Message,
    Runtime,
    SequentialBuilder,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowFailed,
    executor,
    handler,
    response_handler,
)
from agentflow.errors import ConfigurationError, UnknownRequest, WorkflowValidationError
from tests.integration.graphs.teams import Teller, agents, model, opened


class Answer(msgspec.Struct, frozen=True):
    n: int


class Says(Executor):
    """Gives out one thing after the other."""

    def __init__(self, *outputs: Any) -> None:
        super().__init__("says")
        self.outputs = outputs

    @handler
    async def on_messages(self, messages: list[Message], ctx: WorkflowContext[Never, Answer | Any]) -> None:
        for output in self.outputs or (f"heard {messages[-1].text} of {len(messages)}",):
            await ctx.yield_output(output)


class Asks(Executor):
    """Asks a person whether it may."""

    @handler
    async def on_messages(self, messages: list[Message], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("wait")
        await ctx.request_info(messages[-1].text, bool)

    @response_handler
    async def on_answer(self, request: str, may: bool, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{request}: {may}")


def agent_of(runtime: Runtime, node: Any, name: str = "Desk") -> WorkflowAgent:
    builder = WorkflowBuilder("w", description="helps").set_start_executor(node)
    return builder.with_checkpointing(runtime).build().as_agent(name)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("hi", "heard hi of 1"),
        (Message("user", "hi"), "heard hi of 1"),
        ([Message("user", "x"), Message("assistant", "hi", "A")], "heard hi of 2"),
    ],
    ids=["text", "message", "conversation"],
)
async def test_each_call_is_a_run_of_its_own(message: Any, text: str):
    async with Runtime() as runtime:
        agent = agent_of(runtime, Says())
        first, second = await agent.run(message), await agent.run(message)
        assert first.text == second.text == text
        assert first.messages == [Message("assistant", text, "Desk")]
        assert first.workflow_id != second.workflow_id
        assert {row.workflow_id for row in await runtime.rows()} == {first.workflow_id, second.workflow_id}
        assert (agent.name, agent.description) == ("Desk", "helps")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (Message("assistant", "m", "B"), [("B", "m", None)]),
        ([Message("assistant", "1", "B"), Message("assistant", "2")], [("B", "1", None), (None, "2", None)]),
        (AgentResponse(messages=[Message("assistant", "r", "B")]), [("B", "r", None)]),
        (AgentResponse(text="r"), [("Desk", "r", None)]),
        (Answer(7), [("Desk", '{"n":7}', {"n": 7})]),
        ({"a": [1]}, [("Desk", '{"a":[1]}', {"a": [1]})]),
        (7, [("Desk", "7", 7)]),
        ([], [("Desk", "[]", [])]),
    ],
)
async def test_outputs_become_messages(output: Any, said: Any):
    async with Runtime() as runtime:
        response = await agent_of(runtime, Says("first", output)).run("hi")
    found = [(m.name, m.text, m.data) for m in response.messages]
    assert found == [("Desk", "first", None), *said]
    assert (response.text, response.data) == (said[-1][1], said[-1][2])


async def test_a_request_is_answered_with_the_id_of_the_run():
    async with Runtime() as runtime:
        agent = agent_of(runtime, Asks("asks"))
        asked = await agent.run("May I?")
        (request,) = asked.requests
        assert (request.data, asked.text) == ("May I?", "wait")
        assert request.response_schema["type"] == "boolean"
        open_still = await agent.run(workflow_id=asked.workflow_id)
        assert [r.request_id for r in open_still.requests] == [request.request_id]
        with pytest.raises(UnknownRequest):
            await agent.run(responses={"req_none": True}, workflow_id=asked.workflow_id)
        answered = await agent.run(responses={request.request_id: True}, workflow_id=asked.workflow_id)
        assert (answered.text, answered.requests) == ("May I?: True", [])
        assert answered.workflow_id == asked.workflow_id
        assert await agent.run(workflow_id=asked.workflow_id) == answered
        assert len(await runtime.rows()) == 1


async def test_a_team_is_an_agent():
    script = model(A=["one"])
    async with opened(script) as runtime:
        team = SequentialBuilder(agents("A")).with_checkpointing(runtime).build().as_agent("Team")
        response = await team.run("Go.")
        assert response.messages == [Message("assistant", "one", "Team")]
        assert response.usage is not None
        assert response.usage.model_calls == 1
        empty = GroupChatBuilder([Teller("t")], manager=lambda state: None).with_checkpointing(runtime)
        assert (await empty.build().as_agent("Chat").run("Go.")).messages == []


async def test_a_run_that_fails_raises():
    @executor(id="bad")
    def bad(messages: list[Message]) -> str:
        raise ValueError("no")

    async with Runtime() as runtime:
        with pytest.raises(WorkflowFailed):
            await agent_of(runtime, bad).run("hi")


@executor(id="number")
def number(n: int) -> int:
    return n


def test_a_start_that_takes_no_conversation_is_refused():
    plain = WorkflowBuilder("w").set_start_executor(number).build()
    several = WorkflowBuilder("s").set_start_executor(Says(), number).build()
    for workflow in (plain, several):
        with pytest.raises(WorkflowValidationError, match="E_TYPE_INCOMPATIBLE"):
            workflow.as_agent("Desk")


async def test_other_calls_are_refused_before_a_run_begins():
    async with Runtime() as runtime:
        agent = agent_of(runtime, Says())
        calls: list[Any] = [
            lambda: agent.run(),
            lambda: agent.run(responses={"r": 1}),
            lambda: agent.run("hi", responses={}),
            lambda: agent.run([]),
            lambda: agent.run([7]),  # type: ignore[list-item]
        ]
        for refused in calls:
            with pytest.raises(ConfigurationError):
                await refused()
        assert await runtime.rows() == []
        with pytest.raises(ConfigurationError):
            agent.workflow.as_agent(" ")
