"""WorkflowRuntime and the functions of page 003 §1: importable from the package, on real runs."""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentflow
from agentflow import (
    LlmRequest,
    LlmResponse,
    ReplayCachePolicy,
    Runtime,
    Service,
    ToolNotFound,
    ToolRequest,
    WorkflowRuntime,
    WorkflowValidationError,
    execute_resume_from_failure,
    export_trace,
    function,
    node_timeline,
    replay,
    replay_trace,
    retry_reason_summary,
    run_workflow_yaml,
    run_workflow_yaml_stream,
)
from agentflow.definition.conversation import Usage
from agentflow.errors import CommandRefused
from agentflow.events.deltas import ModelDelta
from agentflow.events.memory import MemoryLog
from agentflow.graphs.homes import close_runtimes
from agentflow.records import trace_check
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import log_of


@pytest.fixture(autouse=True)
async def default_runtime() -> Any:
    """Close the default Runtime of the loop behind each test."""
    yield
    await close_runtimes()


def node(id: str, kind: str, fields: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "node_type": {kind: fields if fields is not None else {}}, **more}


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    ids = [one["id"] for one in nodes]
    edges = [{"from": a, "to": b} for a, b in itertools.pairwise(ids)]
    return {"id": "w", "entry_node": ids[0], "nodes": list(nodes), "edges": edges, **more}


def write(folder: Path, source: dict[str, Any]) -> Path:
    path = folder / "flow.yaml"
    path.write_text(json.dumps(source))
    return path


ASK = node("a", "llm_call", {"model": "gpt-x", "prompt": "Hi {{ input.n }}", "temperature": 0.5})
SCORE = node("b", "custom_worker", {"handler": "score"}, config={"payload": "{{ nodes.a.output }}"})
FIND = node("c", "tool", {"tool": "crm.find", "input": {"q": "{{ nodes.b.output }}"}})
ALONE = node("c", "tool", {"tool": "crm.find", "input": {}})


class Llm:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[LlmRequest] = []

    async def execute(self, request: LlmRequest) -> Any:
        self.requests.append(request)
        return self.answers.pop(0)


class Tools:
    def __init__(self) -> None:
        self.requests: list[ToolRequest] = []

    def execute_tool(self, request: ToolRequest) -> Any:
        self.requests.append(request)
        if request.tool == "crm.lost":
            raise ToolNotFound(request.tool)
        return {"tool": request.tool, "input": request.input}


async def test_calls_go_to_the_injected_executors_with_what_was_resolved():
    llm, tools = Llm("yes"), Tools()
    runtime = WorkflowRuntime(llm_executor=llm, tool_executor=tools)
    result = await runtime.execute(document(ASK, SCORE, FIND), {"n": "Ann"})
    assert result.status == "completed", result.error
    (asked,) = llm.requests
    assert (asked.model, asked.provider, asked.prompt, asked.system) == ("gpt-x", "", "Hi Ann", None)
    assert asked.parameters == {"temperature": 0.5}
    assert [(r.tool, r.input) for r in tools.requests] == [
        ("worker:score", "yes"),
        ("crm.find", {"q": {"tool": "worker:score", "input": "yes"}}),
    ]
    assert result.output == {"tool": "crm.find", "input": tools.requests[1].input}


async def test_a_model_of_any_provider_goes_to_the_executor():
    llm = Llm({"x": 1})
    schema = {"type": "object", "required": ["x"]}
    source = document(node("a", "llm_call", {"model": "nobody:m", "prompt": "p", "output_schema": schema}))
    result = await WorkflowRuntime(llm_executor=llm).execute(source)
    assert (result.output, llm.requests[0].provider, llm.requests[0].output_schema) == (
        {"x": 1},
        "nobody",
        schema,
    )


async def test_an_executor_calls_functions_and_counts_tokens():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    tool = {"name": "find", "description": "Finds.", "input_schema": schema}
    asks = {"name": "find", "arguments": {"q": "x"}}
    llm = Llm(
        LlmResponse(tool_calls=(asks,), usage=Usage(input_tokens=5, model_calls=1)),
        LlmResponse(text="done", usage=Usage(input_tokens=7, output_tokens=2, model_calls=1)),
    )
    tools = Tools()
    runtime = WorkflowRuntime(llm_executor=llm, tool_executor=tools)
    result = await runtime.execute(
        document(node("a", "llm_call", {"model": "m", "prompt": "p", "tools": [tool]}))
    )
    assert (result.output, result.usage.input_tokens) == ("done", 12)
    assert [(r.tool, r.input) for r in tools.requests] == [("find", {"q": "x"})]


class Failing:
    def execute(self, request: LlmRequest) -> Any:
        raise RuntimeError("no line")


