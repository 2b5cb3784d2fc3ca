"""Agents in conversations: what they are told, what they send, and hand-overs (page 002 §11). Pure."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import AgentSpec
from agentflow.engine.agents.conversation import response_of, shared_opening
from agentflow.engine.agents.handoffs import handed_over, handoff_tools
from agentflow.engine.agents.progress import AgentProgress, ToolRecord

SPEC = AgentSpec(name="A", system_prompt="p", exchanges="messages", handoffs={"b": "writes", "b_2": ""})


def said(role: str, text: str, name: str | None = None) -> dict[str, Any]:
    return {"role": role, "text": text, "name": name, "data": None}


class TestOpening:
    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (None, []),
            ("Go.", [("user", "Go.")]),
            (said("user", "Go.", "Ann"), [("user", "Go.")]),
            (said("system", "Rule."), [("system", "Rule.")]),
            (said("assistant", "mine", "A"), [("assistant", "mine")]),
            (said("assistant", "theirs", "B"), [("user", "B: theirs")]),
            (said("assistant", "whose"), [("user", "whose")]),
            ([said("user", "1"), said("assistant", "2", "B")], [("user", "1"), ("user", "B: 2")]),
            ({"messages": [said("assistant", "2", "B")], "text": "2"}, [("user", "B: 2")]),
            ([{"messages": [said("assistant", "2", "B")]}, "x"], [("user", "B: 2"), ("user", "x")]),
            ({"role": 7, "text": "x"}, [("user", '{"role":7,"text":"x"}')]),
            (7, [("user", "7")]),
        ],
    )
    def test_own_words_are_turns_and_those_of_others_are_told(self, data: Any, told: list[Any]):
        messages = shared_opening(SPEC, "p", data)
        assert [(m.role, m.content) for m in messages] == [("system", "p"), *told]


class TestResponse:
    def test_text_has_no_data(self):
        response = response_of(SPEC, "hi", None)
        assert (response["text"], response["data"]) == ("hi", None)
        assert response["messages"] == [{"role": "assistant", "text": "hi", "name": "A", "data": None}]

    def test_a_schema_gives_data(self):
        spec = AgentSpec(name="A", system_prompt="p", output_schema={"type": "object"})
        response = response_of(spec, {"n": 1}, None)
        assert (response["text"], response["data"]) == ('{"n":1}', {"n": 1})

    def test_a_hand_over_gives_its_message(self):
        response = response_of(SPEC, {"handoff_to": "b", "message": "x"}, None)
        assert (response["text"], response["data"]["handoff_to"]) == ("x", "b")

    @pytest.mark.parametrize("output", [{"handoff_to": "b"}, {"handoff_to": "z", "message": "x"}])
    def test_an_answer_that_looks_like_a_hand_over_is_data(self, output: Any):
        spec = AgentSpec(name="A", system_prompt="p", output_schema=True, handoffs={"b": ""})
        assert response_of(spec, output, None)["data"] == output
        assert response_of(spec, output, None)["text"].startswith("{")


def turn(*calls: tuple[str, str], content: str = "") -> AgentProgress:
    progress = AgentProgress("ctx", "p", None)
    asked = [ToolCall(id=f"c{i}", name=name, arguments=given) for i, (name, given) in enumerate(calls)]
    progress.messages.append(Message(role="assistant", content=content, tool_calls=tuple(asked)))
    progress.tools = {one.id: ToolRecord(one, one.name) for one in asked}
    return progress


class TestHandOver:
    def test_each_target_is_a_function_of_its_name(self):
        tools = handoff_tools(SPEC)
        assert list(tools) == ["handoff_to_b", "handoff_to_b_2"]
        assert tools["handoff_to_b"].description == "Hand the conversation over to b. writes"
        assert tools["handoff_to_b"].input_schema["additionalProperties"] is False

    @pytest.mark.parametrize(
        ("calls", "wanted"),
        [
            ([("handoff_to_b", "")], ("b", None)),
            ([("handoff_to_b", "{}")], ("b", None)),
            ([("handoff_to_b", '{"message": null}')], ("b", None)),
            ([("handoff_to_b_2", '{"message": "x"}')], ("b_2", "x")),
            ([("shop.pay", "{}"), ("handoff_to_b", "{}")], ("b", None)),
            ([("handoff_to_b", "{}"), ("handoff_to_b_2", "{}")], ("b", None)),
            ([("handoff_to_b", '{"message": 7}'), ("handoff_to_b_2", "{}")], ("b_2", None)),
        ],
    )
    def test_the_first_valid_call_counts(self, calls: Any, wanted: Any):
        over = handed_over(SPEC, turn(*calls))
        assert over is not None
        assert (over["handoff_to"], over["message"]) == wanted

    @pytest.mark.parametrize(
        "call",
        [
            ("handoff_to_z", "{}"),
            ("b", "{}"),
            ("handoff_to_b", "{"),
            ("handoff_to_b", "[]"),
            ("handoff_to_b", '{"to": "b"}'),
            ("handoff_to_b", '{"message": 7}'),
        ],
    )
    def test_other_calls_hand_nothing_over(self, call: Any):
        assert handed_over(SPEC, turn(call)) is None

    def test_text_beside_the_call_is_its_message(self):
        assert handed_over(SPEC, turn(("handoff_to_b", "{}"), content=" It is 17. ")) == {
            "handoff_to": "b",
            "message": "It is 17.",
        }
