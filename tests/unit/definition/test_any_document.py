"""Whatever the document, the loader answers: no crash, diagnostics in order, positions that exist."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.definition import check_text, load_text, load_value, to_mermaid
from agentflow.definition.compare import compare
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.dot import to_dot
from agentflow.definition.ir import canonical_json, decode_ir
from agentflow.definition.loader import definition_of
from agentflow.engine.graph import compile_graph
from agentflow.errors import DefinitionError
from tests.unit.definition.author import Author

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

words = (
    st.sampled_from(
        ["a", "b", "run", "none", "true", "yes", "1.0", "step", "python", "m:x", "default", "x-k"]
    )
    | st.sampled_from(["5s", "0s", "openai:m", "'\"", "#", "|", ">", "&", "*", "!", "%", "${{", "{{ }}"])
    | st.sampled_from(["${{ inputs.x }}", "${{ steps.a.outputs.result }}", "${{ item }}", "${{ success() }}"])
    | st.text(max_size=8)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
)
# fmt: off
KEYS = [
    "version", "workflow", "steps", "type", "id", "agent", "depends_on", "if", "for_each",
    "systemPrompt", "input", "resultSchema", "attachedFunctions", "tags", "context", "model",
    "models", "defaults", "retry", "backoff", "max_attempts", "services", "inputs", "outputs",
    "agents", "name", "system_prompt", "tools", "timeout", "approval", "cache", "budget", "service",
    "function", "properties", "items", "$ref", "$schema", "format", "required", "default", "use",
    "provider", "module", "fallback", "on_failure",
]
# fmt: on
keys = st.sampled_from(KEYS)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(words, inner, max_size=3)
    ),
    max_leaves=40,
)
ids = st.sampled_from(["a", "b", "c", "d", "__x", "1"])
agents = st.fixed_dictionaries(
    {"systemPrompt": words},
    optional={
        "input": values,
        "resultSchema": values,
        "attachedFunctions": st.sampled_from(["none", []]) | values,
        "tags": values,
        "context": values,
        "model": values,
        "max_turns": scalars,
    },
)
steps = st.fixed_dictionaries(
    {"type": st.just("run"), "id": ids, "agent": agents},
    optional={
        "depends_on": st.lists(ids, max_size=4),
        "if": words,
        "for_each": words,
        "retry": values,
        "timeout": scalars,
        "required": scalars,
    },
)
documents = st.fixed_dictionaries(
    {"workflow": st.fixed_dictionaries({"steps": st.lists(steps, max_size=4)})},
    optional={"version": scalars, "inputs": values, "outputs": values, "models": values, "services": values},
) | st.fixed_dictionaries(
    {
        "agents": st.lists(
            st.fixed_dictionaries(
                {"name": words, "system_prompt": words},
                optional={
                    "tools": values,
                    "id": ids,
                    "model": values,
                    "output_schema": values,
                    "retry": values,
                },
            ),
            max_size=4,
        )
    },
    optional={"defaults": values, "retry": values, "on_failure": words, "models": values},
)


def plain(value: Any) -> Any:
    """Without what JSON cannot hold: lone surrogates."""
    return json.loads(json.dumps(value).replace("\\ud", "d"))


def check(text: str, media: str) -> list[Diagnostic]:
    found = check_text(text, media=media)
    assert found == check_text(text, media=media)
    assert [(d.line or 0, d.column or 0, d.code) for d in found] == sorted(
        (d.line or 0, d.column or 0, d.code) for d in found
    )
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for diagnostic in found:
        assert diagnostic.message.isprintable(), diagnostic.message
        assert (diagnostic.hint or "").isprintable(), diagnostic.hint
        assert diagnostic.severity == ("error" if diagnostic.code.startswith("E_") else "warning")
        if diagnostic.line is not None and media == "json":
            assert 1 <= diagnostic.line <= len(lines)
            assert 1 <= (diagnostic.column or 0) <= len(lines[diagnostic.line - 1]) + 1
    if any(d.severity == "error" for d in found):
        with pytest.raises(DefinitionError):
            load_text(text, media=media)
    else:
        definition = load_text(text, media=media)
        assert decode_ir(canonical_json(definition.workflow)) == definition.workflow
    return found


@SLOW
@given(documents | values)
def test_any_json_document_is_answered(value: Any):
    value = plain(value)
    found = check(json.dumps(value, indent=1), "json")
    if isinstance(value, dict):
        try:
            load_value(value)
        except DefinitionError as error:
            of_value = error.diagnostics
            assert sorted((d.code, d.path or "") for d in of_value) == sorted(
                (d.code, d.path or "") for d in found
            )
        else:
            assert all(d.severity == "warning" for d in found)


@SLOW
@given(documents)
def test_yaml_and_json_of_one_value_get_the_same_diagnostics(value: Any):
    value = plain(value)
    as_yaml = yaml.safe_dump(value, default_style='"', allow_unicode=False)
    in_yaml = [d for d in check_text(as_yaml, media="yaml") if d.code != "E_YAML_SUBSET"]
    if [d.code for d in in_yaml] == ["E_SYNTAX"]:
        return  # the writer uses escapes of YAML 1.1 that name surrogates
    in_json = check_text(json.dumps(value), media="json")
    assert sorted((d.code, d.path or "") for d in in_yaml) == sorted((d.code, d.path or "") for d in in_json)


TEXT = """\
version: "1.0"
models: {default: "openai:m"}
inputs: {x: {type: string, default: a}}
workflow:
  max_parallel: 2
  steps:
    - type: run
      id: a
      agent: &agent
        systemPrompt: |
          Work on ${{ inputs.x }}
        input: {x: "${{ inputs.x }}", y: [1, 2.5, null]}
        resultSchema: {type: object, properties: {list: {type: array, items: {type: string}}}}
        attachedFunctions: none
    - {type: run, id: b, depends_on: [a], agent: *agent, for_each: "${{ steps.a.outputs.result.list }}"}
