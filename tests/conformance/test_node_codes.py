"""Every diagnostic and every error of page 003 is raised by some document here, or by the corpus it names.

The tables are those of the page (§5, §12; §3, §4, §6, §7, §9): a code that no document raises fails a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, ToolNotFound, WorkflowRuntime, function
from agentflow.definition.failure import ErrorInfo
from agentflow.docs.codes import DIAGNOSTICS
from agentflow.errors import CheckpointNotFound, CommandRefused, DefinitionError
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.graphs.homes import close_runtimes
from agentflow.models import ModelError
from agentflow.records.checkpoint_store import FilesystemCheckpointStore
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.unit.definition import test_ir_diagnostics, test_node_yaml

ROOT = Path(__file__).parents[2]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STRUCTURE = _words("""
E_UNSUPPORTED_VERSION E_EMPTY_WORKFLOW_NAME E_EMPTY_WORKFLOW E_EMPTY_NODE_ID E_DUPLICATE_NODE_ID
E_UNKNOWN_TARGET E_MISSING_START E_MULTIPLE_START E_MISSING_END E_UNREACHABLE_NODE E_NO_PATH_TO_END
E_EMPTY_FIELD E_INVALID_NODE_ID E_UNKNOWN_KIND E_UNKNOWN_KEY E_MISSING_NEXT E_DEAD_END
E_DUPLICATE_EDGE E_END_IN_BRANCH E_BRANCH_ESCAPE E_DUPLICATE_BRANCH E_TYPE E_VALUE
E_CONFLICTING_FIELDS E_SCHEMA E_RETRY_POLICY E_INVALID_PATH E_UNKNOWN_REFERENCE E_CAPABILITY_DENIED
W_UNBOUNDED_CYCLE W_LOOP_BODY_NO_RETURN W_GATE_WITHOUT_ALTERNATE W_BRANCH_OVERLAP
W_MERGE_SOURCE_OUTSIDE_BRANCHES W_MAYBE_UNSET W_IGNORED_FIELD W_STREAM_HEAL_CONFLICT
""")
NODE_YAML = _words("""
E_MISSING_ENTRY E_UNKNOWN_EDGE_FROM E_UNKNOWN_EDGE_TO E_DUPLICATE_EDGE_FROM E_EDGE_FROM_SWITCH
E_EDGE_FROM_END E_MISSING_NODE_TYPE E_MULTIPLE_NODE_TYPES E_INVALID_TOOL_ROUNDTRIPS
E_EMPTY_TOOL_NAME E_DUPLICATE_TOOL_NAME E_MISSING_TOOL_SCHEMA E_INVALID_TOOL_SCHEMA
E_INVALID_TOOL_CHOICE E_UNKNOWN_TOOL_CHOICE E_INVALID_TOOLS_FORMAT E_MISSING_CHOICE_OPTIONS
E_MISSING_FORM_SCHEMA E_INVALID_FORM_SCHEMA E_MISSING_UPDATE_FROM E_UNKNOWN_GLOBAL_OP
E_EMPTY_GLOBAL_KEY W_TEXT_OPTIONS_IGNORED W_FORM_SCHEMA_NOT_OBJECT
""")
BINDING = _words("""
E_TOOL_UNKNOWN E_UNKNOWN_MODEL E_UNKNOWN_SUBGRAPH E_UNREGISTERED_CALLABLE E_MISSING_WORKER
E_INPUT_INVALID
""")
RUNS: dict[str, tuple[str, str]] = {
    "expression_error": ("expression", "path expression offset reason"),
    "expression_scope_limit_exceeded": ("agent", "path expression offset reason"),
    "state_conflict": ("agent", "key"),
    "map_items_not_array": ("invalid_input", ""),
    "map_item_limit_exceeded": ("agent", "limit"),
    "batch_items_not_array": ("invalid_input", ""),
    "batch_item_limit_exceeded": ("agent", "limit"),
    "filter_items_not_array": ("invalid_input", ""),
    "filter_item_limit_exceeded": ("agent", "limit"),
    "cache_key_not_string": ("invalid_input", ""),
    "invalid_reduce_input": ("invalid_input", "reason"),
    "missing_merge_source": ("agent", "source"),
    "loop_iteration_limit_exceeded": ("agent", "limit"),
    "parallel_branch_limit_exceeded": ("agent", "limit"),
    "step_limit_exceeded": ("agent", "limit"),
    "merge_quorum_not_met": ("agent", "needed arrived failed"),
    "merge_timeout": ("timeout", ""),
    "llm_retry_exhausted": ("agent", "attempts last_error"),
    "llm_timeout": ("timeout", "timeout_ms attempts"),
    "tool_roundtrips_exceeded": ("agent", "limit"),
    "tool_retry_exhausted": ("tool", "attempts last_error"),
    "tool_timeout": ("timeout", ""),
    "tool_not_attached": ("policy", ""),
    "invalid_tool_input": ("invalid_input", "errors"),
    "invalid_tool_output": ("tool", ""),
    "invalid_output": ("invalid_output", "errors"),
    "invalid_messages": ("invalid_input", ""),
    "retry_compensate_failed": ("agent", "attempts compensation_error"),
    "dynamic_graph_invalid": ("invalid_input", "diagnostics"),
    "depth_exceeded": ("agent", ""),
    "invalid_human_decision": ("invalid_input", ""),
    "input_timeout": ("timeout", ""),
    "invalid_event_value": ("invalid_input", ""),
}
"""The category (§7) and the details of each error of a run."""
COMMANDS = _words("""
missing_tool_executor tool_not_found replay_divergence replay_miss not_failed cancelled
checkpoint_not_found
""")


def graph(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A graph from its first node; a node leads to the next one unless it says where."""
    placed = [
        {"next": (nodes[i + 1]["id"] if i + 1 < len(nodes) else "end"), **node}
        for i, node in enumerate(nodes)
    ]
    for node in placed:
        if node["type"] in _WITHOUT_NEXT or node["next"] is None:
            del node["next"]
    start = {"id": "start", "type": "start", "next": nodes[0]["id"]}
    return {"version": "v0", "name": "w", "nodes": [start, *placed, {"id": "end", "type": "end"}], **more}