async def test_an_executor_that_raises_fails_its_node():
    result = await WorkflowRuntime(llm_executor=Failing()).execute(document(ASK), {"n": 1})
    assert (result.status, result.error.code, result.node_executions[0].error.cause.code) == (
        "failed",
        "llm_retry_exhausted",
        "executor_failed",
    )


async def test_a_function_without_an_executor_fails_its_node():
    result = await WorkflowRuntime().execute(document(ALONE), {})
    assert (result.status, result.error.code) == ("failed", "missing_tool_executor")


async def test_with_a_runtime_an_unknown_function_is_refused_at_once():
    async with Runtime() as runtime:
        with pytest.raises(WorkflowValidationError, match=r"E_UNKNOWN_SERVICE|E_TOOL_UNKNOWN"):
            await WorkflowRuntime(runtime).execute(document(ALONE), {})


async def test_an_executor_says_that_it_has_no_function():
    source = document(node("a", "tool", {"tool": "crm.lost", "input": {}}))
    result = await WorkflowRuntime(tool_executor=Tools()).execute(source)
    assert result.error.code == "tool_not_found"


async def test_registered_functions_come_before_the_executor():
    @function(side_effect="none")
    def find(q: Any) -> str:
        return "registered"

    tools = Tools()
    async with Runtime(services=[Service.of("crm", find)]) as runtime:
        source = document(node("c", "tool", {"tool": "crm.find", "input": {"q": 1}}))
        result = await WorkflowRuntime(runtime, tool_executor=tools).execute(source)
    assert (result.output, tools.requests) == ("registered", [])


async def test_two_runtimes_of_one_loop_have_workers_of_their_own():
    source = document(node("b", "custom_worker", {"handler": "score"}))
    one = WorkflowRuntime(workers={"score": lambda payload: "one"})
    two = WorkflowRuntime(workers={"score": lambda payload: "two"})
    assert [(await r.execute(source)).output for r in (one, two, one)] == ["one", "two", "one"]


async def test_child_runs_use_what_was_injected():
    inner = {
        "name": "inner",
        "version": "v0",
        "nodes": [
            {"id": "s", "type": "start", "next": "w"},
            {"id": "w", "type": "tool", "tool": "worker:score", "next": "l"},
            {"id": "l", "type": "llm", "model": "m", "prompt": "{{ nodes.w.output }}", "next": "e"},
            {"id": "e", "type": "end"},
        ],
    }
    llm = Llm("answer")
    runtime = WorkflowRuntime(llm_executor=llm, workers={"score": lambda payload: "scored"})
    result = await runtime.execute(document(node("c", "subgraph", {"inline": inner, "isolation": "run"})), {})
    assert result.status == "completed", result.error
    assert llm.requests[0].prompt == "scored"


def test_what_is_no_handler_is_refused():
    with pytest.raises(TypeError, match="takes ticket"):
        WorkflowRuntime(workers={"score": lambda ticket: None})


# -- results ---------------------------------------------------------------------------------------


async def test_the_result_is_a_view_of_the_log():
    tries: list[int] = []

    @function(side_effect="none")
    def flaky(payload: Any) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "ok"

    retry = {"max_attempts": 3, "backoff": {"type": "fixed", "initial": "1ms"}}
    source = document(node("a", "custom_worker", {"handler": "flaky"}, retry=retry), node("e", "end", {}))
    runtime = WorkflowRuntime(workers={"flaky": flaky})
    result = await runtime.execute(source, {}, workflow_id="wf_r")
    assert (result.workflow_id, result.workflow_name, result.terminal_node_id) == ("wf_r", "w", "e")
    assert result.node_outputs == {"a": "ok", "e": "ok"}
    assert [(e.clock, e.step_id, e.visit, e.attempts, e.status) for e in result.node_executions] == [
        (0, "a", 1, 3, "completed"),
        (1, "e", 1, 1, "completed"),
    ]
    assert [(r.step_id, r.operation, r.reason) for r in result.retry_events] == [
        ("a", "tool", "tool_execution_failed")
    ] * 2
    assert replay_trace(result.trace).terminal_status == "completed"
    assert (await retry_reason_summary("wf_r"))[0].reasons == {"tool_execution_failed": 2}
    assert [entry.event for entry in await node_timeline("wf_r")][-1] == "node_completed"
    assert await export_trace("wf_r", "logical") == result.trace
    assert json.loads(json.dumps(dict(result), default=lambda value: str(value)))["status"] == "completed"


async def test_a_bad_definition_raises_every_diagnostic_and_makes_no_run():
    runtime = WorkflowRuntime()
    with pytest.raises(WorkflowValidationError) as refused:
        await runtime.execute(document(node("a", "nothing"), node("b", "transform", {"expression": "(("})))
    assert {found.code for found in refused.value.diagnostics} >= {"E_UNKNOWN_KIND"}
    assert not (await (await runtime.runtime()).log.runs()).items


