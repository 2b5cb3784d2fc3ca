import json

import pytest

from agentflow.definition.conversation import Message, ToolCall
from agentflow.models.local.calibration import Choice, TokenChoice, biases, choices_of, empty_inputs
from agentflow.models.local.grammar import answer_grammar, argument_grammar, source_of
from agentflow.models.local.prompts import (
    Example,
    answer_turns,
    argument_turns,
    copied_properties,
    has_result,
    split_examples,
)

from .helpers import tool

PROMPT = """Label the urgency.
High: broken now.

Ticket: Login is broken.
It was fine yesterday.
{"urgency":"high"}

Ticket: A question.
{"urgency":"low"}
"""
EXAMPLES = [
    Example("Ticket: Login is broken.\nIt was fine yesterday.", '{"urgency": "high"}'),
    Example("Ticket: A question.", '{"urgency": "low"}'),
]


def test_examples_stand_after_the_instructions() -> None:
    assert split_examples(PROMPT) == ("Label the urgency.\nHigh: broken now.", EXAMPLES)


@pytest.mark.parametrize(
    "prompt",
    [
        "You help.",
        "You help.\n\nBe kind.",
        'You help.\n\n{"a": 1}',
        'You help.\n\nText\n{"a": 1}\n{"a": 2}',
        'You help.\n\nText\n{"a": 1}\nAnd now answer.',
        "You help.\n\nText\n{not json}",
        "You help.\n\nText\n[1]",
        "",
    ],
)
def test_any_other_prompt_is_left_as_it_is(prompt: str) -> None:
    assert split_examples(prompt) == (prompt, [])


def test_turns_of_an_answer() -> None:
    call = ToolCall(id="call_1", name="lookup", arguments="{}")
    messages = (
        Message(role="system", content=PROMPT),
        Message(role="user", content="Ticket: Help!"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="call_1", content='{"plan":"gold","found":true}'),
        Message(role="assistant", content='{"urgency": 1}'),
        Message(role="user", content="Not valid."),
    )
    turns = [(turn.role, turn.content) for turn in answer_turns(messages)]
    assert turns == [
        ("system", "Label the urgency.\nHigh: broken now."),
        ("user", EXAMPLES[0].text),
        ("assistant", EXAMPLES[0].answer),
        ("user", EXAMPLES[1].text),
        ("assistant", EXAMPLES[1].answer),
        ("user", "Ticket: Help!\n\nplan: gold\nfound: true"),
        ("assistant", '{"urgency": 1}'),
        ("user", "Not valid."),
    ]
    assert has_result(messages)
    assert not has_result(messages[:3])
    first, second = argument_turns(messages[:2], tool("crm.lookup"))
    assert first.content.startswith(
        "Label the urgency.\nHigh: broken now.\n\nFunction crm.lookup: The function"
    )
    assert second.content == "Ticket: Help!"


@pytest.mark.parametrize("result", ["plain text", "[1, 2]", '{"nested": {"a": 1}}', '{"list": [1]}', "3"])
def test_results_that_are_no_flat_object_stay_as_they_are(result: str) -> None:
    messages = (Message(role="user", content="x"), Message(role="tool", tool_call_id="c", content=result))
    assert answer_turns(messages)[-1].content == f"x\n\n{result}"


def test_what_can_be_copied() -> None:
    text = "Plan: gold \nno: thing here\nGood-bye: x: y"
    source = source_of([text, '{"a": "x", "b": [1, {"c_d": "y"}], "d": true, "e": null}'])
    assert source.text == f"{text}\nx\n1\ny\ntrue"
    assert source.fields == {
        "plan": ("gold",),
        "no": ("thing here",),
        "goodbye": ("x: y",),
        "a": ("x",),
        "b": ("1",),
        "cd": ("y",),
        "d": ("true",),
    }


def test_grammar_of_an_answer() -> None:
    head, start = answer_grammar({"type": "object"}).split("\n")
    assert head == "%llguidance {}"
    assert json.loads(start.removeprefix("start: %json "))["type"] == "object"
    assert '"not"' in answer_grammar(False)


