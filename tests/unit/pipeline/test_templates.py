"""Templates: reading, binding and installing (page 004 §12)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.stage_schemas import Plan, problems_of
from agentflow.errors import DefinitionError
from agentflow.pipeline.template_store import (
    MAX_TEMPLATE_BYTES,
    TemplateError,
    TemplateExists,
    TemplateNotFound,
    TemplateStore,
)
from agentflow.pipeline.templates import Input, Template, bind, command_line_inputs, read_template

HEAD = """name: demo
inputs:
  topic: {required: true}
  path: {default: out.md}
  count: {default: 3, schema: {type: integer}}
summary: "About ${{ inputs.topic }}"
steps:
"""
STEP = """  - id: a
    title: "{{topic}} and {{ other }}"
    action: "Write ${{ inputs.topic }} to {{path}}"
    owner: agent
    depends_on: []
    expected_artifacts: ["${{ inputs.path }}"]
    verification: {min_bytes: "${{ inputs.count }}", contains: ["{{topic}}"]}
"""


def template(text: str = HEAD + STEP) -> Template:
    return read_template(text, file="demo.yaml")


def codes(error: Any) -> list[str]:
    return [one.code for one in error.value.diagnostics]


def test_binding_keeps_types_and_leaves_what_is_no_input() -> None:
    plan, context, _ = bind(template(), {"topic": "cats"})
    assert problems_of(Plan, plan) == []
    step = plan["steps"][0]
    assert plan["summary"] == "About cats"
    assert (step["title"], step["action"]) == ("cats and {{ other }}", "Write cats to out.md")
    assert step["verification"] == {"min_bytes": 3, "contains": ["cats"]}
    assert context["inputs"] == {"topic": "cats", "path": "out.md", "count": 3}
    assert context["hash"] == "sha256:" + hashlib.sha256((HEAD + STEP).encode()).hexdigest()


def test_bound_values_are_data() -> None:
    hostile = "${{ inputs.path }} {{path}} {{topic}}"
    plan = bind(template(), {"topic": hostile}).plan
    assert plan["steps"][0]["verification"]["contains"] == [hostile]
    assert plan["summary"] == f"About {hostile}"


def test_ids_dependencies_and_toolsets_take_no_input() -> None:
    for key, value in (("id", '"${{ inputs.topic }}"'), ("depends_on", '["{{topic}}"]')):
        old = "id: a" if key == "id" else "depends_on: []"
        with pytest.raises(DefinitionError) as error:
            template(HEAD + STEP.replace(old, f"{key}: {value}"))
        assert codes(error)[0] in ("E_PLAN_STEP_ID", "E_PLAN_DEPENDENCY")
    found = template(HEAD + STEP + '    toolsets: ["{{topic}}"]\n')
    assert bind(found, {"topic": "terminal"}).plan["steps"][0]["toolsets"] == ["{{topic}}"]


def test_short_form_inside_an_expression_is_text() -> None:
    found = template(HEAD.replace("About ${{ inputs.topic }}", "${{ '{{topic}}' }} {{topic}}") + STEP)
    assert bind(found, {"topic": "cats"}).plan["summary"] == "{{topic}} cats"


def test_every_problem_of_the_inputs_is_told_at_once() -> None:
    with pytest.raises(DefinitionError) as error:
        bind(template(), {"topik": "x", "count": "three", "path": ["a"]})
    assert sorted(codes(error)) == [
        "E_TEMPLATE_INPUT_MISSING",
        "E_TEMPLATE_INPUT_TYPE",
        "E_TEMPLATE_INPUT_TYPE",
        "E_TEMPLATE_INPUT_UNKNOWN",
    ]
    assert any('did you mean "topic"?' in str(one.hint) for one in error.value.diagnostics)


def test_what_inputs_make_of_a_plan_is_checked_with_places() -> None:
    with pytest.raises(DefinitionError) as error:
        bind(template(), {"topic": "x", "path": "../../etc/passwd", "count": -1})
    assert codes(error) == ["E_PLAN_ARTIFACT", "E_PLAN_CHECK"]
    assert [one.line for one in error.value.diagnostics] == [13, 14]


def test_unknown_input_and_root_are_unbound() -> None:
    text = HEAD.replace("inputs.topic", "inputs.topik") + STEP.replace(
        "${{ inputs.topic }}", "${{ env.HOME }}"
    )
    with pytest.raises(DefinitionError) as error:
        template(text)
    assert codes(error) == ["E_TEMPLATE_UNBOUND", "E_TEMPLATE_UNBOUND"]
    assert [(one.line, one.file) for one in error.value.diagnostics] == [(6, "demo.yaml"), (10, "demo.yaml")]


BAD = {
    "name": (HEAD.replace("demo", "Demo!") + STEP, "E_TEMPLATE_SCHEMA"),
    "key": (HEAD + STEP + "step: []\n", "E_UNKNOWN_KEY"),
    "input_key": (HEAD.replace("required: true", "requird: true") + STEP, "E_UNKNOWN_KEY"),
    "default": (HEAD.replace("default: 3", "default: x") + STEP, "E_TEMPLATE_INPUT_TYPE"),
    "schema": (HEAD.replace("type: integer", "type: int") + STEP, "E_TEMPLATE_SCHEMA"),
    "no_steps": (HEAD.replace("steps:", "steps: []"), "E_PLAN_EMPTY"),
    "cycle": (HEAD + STEP.replace("depends_on: []", "depends_on: [a]"), "E_PLAN_CYCLE"),
    "step_key": (HEAD + STEP + "    colour: red\n", "E_PLAN_SCHEMA"),
    "syntax": (HEAD + STEP.replace("inputs.path", "inputs..path"), "E_EXPR_SYNTAX"),
    "yaml": ("name: [", "E_SYNTAX"),
    "list": ("[]", "E_TEMPLATE_SCHEMA"),
    "tag": ("name: !!python/object:os.system x", "E_YAML_SUBSET"),
}


@pytest.mark.parametrize(("text", "code"), BAD.values(), ids=BAD)
def test_text_that_is_no_template(text: str, code: str) -> None:
    with pytest.raises(DefinitionError) as error:
        template(text)
    assert code in codes(error)


def test_command_line_values_are_text_unless_the_schema_says_otherwise() -> None:
    assert command_line_inputs(template().inputs, ["topic=3", "count=4", "path=a=b"]) == {
        "topic": "3",
        "count": 4,
        "path": "a=b",
    }
    declared = {"note": Input(required=False, schema={"type": ["string", "null"]})}
    for text, value in (("null", None), ("a note", "a note"), ('"null"', "null")):
        assert command_line_inputs(declared, [f"note={text}"]) == {"note": value}
    with pytest.raises(DefinitionError) as error:
        command_line_inputs(template().inputs, ["count=four", "topic"])
    assert codes(error) == ["E_TEMPLATE_INPUT_TYPE", "E_TEMPLATE_INPUT_UNKNOWN"]


@settings(deadline=None)
@given(st.text(alphabet="${}'\" inputs.topcah{", max_size=30))
def test_any_text_of_an_input_stays_what_it_is(text: str) -> None:
    plan = bind(template(), {"topic": text}).plan
    assert plan["steps"][0]["verification"]["contains"] == [text]
    assert plan["steps"][0]["id"] == "a"


@settings(deadline=None)
@given(st.text(alphabet="${}'\"inputs.topc ", max_size=40))
def test_any_summary_is_read_or_refused(text: str) -> None:
    value = {"name": "demo", "inputs": {"topic": {}}, "summary": text, "steps": [
        {"id": "a", "title": "", "action": "", "owner": "agent", "depends_on": []}]}  # fmt: skip
    try:
        found = read_template(msgspec.json.encode(value), "json")
    except DefinitionError:
        return
    bound = bind(found, {"topic": "T"}).plan["summary"]
    if "{{" not in text:
        assert bound == text


# -- the store ----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> TemplateStore:
    (tmp_path / "workflows").mkdir()
    return TemplateStore(tmp_path / "user", tmp_path / "workflows")


def test_templates_of_the_product_bind(store: TemplateStore) -> None:
    found, problems = store.list()
    assert problems == []
    assert {one.origin for one in found} == {"built-in"}
    for one in found:
        inputs = {name: "ada@example.org" for name, given in one.template.inputs.items() if given.required}
        assert bind(one.template, inputs).plan["status"] == "ready"


def test_first_place_wins_and_the_others_are_named(store: TemplateStore, tmp_path: Path) -> None:
    store.put(HEAD + STEP)
    (tmp_path / "workflows" / "x.yml").write_text(HEAD.replace("About", "Mine:") + STEP)
    found = store.get("demo")
    assert found.origin == "workflows"
    assert [one.code for one in found.warnings] == ["W_TEMPLATE_SHADOWED"]


def test_install_checks_first_and_keeps_a_name_that_is_taken(store: TemplateStore, tmp_path: Path) -> None:
    source = tmp_path / "a.yaml"
    source.write_text(HEAD + STEP.replace("owner", "ownr"))
    with pytest.raises(DefinitionError):
        store.install(source)
    assert not (tmp_path / "user").exists()
    source.write_text(HEAD + STEP)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with pytest.raises(TemplateError, match="has the hash"):
        store.install(source, sha256="0" * 64)
    assert store.install(source, sha256=f"sha256:{digest}").origin == "user"
    with pytest.raises(TemplateExists):
        store.install(source)
    store.install(source, overwrite=True)
    store.remove("demo")
    with pytest.raises(TemplateNotFound):
        store.get("demo")


def test_set_changes_texts_alone(store: TemplateStore) -> None:
    store.put(HEAD + STEP)
    assert store.set("demo", {"description": "new"}).template.description == "new"
    assert store.get("demo").template.body["steps"] == template().body["steps"]
    with pytest.raises(TemplateError, match="cannot be changed"):
        store.set("demo", {"steps": []})


def test_template_of_the_product_is_not_removed(store: TemplateStore) -> None:
    with pytest.raises(TemplateError, match="is not removed"):
        store.remove("research_email_digest")


def test_file_that_is_no_template_hides_no_other(store: TemplateStore, tmp_path: Path) -> None:
    (tmp_path / "workflows" / "broken.yaml").write_text("name: [")
    store.put(HEAD + STEP)
    found, problems = store.list()
    assert "demo" in [one.template.name for one in found]
    assert [one.code for one in problems] == ["E_SYNTAX"]
    with pytest.raises(DefinitionError):
        store.get("broken")


@pytest.mark.parametrize(
    "url", ["http://example.org/a.yaml", "https://u:p@example.org/a.yaml", "file:///a.yaml"]
)
async def test_only_https_is_fetched(store: TemplateStore, url: str) -> None:
    with pytest.raises(TemplateError, match="https URL"):
        await store.install_url(url, sha256="0" * 64)


async def test_url_needs_a_hash_and_reaches_no_private_address(store: TemplateStore) -> None:
    with pytest.raises(TemplateError, match="needs its sha256"):
        await store.install_url("https://127.0.0.1:1/a.yaml", sha256=None)
    with pytest.raises(TemplateError, match="not public"):
        await store.install_url("https://127.0.0.1:1/a.yaml", sha256="0" * 64)


def test_size_is_limited(store: TemplateStore) -> None:
    with pytest.raises(TemplateError, match="more than"):
        store.put(b"#" * (MAX_TEMPLATE_BYTES + 1))