async def test_a_cancelled_and_a_waiting_run_have_results():
    runtime = WorkflowRuntime()
    source = document(node("p", "human_input", {"input_type": "text", "prompt": "?"}))
    result = await runtime.execute(source, workflow_id="wf_w")
    assert (result.status, result.terminal_node_id, result.error) == ("waiting", None, None)
    home = await runtime.runtime()
    await (await home.cancel("wf_w")).rest()
    assert (await runtime.result("wf_w")).status == "cancelled"


async def test_the_fresh_trace_is_checked_on_demand():
    runtime = WorkflowRuntime()
    source = document(node("a", "transform", {"value": 1}))
    assert (await runtime.execute(source)).replay_report is None
    result = await runtime.execute(source, options={"replay_mode": "validate_recorded_trace"})
    assert result.replay_report is not None
    assert result.replay_report.terminal_status == "completed"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_trace_that_is_not_valid_is_an_error_of_the_log(
    monkeypatch: pytest.MonkeyPatch, restarted: bool
):
    """Only a defect of the engine makes one: here the checks are told of a graph without the node `w`."""
    check = trace_check.check_trace

    def other(trace: Any, workflow: Any) -> Any:
        nodes = tuple(one for one in workflow.nodes if one.id != "w")
        return check(trace, msgspec.structs.replace(workflow, nodes=nodes))

    monkeypatch.setattr(trace_check, "check_trace", other)
    ask = {"id": "w", "type": "human_in_the_loop", "input_type": "text", "next": "end"}
    ends = [{"id": "start", "type": "start", "next": "w"}, {"id": "end", "type": "end"}]
    log = MemoryLog()
    async with Runtime(log) as runtime:
        for run, options in (("wf_a", {"replay_mode": "validate_recorded_trace"}), ("wf_b", {})):
            await runtime.submit({"name": "w", "nodes": [*ends, ask]}, {}, workflow_id=run, options=options)
        if not restarted:
            await answer_all(runtime)
    if restarted:
        async with Runtime(log) as runtime:
            await runtime.recover()
            await answer_all(runtime)
    for run, types in (("wf_a", ["system.error"]), ("wf_b", [])):
        events = await log_of(log, run)
        assert [e.type for e in events if e.type.startswith("system.")] == types
        assert events[-1].type == "workflow.completed"
        for event in events[-2:-1] if types else ():
            assert event.data.error.code == "trace_invalid"
            (found,) = event.data.error.details["violations"]
            assert (found["code"], found["message"]) == ("E_UNKNOWN_NODE", 'the definition has no node "w"')


async def answer_all(runtime: Runtime) -> None:
    for run in ("wf_a", "wf_b"):
        await (await runtime.attach(run)).rest()
        (asked,) = await runtime.requests(run)
        await (await runtime.answer(run, asked.request_id, "yes")).result()


# -- replay and resume -----------------------------------------------------------------------------


async def test_a_replay_is_served_from_the_record():
    called: list[int] = []
    runtime = WorkflowRuntime(workers={"score": lambda payload: called.append(1) or len(called)})
    source = document(node("b", "custom_worker", {"handler": "score"}))
    first = await runtime.execute(source, workflow_id="wf_1")
    again = await replay("wf_1", ReplayCachePolicy.Always)
    assert (again.output, len(called)) == (first.output, 1)
    anew = await replay("wf_1")
    assert (anew.output, len(called)) == (2, 2)
    assert (await export_trace(again.workflow_id, "logical")) == first.trace


async def test_a_failed_run_goes_on_from_its_failure():
    called: list[str] = []

    def first(payload: Any) -> str:
        called.append("first")
        return "kept"

    def second(payload: Any) -> str:
        called.append("second")
        if called.count("second") == 1:
            raise ValueError("down")
        return f"{payload}!"

    nodes = (
        node("a", "custom_worker", {"handler": "first"}),
        node("b", "custom_worker", {"handler": "second"}, config={"payload": "{{ nodes.a.output }}"}),
    )
    runtime = WorkflowRuntime(workers={"first": first, "second": second})
    failed = await runtime.execute(document(*nodes), workflow_id="wf_f")
    assert failed.status == "failed"
    gone_on = await execute_resume_from_failure("wf_f")
    assert (gone_on.status, gone_on.output, called) == ("completed", "kept!", ["first", "second", "second"])
    assert gone_on.workflow_id != "wf_f"
    with pytest.raises(CommandRefused) as refused:
        await execute_resume_from_failure(gone_on.workflow_id)
    assert refused.value.code == "not_failed"


