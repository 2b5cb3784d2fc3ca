"""Teams whose agents hand over to each other, and reviews of answers by a person (page 002 §11, §16)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import (
    AgentExecutor,
    AgentResponse,
    ConcurrentBuilder,
    HandoffBuilder,
    HandoffRequest,
    Message,
    Runtime,
    SequentialBuilder,
    TeamResult,
    TeamReview,
    WorkflowFailed,
    executor,
)
from agentflow.errors import ConfigurationError
from agentflow.testing import Call, ScriptedModel, call, cut
from tests.integration.graphs.teams import Teller, agents, model, opened, run, told


def functions(script: ScriptedModel, name: str) -> list[list[str]]:
    """Return the names of the functions that each call of an agent's model was offered."""
    return [
        [tool.name for tool in request.tools]
        for request in script.requests
        if request.messages[0].content == f"You are {name}."
    ]


async def answered(runtime: Runtime, builder: Any, *answers: str) -> tuple[list[Any], Any]:
    """Run a team on "Go." and answer its requests one by one; return what it asked, and its last result."""
    workflow = builder.with_checkpointing(runtime).build()
    result = await workflow.run("Go.")
    asked: list[Any] = []
    for answer in answers:
        (request,) = result.pending_requests
        asked.append(request.data)
        result = await workflow.send_responses(result.workflow_id, {request.request_id: answer})
    return asked, result


def only(result: Any) -> TeamResult:
    assert result.state == "completed", result.error
    (output,) = result.get_outputs()
    return output


