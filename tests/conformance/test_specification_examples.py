"""The four examples of the workflow definition specification: diagnostics, inputs, graphs (page 001 §8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.definition import check_file, check_inputs, load_file
from agentflow.definition.ir import AgentNode, Edge
from agentflow.engine.graph import compile_graph
from agentflow.errors import DefinitionError

DOCUMENTS = Path(__file__).parent / "documents"

VERSION = (1, 1, "W_VERSION_MISSING", "")
PARALLEL = [
    (49, 7, "W_ALL_FUNCTIONS", "/workflow/steps/2/agent"),
    (49, 7, "W_RESULT_SCHEMA_MISSING", "/workflow/steps/2/agent"),
]
ACCEPTED = {
    "1-sequential": [
        VERSION,
        (29, 7, "W_ALL_FUNCTIONS", "/workflow/steps/1/agent"),
        (29, 7, "W_RESULT_SCHEMA_MISSING", "/workflow/steps/1/agent"),
    ],
    "2-parallel-corrected": [VERSION, *PARALLEL],
    "3-conditional": [VERSION, (5, 7, "W_INPUT_MISSING", "/workflow/steps/0/agent")],
    "4-iteration": [
        VERSION,
        (5, 7, "W_ALL_FUNCTIONS", "/workflow/steps/0/agent"),
        (5, 7, "W_INPUT_MISSING", "/workflow/steps/0/agent"),
        (22, 7, "W_ALL_FUNCTIONS", "/workflow/steps/1/agent"),
        (22, 7, "W_RESULT_SCHEMA_MISSING", "/workflow/steps/1/agent"),
    ],
}


def nodes_of(name: str) -> list[AgentNode]:
    return [n for n in load_file(DOCUMENTS / f"{name}.yaml").workflow.nodes if isinstance(n, AgentNode)]


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_with_exactly_these_warnings(name: str):
    definition = load_file(DOCUMENTS / f"{name}.yaml")
    found = [(d.line, d.column, d.code, d.path) for d in definition.warnings]
    assert found == ACCEPTED[name]
    assert all(d.severity == "warning" for d in definition.warnings)
    assert definition.name == name
    assert definition.format == "agent-workflow/1.0"
    assert definition.version == "1.0"


def test_the_parallel_example_is_rejected_at_both_places():
    path = DOCUMENTS / "2-parallel.yaml"
    found = check_file(path)
    assert [(d.line, d.column, d.code, d.path) for d in found] == [
        VERSION,
        (48, 20, "E_UNKNOWN_DEPENDENCY", "/workflow/steps/2/depends_on/0"),
        *PARALLEL,
        (52, 31, "E_UNKNOWN_STEP", "/workflow/steps/2/agent/input/customer"),
    ]
    with pytest.raises(DefinitionError) as caught:
        load_file(path)
    assert caught.value.diagnostics == found
    file = str(path)
    assert [d.render() for d in found if d.severity == "error"] == [
        f'{file}:48:20: error E_UNKNOWN_DEPENDENCY: "enrich_ticket" depends on unknown step '
        '"get_customer_data"\n  hint: did you mean "get_customer_date"?',
        f'{file}:52:31: error E_UNKNOWN_STEP: unknown step "get_customer_data"\n'
        '  hint: did you mean "get_customer_date"?',
    ]


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("1-sequential", [("ticket_text", 8, 28)]),
        ("2-parallel-corrected", [("ticket_text", 8, 28)]),
        ("3-conditional", [("ticket", 31, 23)]),
        ("4-iteration", []),
    ],
)
def test_the_inputs_that_they_need(name: str, needed: list[tuple[str, int, int]]):
    definition = load_file(DOCUMENTS / f"{name}.yaml")
    assert [(i.name, i.line, i.column) for i in definition.required_inputs] == needed
    _, missing = check_inputs(definition, {})
    assert [(d.code, d.line, d.column) for d in missing] == [("E_INPUT_MISSING", *row[1:]) for row in needed]
    value, found = check_inputs(definition, {row[0]: "text" for row in needed})
    assert found == []
    assert value == {row[0]: "text" for row in needed}


def test_sequential_steps_become_a_chain_of_dependencies():
    fetch, enrich = nodes_of("1-sequential")
    assert (fetch.id, fetch.depends_on, fetch.join, fetch.index) == ("fetch_customer", (), "all_succeeded", 0)
    assert (enrich.id, enrich.depends_on, enrich.index) == ("enrich_ticket", ("fetch_customer",), 1)
    assert fetch.input == {"ticket_text": "${{ inputs.ticket_text }}"}
    assert [(f.service, f.function) for f in fetch.agent.functions or ()] == [
        ("customer", "getCustomer"),
        ("legacyUsers", "getCustomer"),
    ]
    assert enrich.agent.functions is None
    assert enrich.agent.output_schema is None
    assert isinstance(fetch.agent.output_schema, dict)
    assert fetch.agent.output_schema["properties"]["found"] == {"type": "boolean"}


def test_both_fetches_start_together_and_both_lead_to_the_third():
    workflow = load_file(DOCUMENTS / "2-parallel-corrected.yaml").workflow
    assert workflow.edges == (
        Edge(source="__start", target="get_customer_data"),
        Edge(source="__start", target="get_company_data"),
        Edge(source="enrich_ticket", target="__end"),
    )


def test_the_condition_and_the_iteration_keep_their_text():
    _, escalate = nodes_of("3-conditional")
    assert escalate.guard == '${{ steps.evaluate.outputs.result.urgency === "high" }}'
    assert escalate.join == "all_succeeded"
    records, process = nodes_of("4-iteration")
    assert process.for_each == "${{ steps.get_records.outputs.result.records }}"
    assert process.input == {"record": "${{ item.id }}"}
    assert records.input is None


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_engine_plans_what_the_loader_accepts(name: str):
    plan = compile_graph(load_file(DOCUMENTS / f"{name}.yaml").workflow)
    assert plan.step_ids == [node.id for node in nodes_of(name)]