_WITHOUT_NEXT = ("condition", "router", "end")


def node(kind: str, id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, **fields}


# -- binding and input -----------------------------------------------------------------------------

ASKING = {"name": "nothing", "input_schema": True}
BOUND: dict[str, Any] = {
    "E_TOOL_UNKNOWN": graph(node("llm", model="scripted:m", prompt="p", tools=[ASKING])),
    "E_UNKNOWN_MODEL": graph(node("llm", model="nobody:m", prompt="p")),
    "E_UNKNOWN_SUBGRAPH": graph(node("subgraph", graph="nothing")),
    "E_UNREGISTERED_CALLABLE": graph(
        node("executor", executor="nothing", next=None), edges=[{"source": "a", "target": "end"}]
    ),
    "E_MISSING_WORKER": graph(node("tool", tool="worker:nothing")),
    "E_INPUT_INVALID": graph(node("transform", value=1), input_schema={"type": "object"}),
}


@pytest.mark.parametrize("code", BINDING)
async def test_a_submission_is_refused_with_its_code(code: str):
    async with Runtime(models=[ScriptedModel([])]) as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.submit(BOUND[code], 7)
        assert not (await runtime.log.runs()).items
    assert [found.code for found in refused.value.diagnostics if found.severity == "error"] == [code]


# -- runs ------------------------------------------------------------------------------------------


@function(side_effect="none")
def double(x: int) -> int:
    return 2 * x


@function(side_effect="none")
def fail() -> None:
    raise ValueError("no")


@function(side_effect="none")
def strange() -> Any:
    return object()


@function(side_effect="none", timeout=0.01)
async def hang() -> None:
    await asyncio.Event().wait()


async def never(request: Any) -> str:
    await asyncio.Event().wait()
    return ""


def use(tool: str, id: str = "a", **fields: Any) -> dict[str, Any]:
    return node("tool", id, tool=f"desk.{tool}", input={}, **fields)


def ask(id: str = "a", **fields: Any) -> dict[str, Any]:
    return node("llm", id, model="scripted:m", prompt="p", **fields)


def branches(*made: dict[str, Any], **merge: Any) -> tuple[dict[str, Any], ...]:
    ids = [one["id"] for one in made]
    opened = node("parallel", "p", branches=ids, next="m")
    joined = node("merge", "m", sources=ids, policy="all", next="end") | merge
    return (opened, *({**one, "next": "m"} for one in made), joined)


def decides(**fields: Any) -> dict[str, Any]:
    return node("human_in_the_loop", on_approve="end", on_reject="end", next=None, **fields)


def setting(id: str, value: int) -> dict[str, Any]:
    return node("transform", id, value=value, set_globals={"g": f"nodes.{id}.output"})


ROUND = (
    node("loop", "l", condition="true", body="b", next="end"),
    node("transform", "b", value=1, next="l"),
)
SELF = graph(node("subgraph", "s", graph="again"))
TRANSIENT = ModelError(ErrorInfo(category="agent", code="odd", message="odd"))
INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OFFERED = {"name": "double", "input_schema": INTEGER}