class TestHandoff:
    async def test_the_next_one_sees_the_whole_conversation(self):
        script = model(A=[call("handoff_to_b", message="B knows.")], B=["found"])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, HandoffBuilder(agents("A", "B"), start="a"), "")
        (request,) = asked
        assert (type(request), request.participant, request.text) == (HandoffRequest, "b", "found")
        assert [m.text for m in request.messages] == ["Go.", "B knows.", "found"]
        output = only(result)
        assert (output.output, output.stop_reason, output.rounds) == ("found", "completed", 2)
        assert told(script, "B") == [["Go.", "A: B knows."]]

    async def test_a_mesh_offers_each_every_other(self):
        script = model(A=["a"], B=[], C=[])
        async with opened(script) as runtime:
            await answered(runtime, HandoffBuilder(agents("A", "B", "C"), start="a"), "")
        assert functions(script, "A") == [["handoff_to_b", "handoff_to_c"]]
        (tool, _) = script.requests[0].tools
        assert tool.input_schema["properties"]["message"]["type"] == "string"
        assert "required" not in tool.input_schema

    async def test_pairs_offer_no_more_than_they_name(self):
        a, b, c = agents("A", "B", "C")
        team = HandoffBuilder([a, b, c], start=b).add_handoff(a, b).add_handoff(b, a).add_handoff("b", "c")
        used = model(B=[call("handoff_to_a")], A=["done"])
        async with opened(used) as runtime:
            await answered(runtime, team, "")
        assert functions(used, "B") == [["handoff_to_a", "handoff_to_c"]]
        assert functions(used, "A") == [["handoff_to_b"]]

    async def test_an_agent_without_pairs_is_offered_none(self):
        used = model(A=[call("handoff_to_b")], B=["done"])
        async with opened(used) as runtime:
            await answered(runtime, HandoffBuilder(agents("A", "B"), start="a").add_handoff("a", "b"), "")
        assert functions(used, "B") == [[]]

    async def test_an_unknown_hand_over_is_an_error_that_the_agent_reads(self):
        script = model(A=[call("handoff_to_z"), "I stay."])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, HandoffBuilder(agents("A", "B"), start="a"), "")
        assert asked[0].text == "I stay."
        (failed,) = [e.data for e in result.events if e.type == "tool.call_failed"]
        assert (failed.error.code, failed.tool_name) == ("tool_not_found", "handoff_to_z")
        assert "handoff_to_b" in script.requests[1].messages[-1].content
        assert only(result).rounds == 1

    async def test_wrong_arguments_hand_nothing_over(self):
        script = model(A=[call("handoff_to_b", message=7), call("handoff_to_b", to="b"), "I stay."])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, HandoffBuilder(agents("A", "B"), start="a"), "")
        assert asked[0].participant == "a"
        codes = [e.data.error.code for e in result.events if e.type == "tool.call_failed"]
        assert codes == ["invalid_tool_input", "invalid_tool_input"]

    async def test_other_calls_of_the_turn_are_not_made(self):
        script = model(A=[[call("handoff_to_z"), call("handoff_to_b"), call("handoff_to_c")]], B=["b"])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, HandoffBuilder(agents("A", "B", "C"), start="a"), "")
        assert asked[0].participant == "b"
        assert [e.type for e in result.events if e.type.startswith("tool.")] == []

    async def test_a_truncated_answer_hands_nothing_over(self):
        script = model(A=[cut(Call("handoff_to_b", '{"message": "B kn'))] * 9)
        async with opened(script) as runtime:
            workflow = HandoffBuilder(agents("A", "B"), start="a").with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
        assert told(script, "B") == []
        assert [e.data.error.code for e in failed.value.result.events if e.type == "agent.failed"] == [
            "output_truncated"
        ]

    async def test_the_person_answers_the_participant_that_spoke(self):
        script = model(A=[call("handoff_to_b")], B=["Which one?", "Fine."])
        async with opened(script) as runtime:
            asked, result = await answered(
                runtime, HandoffBuilder(agents("A", "B"), start="a"), "The red one.", " "
            )
        assert [request.text for request in asked] == ["Which one?", "Fine."]
        assert told(script, "B")[1] == ["Go.", "Which one?", "The red one."]
        output = only(result)
        assert (output.output, output.rounds) == ("Fine.", 3)
        assert [m.text for m in output.messages] == ["Go.", "Which one?", "The red one.", "Fine."]

    async def test_autonomous_agents_go_on_up_to_the_limit(self):
        script = model(A=["one", call("handoff_to_b"), "never"], B=["two", "three"])
        team = HandoffBuilder(agents("A", "B"), start="a", autonomous=True, turn_limit=4)
        result = await run(team, "Go.", script)
        assert (result.output, result.stop_reason, result.rounds) == ("three", "turn_limit", 4)
        assert told(script, "A")[1][:2] == ["Go.", "one"]
        assert len(told(script, "A")[1]) == 3  # and that it shall go on
        assert [m.text for m in result.messages] == ["Go.", "one", "two", "three"]

    async def test_hand_overs_without_a_person_are_bounded_too(self):
        script = model(A=lambda request: call("handoff_to_b"), B=lambda request: call("handoff_to_a"))
        result = await run(HandoffBuilder(agents("A", "B"), start="a", turn_limit=5), "Go.", script)
        assert (result.stop_reason, result.rounds, len(script.requests)) == ("turn_limit", 5, 5)

    async def test_an_agent_with_a_schema_hands_over_or_answers_by_it(self):
        schema = {
            "type": "object",
            "properties": {"handoff_to": {"type": "string"}},
            "required": ["handoff_to"],
        }
        team = agents("A", "B", output_schema=schema)
        script = model(A=[call("handoff_to_b", message="x")], B=[{"handoff_to": "paper"}])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, HandoffBuilder(team, start="a", name="t"), "")
        assert asked[0].participant == "b"
        assert only(result).output == {"handoff_to": "paper"}

    async def test_an_executor_hands_over_and_takes_part(self):
        @executor(id="desk")
        def desk(messages: list[Message]) -> AgentResponse:
            return AgentResponse(data={"handoff_to": "a"})

        script = model(A=[call("handoff_to_teller")])
        team = HandoffBuilder([desk, *agents("A"), Teller("teller")], start=desk)
        async with opened(script) as runtime:
            asked, _result = await answered(runtime, team, "")
        assert asked[0].text == "teller: Go."
        assert told(script, "A") == [["Go."]]

    async def test_an_executor_that_hands_over_to_a_stranger_fails_the_run(self):
        @executor(id="desk")
        def desk(messages: list[Message]) -> AgentResponse:
            return AgentResponse(data={"handoff_to": "z"})

        async with opened(model()) as runtime:
            workflow = HandoffBuilder([desk, *agents("A")], start=desk).with_checkpointing(runtime).build()
            with pytest.raises(WorkflowFailed) as failed:
                await workflow.run("Go.")
        assert failed.value.result.error.code == "unknown_speaker"

    async def test_the_context_of_an_agent_shows_its_functions_and_its_call(self):
        script = model(A=[call("handoff_to_b", message="x")], B=["done"])
        async with opened(script) as runtime:
            _, result = await answered(runtime, HandoffBuilder(agents("A", "B"), start="a"), "")
            context = await runtime.context(result.workflow_id, "a")
        assert [tool.name for tool in context.tools] == ["handoff_to_b"]
        assert [m.content for m in context.messages[:2]] == ["You are A.", "Go."]
        assert context.messages[-1].tool_calls[0].name == "handoff_to_b"

    @pytest.mark.parametrize(
        "make",
        [
            lambda team: HandoffBuilder(team, start="z"),
            lambda team: HandoffBuilder(team, start="a", turn_limit=0),
            lambda team: HandoffBuilder(team, start="a").add_handoff("a", "a"),
            lambda team: HandoffBuilder(team, start="a").add_handoff("a", "z"),
            lambda team: HandoffBuilder(team, start="a").add_handoff("a"),
        ],
    )
    def test_an_unfit_team_is_refused(self, make: Any):
        with pytest.raises(ConfigurationError):
            make(agents("A", "B"))


