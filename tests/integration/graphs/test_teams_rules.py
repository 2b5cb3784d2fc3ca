"""The rules of the five teams (page 002 §11, §16), with scripted models on a real Runtime."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Never

import msgspec
import pytest

from agentflow import (
    Agent,
    AgentExecutor,
    AgentResponse,
    ConcurrentBuilder,
    DefinitionError,
    Executor,
    GroupChatBuilder,
    GroupChatState,
    Message,
    SequentialBuilder,
    WorkflowContext,
    WorkflowFailed,
    executor,
    handler,
)
from agentflow.errors import ConfigurationError, WorkflowValidationError
from tests.integration.graphs.teams import Speaker, Teller, agents, model, opened, run, told

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def said(result: Any) -> list[tuple[str | None, str]]:
    return [(message.name, message.text) for message in result.messages]


class TestSequential:
    async def test_each_sees_the_conversation_so_far(self):
        script = model(A=["one"], B=["two"], C=["three"])
        result = await run(SequentialBuilder(agents("A", "B", "C")), "Count.", script)
        assert (result.output, result.stop_reason, result.rounds) == ("three", "completed", 3)
        assert said(result) == [(None, "Count."), ("A", "one"), ("B", "two"), ("C", "three")]
        assert told(script, "A") == [["Count."]]
        assert told(script, "C") == [["Count.", "A: one", "B: two"]]

    async def test_each_sees_only_the_last_answer(self):
        script = model(A=["one"], B=["two"], C=["three"])
        result = await run(SequentialBuilder(agents("A", "B", "C"), history="last"), "Count.", script)
        assert told(script, "B") == [["A: one"]]
        assert told(script, "C") == [["B: two"]]
        assert [text for _, text in said(result)] == ["Count.", "one", "two", "three"]

    async def test_the_output_of_an_agent_with_a_schema_is_its_data(self):
        team = [*agents("A"), *agents("B", output_schema=SCHEMA)]
        result = await run(SequentialBuilder(team), "Count.", model(A=["one"], B=[{"n": 2}]))
        assert result.output == {"n": 2}
        assert result.messages[-1] == Message("assistant", '{"n":2}', "B", {"n": 2})

    async def test_executors_answer_with_a_response_or_text(self):
        team = [Speaker("first"), Teller("second"), *agents("A")]
        script = model(A=["done"])
        result = await run(SequentialBuilder(team), "Go.", script)
        assert told(script, "A") == [["Go.", "first: first saw 1", "second: second: first saw 1"]]
        assert said(result)[1:3] == [("first", "first saw 1"), ("second", "second: first saw 1")]

    async def test_functions_and_classes_take_part(self):
        @executor(id="loud")
        def loud(messages: list[Message]) -> str:
            return messages[-1].text.upper()

        result = await run(SequentialBuilder([loud, Teller]), "go")
        assert result.output == "teller: GO"

    @pytest.mark.parametrize(
        "task",
        [
            "Go.",
            Message("user", "Go."),
            [Message("user", "Go.")],
            AgentResponse(messages=[Message("user", "Go.")]),
        ],
        ids=["text", "message", "messages", "response"],
    )
    async def test_a_task_is_text_or_messages(self, task: Any):
        result = await run(SequentialBuilder([Teller("t")]), task)
        assert (result.output, said(result)[0]) == ("t: Go.", (None, "Go."))

    async def test_a_task_of_another_type_begins_no_run(self):
        async with opened(model()) as runtime:
            workflow = SequentialBuilder([Teller("t")]).with_checkpointing(runtime).build()
            with pytest.raises(DefinitionError, match="E_INPUT_INVALID"):
                await workflow.run(7)
            assert await runtime.rows() == []

    async def test_an_agent_used_twice_tells_its_two_parts_apart(self):
        (agent,) = agents("A")
        team = [AgentExecutor(agent, "first"), AgentExecutor(agent, "second")]
        script = model(A=["one", "two"])
        result = await run(SequentialBuilder(team), "Go.", script)
        assert told(script, "A") == [["Go."], ["Go.", "first: one"]]
        assert said(result)[1:] == [("first", "one"), ("second", "two")]

    async def test_a_participant_may_have_the_name_of_the_team(self):
        result = await run(SequentialBuilder(agents("Sequential")), "Go.", model(Sequential=["yes"]))
        assert result.output == "yes"

    @pytest.mark.parametrize(
        "make",
        [
            lambda: SequentialBuilder([]),
            lambda: SequentialBuilder(agents("A", "A")),
            lambda: SequentialBuilder([7]),
            lambda: SequentialBuilder(["a"]),
            lambda: SequentialBuilder(agents("A"), history="some"),  # type: ignore[arg-type]
            lambda: SequentialBuilder(agents("A")).with_request_info(["B"]),
            lambda: SequentialBuilder(agents("A"), output_from=["B"]),
            lambda: ConcurrentBuilder(agents("A"), max_in_flight=0),
            lambda: ConcurrentBuilder(agents("A"), on_error="ignore"),  # type: ignore[arg-type]
            lambda: ConcurrentBuilder([Teller("x")], aggregator=Teller("x")),
            lambda: GroupChatBuilder(agents("A"), manager=agents("A")[0]),
            lambda: GroupChatBuilder(agents("A"), manager="a"),  # type: ignore[arg-type]
            lambda: GroupChatBuilder(agents("A"), manager=lambda s: None, max_rounds=0),
        ],
    )
    def test_an_unfit_team_is_refused_by_the_builder(self, make: Any):
        with pytest.raises(ConfigurationError):
            make()

    def test_an_executor_that_takes_no_conversation_is_refused(self):
        @executor(id="number")
        def number(n: int) -> str:
            return str(n)

        with pytest.raises(WorkflowValidationError, match="E_TYPE_INCOMPATIBLE"):
            SequentialBuilder([number]).build()


def counted(limit: int) -> tuple[Any, list[int]]:
    """Return a step that notes how many calls are open at once, and waits until `limit` are or all began."""
    open_now, seen, full = 0, [], asyncio.Event()

    async def answer(request: Any) -> str:
        nonlocal open_now
        open_now += 1
        seen.append(open_now)
        if open_now == limit:
            full.set()
        await full.wait()
        for _ in range(20):  # lets a call that should wait begin
            await asyncio.sleep(0)
        open_now -= 1
        return request.messages[0].content

    return answer, seen


class _Join(Executor):
    """Joins what all said."""

    @handler
    async def on_answers(self, answers: list[AgentResponse], ctx: WorkflowContext[str]) -> None:
        await ctx.send_message("+".join(answer.text for answer in answers))


class _Talk(Executor):
    """Answers with messages, as a participant would."""

    @handler
    async def on_answers(self, answers: list[AgentResponse], ctx: WorkflowContext[list[Message]]) -> None:
        await ctx.send_message([Message("assistant", answer.text) for answer in answers])


class _Sum(Executor):
    """Returns a number, which is no answer of a participant."""

    @handler
    async def on_answers(self, answers: list[AgentResponse], ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(len(answers))


class _Total(msgspec.Struct):
    parts: list[str]


async def _later(answers: list[AgentResponse]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"texts": [answer.text for answer in answers]}


class _Callable:
    async def __call__(self, answers: list[AgentResponse]) -> int:
        return len(answers)


class TestConcurrent:
    async def test_answers_stand_in_the_order_of_the_participants(self):
        first = asyncio.Event()

        async def slow(request: Any) -> str:
            await first.wait()
            return "a"

        def quick(request: Any) -> str:
            first.set()
            return "b"

        result = await run(ConcurrentBuilder(agents("A", "B")), "Go.", model(A=slow, B=quick))
        assert (result.output, result.stop_reason, result.rounds) == (["a", "b"], "completed", 2)
        assert said(result) == [(None, "Go."), ("A", "a"), ("B", "b")]

    @pytest.mark.parametrize("limit", [1, 2, 5])
    async def test_max_in_flight_bounds_participants_at_work(self, limit: int):
        answer, seen = counted(limit)
        names = ["A", "B", "C", "D", "E"]
        team = ConcurrentBuilder(agents(*names), max_in_flight=limit)
        script = model(**dict.fromkeys(names, answer))
        result = await run(team, "Go.", script)
        assert max(seen) == limit
        assert result.output == [f"You are {name}." for name in names]
        assert all(told(script, name) == [["Go."]] for name in names)

    async def test_a_participant_that_fails_fails_the_run(self):
        script = model(A=["fine"], B=[])
        async with opened(script) as runtime:
            workflow = ConcurrentBuilder(agents("A", "B")).with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
            assert failed.value.result.error.details == {"step_id": "b"}
            assert failed.value.result.get_outputs() == []

    async def test_a_collected_failure_leaves_null_in_its_slot(self):
        script = model(A=["fine"], B=[], C=["good"])
        team = ConcurrentBuilder(agents("A", "B", "C"), on_error="collect", max_in_flight=1)
        result = await run(team, "Go.", script)
        assert (result.output, result.rounds) == (["fine", None, "good"], 2)
        assert said(result) == [(None, "Go."), ("A", "fine"), ("C", "good")]

    async def test_an_aggregator_sees_why_a_participant_failed(self):
        def why(answers: list[AgentResponse]) -> Any:
            return [
                answer.data["error"]["code"] if not answer.messages else answer.text for answer in answers
            ]

        team = ConcurrentBuilder(agents("A", "B"), on_error="collect", aggregator=why)
        result = await run(team, "Go.", model(A=["fine"], B=[]))
        assert result.output == ["fine", "script_exhausted"]

    async def test_data_without_messages_is_no_failure(self):
        @executor(id="data")
        def data(messages: list[Message]) -> AgentResponse:
            return AgentResponse(data={"error": {"code": "none"}})

        result = await run(ConcurrentBuilder([data], on_error="collect"), "Go.")
        assert result.output == [{"error": {"code": "none"}}]

    @pytest.mark.parametrize(
        ("aggregator", "wanted"),
        [
            (lambda answers: " & ".join(a.text for a in answers), "a & b"),
            (_later, {"texts": ["a", "b"]}),
            (lambda answers: _later(answers), {"texts": ["a", "b"]}),
            (_Callable(), 2),
            (lambda answers: _Total([a.text for a in answers]), {"parts": ["a", "b"]}),
            (lambda answers: None, None),
            (_Join("join"), "a+b"),
            (_Sum("join"), 2),
            (_Talk("join"), [{"role": "assistant", "text": t, "name": None, "data": None} for t in "ab"]),
        ],
        ids=["sync", "async", "awaitable", "object", "struct", "null", "text", "number", "messages"],
    )
    async def test_an_aggregator_is_a_function_or_an_executor(self, aggregator: Any, wanted: Any):
        team = ConcurrentBuilder(agents("A", "B"), aggregator=aggregator)
        result = await run(team, "Go.", model(A=["a"], B=["b"]))
        assert (result.output, result.rounds) == (wanted, 2)

    async def test_a_task_that_only_an_aggregator_may_send_begins_no_run(self):
        async with opened(model()) as runtime:
            team = ConcurrentBuilder([Teller("t")], aggregator=_Sum("sum")).with_checkpointing(runtime)
            with pytest.raises(DefinitionError, match="E_INPUT_INVALID"):
                await team.build().run(7)
            assert await runtime.rows() == []

    async def test_an_aggregator_that_raises_fails_the_run(self):
        def broken(answers: list[AgentResponse]) -> Never:
            raise ValueError("no sum")

        async with opened(model(A=["a"])) as runtime:
            workflow = ConcurrentBuilder(agents("A"), aggregator=broken).with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
            assert failed.value.result.error.code == "executor_failed"


def in_turn(*names: str | None) -> Any:
    left = list(names)

    def manager(state: GroupChatState) -> str | None:
        return left[state.round] if state.round < len(left) else None

    return manager


class TestGroupChat:
    async def test_a_function_picks_and_null_ends(self):
        script = model(A=["one"], B=["two"])
        result = await run(GroupChatBuilder(agents("A", "B"), manager=in_turn("b", "a")), "Go.", script)
        assert said(result) == [(None, "Go."), ("B", "two"), ("A", "one")]
        assert (result.output, result.stop_reason, result.rounds) == ("one", "completed", 2)
        assert told(script, "A") == [["Go.", "B: two"]]

    async def test_an_async_function_sees_the_state(self):
        seen: list[GroupChatState] = []

        async def manager(state: GroupChatState) -> str | None:
            seen.append(state)
            return "A" if state.round == 0 else None

        await run(GroupChatBuilder(agents("A", "B"), manager=manager), "Go.", model(A=["one"]))
        assert [(s.round, s.last_speaker, len(s.messages)) for s in seen] == [(0, None, 1), (1, "a", 2)]
        assert seen[0].participants == ["a", "b"]

    async def test_an_agent_manages(self):
        script = model(
            Chief=[{"next": "b", "reason": "b knows"}, {"next": None, "reason": "done"}], B=["found"]
        )
        (chief,) = agents("Chief")
        team = [*agents("A", description="reads"), *agents("B", description="writes")]
        result = await run(GroupChatBuilder(team, manager=chief), "Go.", script)
        assert (result.output, result.stop_reason) == ("found", "completed")
        assert said(result) == [(None, "Go."), ("B", "found")]
        first, second = told(script, "Chief")
        assert "- a (A): reads\n- b (B): writes" in first[-1]
        assert second[:2] == ["Go.", "B: found"]

    async def test_a_chat_that_ends_at_once_has_no_output(self):
        result = await run(GroupChatBuilder(agents("A"), manager=lambda state: None), "Go.")
        assert (result.output, result.stop_reason, result.rounds) == (None, "completed", 0)

    async def test_the_limit_of_rounds_is_an_output(self):
        team = GroupChatBuilder(agents("A"), manager=lambda state: "a", max_rounds=3)
        result = await run(team, "Go.", model(A=["1", "2", "3"]))
        assert (result.output, result.stop_reason, result.rounds) == ("3", "max_rounds", 3)

    async def test_termination_is_asked_before_the_limit_and_the_manager(self):
        asked: list[int] = []

        def manager(state: GroupChatState) -> str:
            asked.append(state.round)
            return "a"

        async def enough(messages: list[Message]) -> bool:
            return messages[-1].text == "2"

        team = GroupChatBuilder(agents("A"), manager=manager, max_rounds=2, termination=enough)
        result = await run(team, "Go.", model(A=["1", "2"]))
        assert (result.stop_reason, result.rounds, asked) == ("termination", 2, [0, 1])

    @pytest.mark.parametrize("wanted", ["c", 7, ""])
    async def test_an_unknown_speaker_fails_the_step(self, wanted: Any):
        async with opened(model()) as runtime:
            team = GroupChatBuilder(agents("A"), manager=lambda state: wanted)
            workflow = team.with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
            assert failed.value.result.error.code == "unknown_speaker"
            (step,) = [e.data.error for e in failed.value.result.events if e.type == "workflow.step_failed"]
            assert (step.code, step.details["participants"]) == ("unknown_speaker", ["a"])

    async def test_an_agent_that_picks_an_unknown_speaker_fails_the_run(self):
        (chief,) = agents("Chief")
        async with opened(model(Chief=[{"next": "nobody", "reason": "?"}])) as runtime:
            workflow = GroupChatBuilder(agents("A"), manager=chief).with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
            assert failed.value.result.error.code == "unknown_speaker"

    async def test_an_id_counts_before_a_name(self):
        team = [AgentExecutor(agents("B")[0], "a"), AgentExecutor(agents("A")[0], "b")]
        script = model(A=["A speaks"], B=["B speaks"])
        team = GroupChatBuilder(team, manager=in_turn("a", "b"))
        result = await run(team, "Go.", script)
        assert [text for _, text in said(result)] == ["Go.", "B speaks", "A speaks"]

    async def test_two_runs_of_one_team_share_nothing(self):
        script = model(A=lambda request: request.messages[-1].content.removeprefix("A: "))
        team = GroupChatBuilder(
            agents("A"), manager=lambda s: "a" if s.round < 2 else None, termination=lambda m: len(m) > 3
        )
        async with opened(script) as runtime:
            workflow = team.with_checkpointing(runtime).build()
            results = await asyncio.gather(*[workflow.run(f"task {i}") for i in range(5)])
        assert [r.output.messages[0].text for r in results] == [f"task {i}" for i in range(5)]
        assert {r.output.rounds for r in results} == {2}
        assert [r.output.output for r in results] == [f"task {i}" for i in range(5)]


async def test_the_context_of_an_agent_is_what_its_model_saw():
    script = model(A=["one"], B=["two"])
    async with opened(script) as runtime:
        workflow = SequentialBuilder(agents("A", "B")).with_checkpointing(runtime).build()
        result = await workflow.run("Go.")
        context = await runtime.context(result.workflow_id, "b")
    (request,) = [r for r in script.requests if r.messages[0].content == "You are B."]
    assert [(m.role, m.content) for m in context.messages] == [
        *((m.role, m.content) for m in request.messages),
        ("assistant", "two"),
    ]
    assert context.messages[2].content == "A: one"


async def test_outputs_of_participants_are_intermediate_unless_asked_for():
    class Yields(Executor):
        """Gives out a note beside its answer."""

        @handler
        async def on_messages(self, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output("note")
            await ctx.send_message("answer")

    member = Yields("y")
    async with opened(model()) as runtime:
        plain = await SequentialBuilder([member]).with_checkpointing(runtime).build().run("Go.")
        named = SequentialBuilder([member], output_from=[member]).with_checkpointing(runtime).build()
        shown = await named.run("Go.")
    assert [type(o).__name__ for o in plain.get_outputs()] == ["TeamResult"]
    assert plain.get_intermediate_outputs() == ["note"]
    assert [type(o).__name__ for o in shown.get_outputs()] == ["str", "TeamResult"]


async def test_a_builder_builds_the_same_graph_twice():
    (agent,) = agents("A")
    builder = GroupChatBuilder([agent], manager=agents("Chief")[0], name="chat").with_request_info([agent])
    assert builder.build().signature == builder.build().signature
    assert builder.build().name == "chat"
    with contextlib.suppress(ConfigurationError):
        builder.with_request_info([Agent("Other", "x")])
        pytest.fail("an agent that takes no part was accepted")