RAISED: dict[str, tuple[dict[str, Any], Any, list[Any]]] = {
    "expression_scope_limit_exceeded": (
        graph(node("transform", expression="input"), options={"max_expression_scope_bytes": 100}),
        "x" * 200,
        [],
    ),
    "tool_retry_exhausted": (
        graph(use("fail", policy={"retry": {"max_attempts": 2, "backoff": "1ms"}})),
        {},
        [],
    ),
    "expression_error": (graph(node("transform", expression="input.x > 3")), {"x": "s"}, []),
    "state_conflict": (graph(*branches(setting("a", 1), setting("b", 2))), {}, []),
    "map_items_not_array": (graph(node("map", items_path="input", tool="desk.double")), 5, []),
    "map_item_limit_exceeded": (
        graph(node("map", items_path="input", tool="desk.double"), options={"max_map_items": 1}),
        [1, 2],
        [],
    ),
    "cache_key_not_string": (graph(node("cache_read", key_path="input")), 1, []),
    "loop_iteration_limit_exceeded": (graph(ROUND[0] | {"max_iterations": 2}, ROUND[1]), {}, []),
    "step_limit_exceeded": (graph(*ROUND, options={"max_steps": 9}), {}, []),
    "parallel_branch_limit_exceeded": (
        graph(*branches(setting("a", 1), setting("b", 1)), options={"max_parallel_branches": 1}),
        {},
        [],
    ),
    "merge_quorum_not_met": (
        graph(*branches(use("fail", "a"), use("fail", "b"), policy="quorum", quorum=1)),
        {},
        [],
    ),
    "merge_timeout": (
        graph(*branches(node("wait", "a", duration="1h"), setting("b", 1), timeout="10ms")),
        {},
        [],
    ),
    "missing_merge_source": (
        graph(
            node("condition", "c", expression="input.x", on_true="t", on_false="r"),
            node("transform", "t", value=[1]),
            node("reduce", "r", source="t", operation="count"),
        ),
        {},
        [],
    ),
    "invalid_reduce_input": (graph(node("reduce", items_path="input", operation="sum")), ["a"], []),
    "batch_items_not_array": (graph(node("batch", items_path="input")), 1, []),
    "batch_item_limit_exceeded": (
        graph(node("batch", items_path="input"), options={"max_batch_items": 1}),
        [1, 2],
        [],
    ),
    "filter_items_not_array": (graph(node("filter", items_path="input", expression="item")), 1, []),
    "filter_item_limit_exceeded": (
        graph(node("filter", items_path="input", expression="item"), options={"max_filter_items": 1}),
        [1, 2],
        [],
    ),
    "invalid_output": (graph(ask(output_schema=INTEGER)), {}, ["no"] * 3),
    "llm_retry_exhausted": (graph(ask()), {}, [TRANSIENT]),
    "llm_timeout": (graph(ask(policy={"timeout": "50ms"})), {}, [never]),
    "tool_roundtrips_exceeded": (graph(ask(tools=[OFFERED])), {}, [call("double", x=1)] * 2),
    "invalid_tool_input": (graph(node("tool", tool="desk.double", input={"x": "s"})), {}, []),
    "invalid_tool_output": (graph(use("strange")), {}, []),
    "tool_timeout": (graph(use("hang")), {}, []),
    "tool_not_attached": (graph(ask(tools=[OFFERED])), {}, [call("desk__fail"), "sorry"]),
    "retry_compensate_failed": (
        graph(
            node("retry_compensate", tool="desk.fail", max_retries=0, compensate_tool="desk.fail", input={})
        ),
        {},
        [],
    ),
    "dynamic_graph_invalid": (graph(node("subgraph", graph_path="input")), {"nodes": 1}, []),
    "depth_exceeded": (
        graph(node("subgraph", graph="again"), graphs={"again": SELF}, options={"budget": {"max_depth": 1}}),
        {},
        [],
    ),
    "invalid_human_decision": (
        graph(decides(decision_path="input")),
        "maybe",
        [],
    ),
    "input_timeout": (
        graph(node("human_in_the_loop", input_type="text", timeout="10ms")),
        {},
        [],
    ),
    "invalid_event_value": (graph(node("event_trigger", event="e", event_path="input")), 5, []),
    "invalid_messages": (graph(ask(messages_path="input")), [], []),
}


def chain_of(error: Any) -> Iterator[ErrorInfo]:
    while error is not None:
        yield error
        error = error.cause


