"""The inputs of a run: what is needed, by declaration or by reference, and what given values get."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition import check_inputs, load_text, load_value
from agentflow.errors import DefinitionError


def load(input: Any, *, condition: str | None = None, **top: Any):
    agent = {"systemPrompt": "p", "input": input, "resultSchema": True, "attachedFunctions": "none"}
    step: dict[str, Any] = {"type": "run", "id": "a", "agent": agent}
    if condition is not None:
        step["if"] = condition
    return load_value({"version": "1.0", "workflow": {"steps": [step]}, **top})


def names(definition: Any) -> list[str]:
    return [need.name for need in definition.required_inputs]


@pytest.mark.parametrize(
    ("text", "required", "known"),
    [
        ("x", [], []),
        ("${{ inputs.a }}", ["a"], ["a"]),
        ("${{ inputs['a'] }}", ["a"], ["a"]),
        ("${{ inputs.a.b.c }}", ["a"], ["a"]),
        ("${{ inputs.a || 'x' }}", [], ["a"]),
        ("${{ inputs.a || inputs.b }}", ["b"], ["a", "b"]),
        ("${{ inputs.a || inputs.b || 1 }}", [], ["a", "b"]),
        ("${{ (inputs.a && inputs.b) || 1 }}", [], ["a", "b"]),
        ("${{ inputs.a && inputs.b }}", ["a", "b"], ["a", "b"]),
        ("${{ inputs.a || 1 }} ${{ inputs.a }}", ["a"], ["a"]),
        ("${{ inputs[inputs.which] }}", ["which"], ["which"]),
        ("${{ inputs['a-b'] }} ${{ inputs.a-b }}", ["a-b"], ["a-b"]),
    ],
)
def test_references_imply_names(text: str, required: list[str], known: list[str]):
    definition = load(text)
    assert names(definition) == required
    assert sorted(definition.inputs.known) == known


def test_references_are_looked_for_everywhere():
    text = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: a
      if: inputs.one == 1
      for_each: ${{ inputs.two }}
      agent:
        systemPrompt: ${{ inputs.three }}
        input: {deep: [{er: "${{ inputs.four }}"}]}
        context: {k: "${{ inputs.five }}"}
        tags: {t: "${{ inputs.six }}"}
        resultSchema: true
        attachedFunctions: none
outputs: {o: "${{ inputs.seven }} ${{ inputs.one }}"}
"""
    definition = load_text(text)
    assert [(n.name, n.line, n.column) for n in definition.required_inputs] == [
        ("one", 6, 11),
        ("two", 7, 21),
        ("three", 9, 27),
        ("four", 10, 34),
        ("five", 11, 27),
        ("six", 12, 24),
        ("seven", 15, 19),
    ]
    _, found = check_inputs(definition, {"one": 1, "three": 3})
    assert [(d.code, d.line, d.message) for d in found] == [
        ("E_INPUT_MISSING", 7, 'input "two" is required, used at 7:21'),
        ("E_INPUT_MISSING", 10, 'input "four" is required, used at 10:34'),
        ("E_INPUT_MISSING", 11, 'input "five" is required, used at 11:27'),
        ("E_INPUT_MISSING", 12, 'input "six" is required, used at 12:24'),
        ("E_INPUT_MISSING", 15, 'input "seven" is required, used at 15:19'),
    ]


def test_a_given_null_is_given():
    assert check_inputs(load("${{ inputs.a }}"), {"a": None}) == ({"a": None}, [])


def test_an_input_that_nothing_reads_is_a_warning_with_a_hint():
    value, found = check_inputs(load("${{ inputs.ticket || 1 }}"), {"tiket": 1})
    assert [(d.code, d.severity, d.hint) for d in found] == [
        ("W_INPUT_EXTRA", "warning", 'did you mean "ticket"?')
    ]
    assert value == {"tiket": 1}


@pytest.mark.parametrize(
    "text", ["${{ inputs }}", "${{ toJSON(inputs) }}", "${{ inputs.* }}", "${{ inputs[0] }}"]
)
def test_nothing_is_superfluous_when_all_inputs_are_read(text: str):
    assert check_inputs(load(text), {"anything": 1}) == ({"anything": 1}, [])


def test_declared_inputs_get_their_defaults_and_are_checked():
    definition = load(
        "${{ inputs.a }}",
        inputs={
            "a": {"type": "string"},
            "b": {"schema": {"type": "integer", "minimum": 1}, "default": 5},
            "c": {"required": False},
            "d": {"type": "array", "required": True, "default": []},
        },
    )
    assert names(definition) == ["a", "d"]
    assert check_inputs(definition, {"a": "x", "d": [1]}) == ({"a": "x", "d": [1], "b": 5}, [])
    _, found = check_inputs(definition, {"b": 0, "e": 1})
    assert sorted((d.code, d.path) for d in found) == [
        ("E_INPUT_INVALID", "/inputs/b"),
        ("E_INPUT_MISSING", "/workflow/steps/0/agent/input"),
        ("W_INPUT_EXTRA", None),
    ]


def test_the_default_of_a_required_input_serves_too():
    definition = load("x", inputs={"a": {"required": True, "default": 1}})
    assert check_inputs(definition, {}) == ({"a": 1}, [])


def test_an_unused_declared_input_is_missed_at_its_declaration():
    definition = load_text(
        'version: "1.0"\ninputs:\n  name: {type: string}\n'
        "workflow: {steps: [{type: run, id: a, agent: {systemPrompt: p}}]}"
    )
    _, found = check_inputs(definition, None)
    assert [(d.code, d.line, d.column, d.path, d.message) for d in found] == [
        ("E_INPUT_MISSING", 3, 3, "/inputs/name", 'input "name" is required')
    ]


def test_the_message_of_a_breach_names_the_place_in_the_value():
    definition = load("x", inputs={"limit": {"schema": {"properties": {"n": {"minimum": 1}}}}})
    _, found = check_inputs(definition, {"limit": {"n": 0}})
    assert found[0].code == "E_INPUT_INVALID"
    assert found[0].message.endswith("at /limit/n")


@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_named_inputs_come_in_an_object(value: Any):
    _, found = check_inputs(load("x"), value)
    assert [d.code for d in found] == ["E_TYPE"]


def test_nothing_is_no_inputs():
    assert check_inputs(load("x"), None) == ({}, [])


def test_the_given_mapping_stays_as_it_was():
    given: dict[str, Any] = {}
    value, _ = check_inputs(load("x", inputs={"a": {"default": 1}}), given)
    assert (given, value) == ({}, {"a": 1})


@pytest.mark.parametrize("bad", [float("nan"), b"x", {1: 2}, "\ud800", {"\ud800": 1}, object(), {1}])
def test_what_is_no_json_is_refused(bad: Any):
    _, found = check_inputs(load("${{ inputs.a }}"), {"a": bad})
    assert [d.code for d in found] == ["E_INPUT_INVALID"]


def test_a_value_that_holds_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    _, found = check_inputs(load("${{ inputs.a }}"), {"a": value})
    assert [d.code for d in found] == ["E_INPUT_INVALID"]


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"pattern": "("}])
def test_a_schema_that_could_judge_no_value_is_refused(schema: dict[str, Any]):
    with pytest.raises(DefinitionError) as caught:
        load("x", inputs={"a": {"schema": schema, "required": False}})
    assert [d.code for d in caught.value.diagnostics if d.severity == "error"] == ["E_INPUT_SCHEMA"]