def test_grammar_of_arguments() -> None:
    schema = {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email"},
            "name": {"type": "string"},
            "order": {"type": "integer"},
            "kind": {"enum": ["a", "b"]},
            "note": {"type": "string"},
        },
        "required": ["email", "name", "order", "kind"],
    }
    text = 'I am "Ann" (ann@x.example), order 4711, 2.5 kg, mail bob@y.example.'
    start, any_, copy = argument_grammar(schema, source_of([text])).split("\n")[1:]
    assert start.startswith(
        'start: "{\\"email\\": " ("\\"ann@x.example\\"" | "\\"bob@y.example\\"") ", \\"name\\": "'
    )
    assert '"\\"" COPY "\\""' in start
    assert '("4711")' in start
    assert '%json {"enum":["a","b"]' in start
    assert "note" not in start
    chunks = json.loads(any_.removeprefix("ANY: %regex "))["substring_chunks"]
    # The chunks are JSON text: what is copied stands between quotation marks already.
    assert json.loads('"' + "".join(chunks) + '"') == text
    assert {"ann@x.example", '\\"', "Ann", "4711"} <= set(chunks)
    assert copy.startswith("COPY: ANY & ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("email", "ann@x.example"),
        ("customerEmail", "ann@x.example"),
        ("reply_mail", "ann@x.example"),
        ("home_url", "https://x.example/a"),
    ],
)
def test_a_name_may_mean_a_format(name: str, said: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    found = argument_grammar(schema, source_of(["Ann, ann@x.example, see https://x.example/a."]))
    assert json.dumps(json.dumps(said)) in found
    assert "COPY" not in found
    assert "COPY" in argument_grammar(schema, source_of(["Ann has neither"]))


def test_what_stands_under_a_name_goes_to_the_property_of_that_name() -> None:
    schema = {
        "type": "object",
        "properties": {
            "companyName": {"type": "string"},
            "plan": {"type": "string", "enum": ["gold", "none"]},
            "seats": {"type": "integer"},
            "open": {"type": "boolean"},
        },
    }
    source = source_of(
        ["Company name: Acme & Sons\nPlan: silver\nplan: gold\nSeats: 12\nseats: 1.5\nopen: true"]
    )
    rule = argument_grammar(schema, source).split("start: ")[1]
    assert rule == (
        r""""{\"companyName\": " ("\"Acme & Sons\"") ", \"plan\": " ("\"gold\"") ", \"seats\": " ("12") """
        r'''", \"open\": " ("true") "}"'''
    )


def test_answers_copy_what_their_examples_copy() -> None:
    examples = [
        Example("Ann: please refund. plan: gold", '{"plan": "gold", "topic": "billing", "n": 1}'),
        Example("plan: none\nIt crashes", '{"plan": "none", "topic": "bug", "n": 1}'),
    ]
    assert copied_properties(examples) == {"plan"}
    assert copied_properties(examples[:1]) == set()
    schema = {"type": "object", "properties": {"plan": {"type": "string"}, "topic": {"type": "string"}}}
    source = source_of(["plan: silver"])
    grammar = answer_grammar(schema, source, {"plan"})
    assert '("\\"silver\\"")' in grammar
    assert grammar.count("%json") == 1
    assert answer_grammar(schema, source, {"other"}) == answer_grammar(schema)
    assert answer_grammar(True, source, {"plan"}) == answer_grammar(True)


def test_objects_are_closed_unless_the_schema_opens_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": True}}}}
    assert answer_grammar(schema).count('"additionalProperties":false') == 2
    for untouched in (
        {"type": "object"},
        {"const": {"properties": {}}},
        {"allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]},
        {"properties": {"a": True}, "anyOf": [{"required": ["a"]}]},
    ):
        assert "additionalProperties" not in answer_grammar(untouched)
    assert '"additionalProperties":true' in answer_grammar({**schema, "additionalProperties": True})


def test_grammar_without_anything_to_copy() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
    grammar = argument_grammar(schema, source_of(["  "]))
    assert "COPY" not in grammar
    assert grammar.count("%json") == 2
    anything = argument_grammar({"type": "object"}, source_of(["text"]))
    assert anything.startswith("%llguidance {}\nstart: %json")
    referring = {
        "$defs": {"x": {"type": "string"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
    }
    assert '"$defs"' in argument_grammar(referring, source_of(["text"]))


LABELS = {
    "type": "object",
    "properties": {"urgency": {"enum": ["high", "low"]}, "open": {"type": "boolean"}},
    "required": ["urgency", "open"],
}


def test_only_schemas_of_labels_are_calibrated() -> None:
    assert choices_of(LABELS, EXAMPLES) == [
        Choice("urgency", ('"high"', '"low"')),
        Choice("open", ("true", "false")),
    ]
    assert choices_of(LABELS, EXAMPLES[:1]) == []
    assert choices_of({**LABELS, "required": ["open"]}, EXAMPLES) == []
    text = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}
    assert choices_of(text, EXAMPLES) == []
    assert choices_of(True, EXAMPLES) == []
    assert empty_inputs(EXAMPLES) == empty_inputs(EXAMPLES)
    assert empty_inputs(EXAMPLES)[-2:] == ["N/A", ""]


def answer(*tokens: tuple[str, dict[str, tuple[int, float]]]) -> list[TokenChoice]:
    return [TokenChoice(text, {text: (0, -0.01), **top}) for text, top in tokens]


def test_biases_take_the_preference_away() -> None:
    first = answer(
        ('{"', {}),
        ("urgency", {}),
        ('": "', {}),
        ("high", {"high": (1, -0.5), "low": (2, -2.5), "h": (9, -5.0), "l": (8, -9.0)}),
        ('", "open": ', {}),
        ("true", {"true": (3, -0.1), "false": (4, -4.1)}),
        ("}", {}),
    )
    second = [
        *first[:3],
        TokenChoice("high", {"high": (1, -1.5), "low": (2, -1.5)}),
        *first[4:],
    ]
    found = biases(choices_of(LABELS, EXAMPLES), [first, second])
    assert found == pytest.approx({1: -0.5, 2: 0.5, 3: -2.0, 4: 2.0})


def test_labels_that_were_not_considered_are_left_alone() -> None:
    unseen = answer(('{"urgency": "', {}), ("high", {"high": (1, -0.5)}), ('"', {}))
    assert biases([Choice("urgency", ('"high"', '"low"'))], [unseen]) == {}
    shared = answer(
        ('{"topic": "', {}), ("bug", {"bug": (1, -0.5)}), ("_ui", {"_ui": (2, -1.0), "_api": (3, -2.0)})
    )
    found = biases([Choice("topic", ('"bug_ui"', '"bug_api"'))], [shared])
    assert found == pytest.approx({2: -0.5, 3: 0.5})
    assert biases([Choice("topic", ('"a"', '"b"'))], []) == {}