@pytest.mark.parametrize("code", RUNS)
async def test_a_run_raises_its_error(code: str):
    """First of the step, then of the run, and nothing more."""
    document, value, answers = RAISED[code]
    services = [Service.of("desk", double, fail, strange, hang)]
    async with Runtime(models=[ScriptedModel(answers)], services=services) as runtime:
        handle = await runtime.submit(document, value)
        events = [event async for event in runtime.events(handle.workflow_id)]
    raised = [found for event in events for found in chain_of(getattr(event.data, "error", None))]
    category, details = RUNS[code]
    found = next((error for error in raised if error.code == code), None)
    assert found is not None, [error.code for error in raised]
    assert found.category == category
    assert set(details.split()) <= (found.details or {}).keys()
    assert [event.type for event in events if event.type in TERMINAL_TYPES] == [events[-1].type]
    if events[-1].type == "workflow.failed":
        assert code == "step_limit_exceeded" or any(e.type == "workflow.step_failed" for e in events)


# -- commands and readers --------------------------------------------------------------------------


async def _missing_tool_executor() -> str:
    result = await WorkflowRuntime().execute(graph(use("double")), {})
    await close_runtimes()
    assert result.error is not None
    return result.error.code


async def _tool_not_found() -> str:
    class Tools:
        def execute_tool(self, request: Any) -> Any:
            raise ToolNotFound(request.tool)

    result = await WorkflowRuntime(tool_executor=Tools()).execute(graph(use("double")), {})
    await close_runtimes()
    assert result.error is not None
    return result.error.code


async def _replay(policy_input: Any, ends: bool) -> str:
    source = graph(node("tool", tool="worker:w") if ends else node("event_trigger", event="e"))
    async with Runtime(workers={"w": lambda payload: payload}) as runtime:
        handle = await runtime.submit(source, 1, workflow_id="wf_a")
        await handle.rest()
        replayed = await (await runtime.replay("wf_a", "Always", input=policy_input)).rest()
        if replayed.error is None:
            replayed = await (
                await runtime.replay("wf_a", "Always", definition=graph(node("tool", tool="worker:w")))
            ).rest()
    assert replayed.error is not None
    return replayed.error.code


async def _not_failed() -> str:
    async with Runtime() as runtime:
        done = await runtime.run(graph(node("transform", value=1)), {})
        with pytest.raises(CommandRefused) as refused:
            await WorkflowRuntime(runtime).execute_resume_from_failure(done.workflow_id)
    return refused.value.code


async def _cancelled() -> str:
    async with Runtime() as runtime:
        handle = await runtime.submit(graph(node("wait", duration="1h")), {})
        await (await handle.cancel()).rest()
        events = [event async for event in runtime.events(handle.workflow_id)]
    return next(e.data.error.code for e in events if e.type == "workflow.step_failed")


async def _checkpoint(root: Any) -> str:
    with pytest.raises(CheckpointNotFound) as refused:
        FilesystemCheckpointStore(root).load("wf_a@1")
    return refused.value.code


async def test_commands_raise_their_errors(tmp_path: Any):
    found = {
        await _missing_tool_executor(),
        await _tool_not_found(),
        await _replay(2, True),
        await _replay(1, False),
        await _not_failed(),
        await _cancelled(),
        await _checkpoint(tmp_path),
    }
    assert found == set(COMMANDS)


# -- the tables ------------------------------------------------------------------------------------

ELSEWHERE = {
    "subgraph_not_found": "tests/integration/test_child_runs.py",
    "scope_access_denied": "tests/conformance/kinds/test_capabilities.py",
    "already_finalized": "tests/unit/records/test_trace.py",
}
"""Codes that other tests raise, in the file that is named."""


def test_every_diagnostic_of_the_page_has_a_document():
    in_graphs = {code for code, _, _ in test_ir_diagnostics.CASES.values()}
    in_yaml = set(test_node_yaml.CASES)
    assert set(STRUCTURE) <= in_graphs | in_yaml
    assert set(NODE_YAML) <= in_yaml
    assert set(BINDING) == set(BOUND)
    assert set(STRUCTURE) | set(NODE_YAML) | set(BINDING) <= set(DIAGNOSTICS)


def test_every_error_of_the_page_has_a_run():
    assert RUNS.keys() == RAISED.keys()
    text = (ROOT / "agentflow/docs/codes.md").read_text()
    assert not [code for code in (*RUNS, "missing_tool_executor", "replay_miss") if f"`{code}`" not in text]
    for code, file in ELSEWHERE.items():
        assert code in (ROOT / file).read_text(), file