async def test_another_process_goes_on_with_workers_of_its_own(tmp_path: Path):
    store = f"sqlite:{tmp_path / 'runs.db'}"
    source = document(
        node("p", "human_input", {"input_type": "text", "prompt": "?"}),
        node("b", "custom_worker", {"handler": "score"}, config={"payload": "{{ nodes.p.output }}"}),
    )
    async with Runtime(store) as home:
        await WorkflowRuntime(home, workers={"score": lambda payload: "old"}).execute(
            source, workflow_id="wf_p"
        )
    async with Runtime(store) as home:
        runtime = WorkflowRuntime(home, workers={"score": lambda payload: f"new {payload}"})
        request = (await runtime.output("wf_p")).human_request
        assert request is not None
        assert (await runtime.answer("wf_p", {request.request_id: "x"})).output == "new x"


# -- files -----------------------------------------------------------------------------------------


async def test_a_file_gives_its_output_object(tmp_path: Path):
    path = write(
        tmp_path, document(ASK, SCORE, node("e", "end", {"r": "{{ nodes.b.output }}"}), metadata={"o": 1})
    )
    llm = Llm(LlmResponse(text="yes", usage=Usage(input_tokens=3, output_tokens=2, model_calls=1)))
    output = await run_workflow_yaml(
        path, {"n": "Ann"}, llm_executor=llm, workers={"score": lambda payload: payload.upper()}
    )
    assert (output["status"], output.terminal_node, output.terminal_output) == (
        "completed",
        "e",
        {"r": "YES"},
    )
    assert output.trace == ["a", "b", "e"]
    assert output.outputs == {"a": {"output": "yes"}, "b": {"output": "YES"}, "e": {"output": {"r": "YES"}}}
    assert (output.entry_node, output.definition["id"], output.metadata) == ("a", "w", {"o": 1})
    assert (output.total_input_tokens, output.total_output_tokens, output.total_tokens) == (3, 2, 5)
    assert output.llm_node_models == {"a": "executor:gpt-x"}
    assert [t.node_id for t in output.step_timings] == ["a", "b", "e"]
    assert output.trace_id


async def test_wrong_options_of_a_file_are_diagnostics(tmp_path: Path):
    path = write(tmp_path, document(node("a", "transform", {"value": 1})))
    with pytest.raises(WorkflowValidationError) as refused:
        await run_workflow_yaml(path, options={"telemetry": {"sample": 1}})
    assert refused.value.diagnostics[0].path == "/options/telemetry/sample"


async def test_a_missing_file_is_a_diagnostic(tmp_path: Path):
    with pytest.raises(WorkflowValidationError, match="E_FILE"):
        await run_workflow_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize("split", [False, True])
async def test_a_file_streams_events_and_deltas(tmp_path: Path, split: bool):
    def answer(request: Any) -> Any:
        return "one two three"

    path = write(
        tmp_path, document(node("a", "llm_call", {"model": "scripted:m", "prompt": "p", "stream": True}))
    )
    async with Runtime(models=[Thinking()]) as runtime:
        items = [
            item
            async for item in run_workflow_yaml_stream(
                path, {}, {"split_stream_deltas": split}, runtime=runtime
            )
        ]
    events = [item for item in items if not isinstance(item, ModelDelta)]
    deltas = [item.data for item in items if isinstance(item, ModelDelta)]
    assert [event.offset for event in events] == list(range(len(events)))
    assert events[-1].type == "workflow.completed"
    assert "".join(d.text for d in deltas if d.token_kind == "output") == "answer"
    assert "".join(d.text for d in deltas if d.token_kind == "thinking") == ("hm" if split else "")


class Thinking(ScriptedModel):
    def __init__(self) -> None:
        super().__init__(["answer"])

    async def complete(self, request: Any, *, new_call_id: Any, on_delta: Any = None) -> Any:
        if on_delta is not None:
            on_delta("thinking", "hm")
        return await super().complete(request, new_call_id=new_call_id, on_delta=on_delta)


def test_the_names_of_the_page_are_those_of_the_package():
    plain = (
        *("validate_and_normalize", "verify_yaml_workflow", "yaml_workflow_to_ir"),
        *("replay_trace", "inspect_replay_trace", "workflow_to_mermaid"),
    )
    waiting = (
        *("export_trace", "node_timeline", "retry_reason_summary", "replay"),
        *("execute_resume_from_failure", "run_workflow_yaml"),
    )
    assert not any(inspect.iscoroutinefunction(getattr(agentflow, name)) for name in plain)
    assert all(inspect.iscoroutinefunction(getattr(agentflow, name)) for name in waiting)
    assert inspect.isasyncgenfunction(agentflow.run_workflow_yaml_stream)
    for name in waiting:
        runtime = inspect.signature(getattr(agentflow, name)).parameters["runtime"]
        assert runtime.default is None
