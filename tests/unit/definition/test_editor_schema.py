"""The JSON Schema for editors: made from the loader's tables, and never stricter than the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from agentflow.definition import check_text, load_text, load_value
from agentflow.definition.editor_schema import SCHEMA_ID, make_workflow_schema, workflow_schema
from agentflow.definition.report import Fatal, Report
from agentflow.definition.shapes import (
    ArrayOf,
    Field,
    Kind,
    Map,
    OneOf,
    Shape,
)
from agentflow.definition.source import read_node
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import to_value
from agentflow.definition.vocabulary import AGENT_LIST, STEP_DOCUMENT
from agentflow.errors import DefinitionError
from tests.conformance.cases import Case, read_cases
from tests.unit.definition.author import Author

SCHEMA = msgspec.json.decode(workflow_schema())
VALIDATOR = Draft202012Validator(SCHEMA)
WRITE = "from agentflow.definition.editor_schema import *; SCHEMA_FILE.write_bytes(make_workflow_schema())"


def test_the_file_in_the_package_is_what_the_tables_say():
    assert workflow_schema() == make_workflow_schema(), f"write it anew: python -c '{WRITE}'"


def test_it_is_a_schema_of_its_dialect_with_its_name():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"] == SCHEMA_ID == "urn:agentflow:schema:workflow:1.0"


def shapes(kind: Kind, seen: set[int]) -> Iterator[Shape]:
    match kind:
        case ArrayOf() | Map():
            yield from shapes(kind.of, seen)
        case OneOf():
            for inner in kind.by_type.values():
                yield from shapes(inner, seen)
        case Shape() if id(kind) not in seen:
            seen.add(id(kind))
            yield kind
            for _, field in fields_of(kind):
                yield from shapes(field.kind, seen)
        case _:
            pass


def fields_of(shape: Shape) -> list[tuple[str, Field]]:
    return [*shape.fields.items(), *((k, f) for fields in shape.variants.values() for k, f in fields.items())]


FIELDS = [
    pytest.param(field, id=f"{shape.name}.{key}")
    for root in (STEP_DOCUMENT, AGENT_LIST)
    for shape in shapes(root, set())
    for key, field in fields_of(shape)
]


@pytest.mark.parametrize("field", FIELDS)
def test_every_key_is_described(field: Field):
    assert field.about[0].isupper() or field.about.startswith(("stdio", "streamable"))
    assert field.about.endswith(".")
    assert field.about.isprintable()


def test_every_key_stands_in_the_schema_with_its_description():
    text = workflow_schema().decode()
    for param in FIELDS:
        (field,) = param.values
        assert msgspec.json.encode(field.about).decode() in text


def step(**keys: Any) -> dict[str, Any]:
    agent = {"systemPrompt": "p", "input": 1, "resultSchema": True, "attachedFunctions": "none"}
    return {"type": "run", "id": "a", "agent": {**agent, **keys.pop("agent", {})}, **keys}


def defaults(shape: Shape) -> dict[str, Any]:
    return {key: field.default for key, field in shape.fields.items() if field.default is not msgspec.UNSET}


def member(shape: Shape, *path: str) -> Any:
    kind: Any = shape
    for key in path:
        kind = kind.fields[key].kind
        while isinstance(kind, ArrayOf | Map | OneOf):
            kind = kind.of if isinstance(kind, ArrayOf | Map) else kind.by_type["object"]
    return kind


@pytest.mark.parametrize(
    ("path", "write"),
    [
        (("workflow", "steps"), lambda d: step(**d)),
        (("workflow", "steps", "agent"), lambda d: step(agent=d)),
        (("workflow", "steps", "budget"), lambda d: step(budget=d)),
        (("workflow", "steps", "approval"), lambda d: step(approval=d)),
        (("workflow", "steps", "cache"), lambda d: step(cache={"ttl": 1, **d})),
        (("workflow", "steps", "retry"), lambda d: step(retry=d)),
        (("workflow", "steps", "retry", "backoff"), lambda d: step(retry={"backoff": d})),
    ],
)
def test_the_defaults_are_those_of_the_loader(path, write):
    stated = defaults(member(STEP_DOCUMENT, *path))
    assert stated
    plain = load_value({"version": "1.0", "workflow": {"steps": [write({})]}})
    made = load_value({"version": "1.0", "workflow": {"steps": [write(stated)]}})
    assert made.workflow == plain.workflow


def test_the_defaults_of_a_workflow_a_list_and_a_service():
    workflow = {**defaults(member(STEP_DOCUMENT, "workflow")), "steps": [step()]}
    assert load_value({"version": "1.0", "workflow": workflow}).workflow.options == (
        load_value({"version": "1.0", "workflow": {"steps": [step()]}}).workflow.options
    )
    agent = {"name": "a", "system_prompt": "p"}
    given_ = {**agent, **defaults(member(AGENT_LIST, "agents"))}
    assert load_value({"agents": [given_], **defaults(AGENT_LIST)}).workflow == (
        load_value({"agents": [agent]}).workflow
    )
    service = {"type": "python", "module": "m"}
    stated = defaults(member(STEP_DOCUMENT, "services"))
    made = [
        load_value({"agents": [agent], "services": {"s": s}}).workflow.services["s"]
        for s in (service, {**service, **stated})
    ]
    assert made[0] == made[1]


# --- the same documents through both


CASES = read_cases("documents/diagnostics")

# Left to the loader although they are wrong in form: what a key may be together with others, words of YAML,
# names inside names.
LOADER_ONLY = {
    "a key that is no string",
    "max_parallel counts iterations",
    "a reserved id",
    "schema and type",
    "models that name each other",
}
FORM = {
    "E_TYPE", "E_REQUIRED", "E_UNKNOWN_KEY", "E_VALUE", "E_VERSION", "E_FORMAT", "E_NO_STEPS",
    "E_NO_AGENTS", "E_AGENT_FIELD", "E_RETRY_POLICY",
}  # fmt: skip


def value_of(case: Case) -> Any:
    text = case.document if isinstance(case.document, str) else case.document.decode()
    media = "json" if (case.raw.get("media") or "yaml").endswith("json") else "yaml"
    return to_value(read_node(Source(text.removeprefix("\ufeff"), media), Report()))


@pytest.mark.parametrize(
    "case", [c for c in CASES if not any(w.code.startswith("E_") for w in c.wanted)], ids=str
)
def test_what_the_loader_accepts_is_accepted(case: Case):
    VALIDATOR.validate(value_of(case))


@pytest.mark.parametrize("case", [c for c in CASES if c.code in FORM and "format" not in c.raw], ids=str)
def test_what_is_wrong_in_form_is_refused(case: Case):
    assert VALIDATOR.is_valid(value_of(case)) == (case.title in LOADER_ONLY)


# --- random documents


def test_it_never_refuses_what_the_loader_accepts():
    accepted = {"as made": 0, "damaged": 0}
    for seed in range(600):
        author = Author(seed)
        document = author.document()
        for state in accepted:
            if state == "damaged":
                document = author.damaged(document)
            try:
                load_value(document)
            except DefinitionError:
                continue
            accepted[state] += 1
            problems = [error.message for error in VALIDATOR.iter_errors(document)]
            assert not problems, (seed, state, document)
    # References to steps and inputs are left to chance, so that many a document is refused.
    assert min(accepted.values()) > 10


def test_a_document_names_its_schema_without_a_word_of_the_loader():
    text = (
        "# yaml-language-server: $schema=workflow.schema.json\n"
        f'$schema: "{SCHEMA_ID}"\nversion: "1.0"\n'
        "workflow: {steps: [{type: run, id: a, agent: {systemPrompt: p, input: x, resultSchema: true,"
        " attachedFunctions: none}}]}\n"
    )
    assert check_text(text) == []
    assert load_text(text).workflow.metadata == {}


def test_the_reader_of_the_cases_is_that_of_the_loader():
    with pytest.raises(Fatal):
        value_of(next(c for c in CASES if c.code == "E_SYNTAX"))