outputs: {o: "${{ steps.b.outputs.result }}"}
"""


def damaged(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    match chance.randrange(4):
        case 0:
            return text[:at] + text[at + chance.randint(1, 9) :]
        case 1:
            return text[:at] + chance.choice("{}[]:,\"'#&*!|>%@`${}\n\t- ") + text[at:]
        case 2:
            return text[:at] + text[at : at + 40] + text[at:]
        case _:
            return text[:at] + chance.choice(TEXT.split()) + text[at:]


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_document_is_answered(seed: int):
    chance = random.Random(seed)
    assert check_text(TEXT) == []
    text = TEXT
    for _ in range(chance.randint(1, 6)):
        text = damaged(text, chance)
    check(text, "yaml")


@SLOW
@given(st.text(max_size=60) | st.text("{}[]:,\"'#&*!|>%@-? \n\tab1~<$", max_size=60))
def test_any_text_is_answered(text: str):
    for media in ("yaml", "json"):
        check_text(text, media=media)


@SLOW
@given(st.binary(max_size=60))
def test_any_bytes_are_answered(data: bytes):
    for media in ("yaml", "json", None):
        check_text(data, media=media)


PIECES = [
    *("steps", "inputs", "item", "index", ".a", "['a']", "[0]", ".*", "[*]", "(", ")", "==", "<", "&&", "||"),
    *(
        "'x'",
        "1",
        "null",
        "contains(",
        "toJSON(",
        "case(",
        "success()",
        ",",
        "${{",
        "}}",
        "{{",
        " ",
        "!",
        "#",
    ),
    *("steps.a.outputs.result", "\n", "é", "🦊", "'", '"', "\\"),
]


def spiced(value: Any, chance: random.Random) -> Any:
    """Some strings replaced by what nearly is an expression."""
    if isinstance(value, dict):
        return {key: spiced(inner, chance) for key, inner in value.items()}
    if isinstance(value, list):
        return [spiced(inner, chance) for inner in value]
    if not isinstance(value, str) or chance.random() > 0.15:
        return value
    soup = "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 8)))
    return chance.choice([f"${{{{ {soup} }}}}", soup, f"x${{{{{soup}}}}}y"])


def test_what_nearly_fits_the_tables_is_answered_and_what_is_accepted_can_be_used():
    accepted = 0
    for seed in range(600):
        author = Author(seed)
        document = author.document()
        for _ in range(author.chance.randint(0, 3)):
            author.damaged(document)
        if author.chance.random() < 0.7:
            document = spiced(document, author.chance)
        found = check_text(json.dumps(document), media="json")
        if any(d.severity == "error" for d in found):
            with pytest.raises(DefinitionError) as caught:
                load_value(document)
            assert sorted(d.code for d in caught.value.diagnostics) == sorted(d.code for d in found), seed
            continue
        workflow = load_value(document).workflow
        accepted += 1
        assert decode_ir(canonical_json(workflow)) == workflow
        assert definition_of(workflow).workflow == workflow
        assert compile_graph(workflow).step_ids
        assert compare(workflow, workflow) == []
        assert to_dot(workflow)
        assert to_mermaid(workflow)
    assert accepted > 20