class TestReviews:
    async def test_an_accepted_answer_goes_on(self):
        script = model(A=["one"], B=["two"])
        async with opened(script) as runtime:
            asked, result = await answered(
                runtime, SequentialBuilder(agents("A", "B")).with_request_info(), "", ""
            )
        assert [(type(r), r.participant, r.text) for r in asked] == [
            (TeamReview, "a", "one"),
            (TeamReview, "b", "two"),
        ]
        assert [m.text for m in asked[1].messages] == ["Go.", "one"]
        assert only(result).output == "two"

    @pytest.mark.parametrize("history", ["conversation", "last"])
    async def test_feedback_has_the_participant_answer_again(self, history: Any):
        team = [AgentExecutor(agents("A")[0], "first"), *agents("B")]
        script = model(A=["one"], B=["two", "2"])
        builder = SequentialBuilder(team, history=history).with_request_info([team[1]])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, builder, "In digits.", "")
        assert [request.text for request in asked] == ["two", "2"]
        before = ["Go.", "A: one"] if history == "conversation" else ["A: one"]
        assert told(script, "B") == [before, [*before, "two", "In digits."]]
        output = only(result)
        assert (output.output, output.rounds) == ("2", 2)
        assert [m.text for m in output.messages] == ["Go.", "one", "two", "In digits.", "2"]

    async def test_concurrent_participants_do_not_see_the_feedback_of_others(self):
        script = model(A=["one", "1"], B=["two"])
        builder = ConcurrentBuilder(agents("A", "B"), max_in_flight=1).with_request_info(["a"])
        async with opened(script) as runtime:
            _, result = await answered(runtime, builder, "In digits.", "")
        assert told(script, "A")[1] == ["Go.", "one", "In digits."]
        assert told(script, "B") == [["Go."]]
        assert only(result).output == ["1", "two"]

    async def test_several_reviews_are_open_at_once(self):
        script = model(A=["one"], B=["two"])
        async with opened(script) as runtime:
            builder = ConcurrentBuilder(agents("A", "B")).with_request_info()
            workflow = builder.with_checkpointing(runtime).build()
            result = await workflow.run("Go.")
            assert sorted(r.data.participant for r in result.pending_requests) == ["a", "b"]
            answers = {r.request_id: "" for r in result.pending_requests}
            result = await workflow.send_responses(result.workflow_id, answers)
        assert only(result).output == ["one", "two"]

    async def test_a_hand_over_is_reviewed_as_well(self):
        script = model(A=[call("handoff_to_b", message="B knows."), "No, I do."])
        builder = HandoffBuilder(agents("A", "B"), start="a").with_request_info(["a"])
        async with opened(script) as runtime:
            asked, result = await answered(runtime, builder, "Do it yourself.", "", "")
        assert [r.text for r in asked] == ["B knows.", "No, I do.", "No, I do."]
        assert only(result).output == "No, I do."
