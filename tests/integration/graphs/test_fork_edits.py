"""Forks whose state, messages and definition are given as JSON or as files: checked by type (page 002 §9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow import Edits, Executor, Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor, handler
from agentflow.errors import DefinitionError, GraphSignatureMismatch, InvalidEdit
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, must_be_sound
from tests.unit.server.kit import serving


class Part(msgspec.Struct, frozen=True):
    number: int


class Source(Executor):
    @handler
    async def on_count(self, count: int, ctx: WorkflowContext[Part]) -> None:
        ctx.set_state("last", Part(count))
        ctx.set_state("seen", 1)
        ctx.set_shared_state("best", Part(count))
        for number in range(count):
            await ctx.send_message(Part(number))


class Sum(Executor):
    @handler
    async def on_part(self, part: Part, ctx: WorkflowContext[str]) -> None:
        total = ctx.get_state("total", 0) + part.number
        ctx.set_state("total", total)
        best = ctx.get_shared_state("best")
        await ctx.send_message(f"{total} {best.number}")


@executor(id="show")
async def show(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(text)


def summing(policy: Any = "superstep", **more: Any) -> Workflow:
    builder = (
        WorkflowBuilder("summing", policy=policy, **more)
        .add_shared("best", Part)
        .set_start_executor(Source("source"))
        .add_chain(["source", Sum("sum"), show])
    )
    return builder.build()


async def offset_behind(runtime: Runtime, run_id: str, type: str, step_id: str | None = None) -> int:
    """The offset of the first event of a type, of a step."""
    events = [e async for e in runtime.events(run_id, follow=False)]
    return next(e.offset for e in events if e.type == type and step_id in (None, e.step))


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_json_edits_of_waiting_messages_private_and_shared_state(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(summing(policy), 2)
        assert result.get_outputs() == ["0 2", "1 2"]
        at = await offset_behind(runtime, result.workflow_id, "workflow.step_completed", "source")
        if policy == "superstep":
            at = await offset_behind(runtime, result.workflow_id, "superstep.completed")
        edits = {
            "messages": {"sum": [{"number": 10}, {"$type": "Part", "number": 5}]},
            "state": {"sum": {"total": 100}, "source": {"last": {"number": 3}}},
            "shared": {"best": {"number": 7}},
        }
        fork = await runtime.fork(result.workflow_id, offset=at, edits=edits)
        assert (await fork.result()).get_outputs() == ["110 7", "115 7"]
        state = await runtime.fold(fork.workflow_id)
        assert state.shared.private["source"] == {"last": {"$type": "Part", "number": 3}, "seen": 1}
        await must_be_sound(runtime, fork.workflow_id)


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown member": ({"mail": {}}, r"mail: this cannot be edited"),
    "unknown node": (
        {"state": {"sun": {"total": 1}}},
        r'state\.sun: there is no such node; did you mean "sum"',
    ),
    "private type": (
        {"state": {"source": {"seen": "x"}}},
        r"state\.source\.seen: the key holds int here, and str",
    ),
    "private struct": (
        {"state": {"source": {"last": {"number": "x"}}}},
        r"state\.source\.last: the key holds Part",
    ),
    "private tag": ({"state": {"source": {"new": {"$type": "Nix"}}}}, r"'Nix' is no type of this workflow"),
    "no object": ({"state": {"sum": 3}}, r"state\.sum: write an object"),
    "shared type": ({"shared": {"best": {"number": "x"}}}, r"shared\.best: the key takes Part"),
    "message count": (
        {"messages": {"sum": [{"number": 1}]}},
        r"messages\.sum: 2 messages wait .* and 1 are given",
    ),
    "message type": ({"messages": {"sum": [{"number": 1}, "x"]}}, r'messages\.sum\[1\]: "sum" takes Part'),
    "message list": ({"messages": {"sum": {"number": 1}}}, r"messages\.sum: write a list"),
    "message node": ({"messages": {"nobody": []}}, r"messages\.nobody: there is no such node"),
}


@pytest.mark.parametrize("edit", REFUSED)
async def test_a_wrong_edit_names_its_place_and_the_type_and_begins_no_run(edit: str):
    edits, message = REFUSED[edit]
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(summing(), 2)
        at = await offset_behind(runtime, result.workflow_id, "superstep.completed")
        with pytest.raises(InvalidEdit, match=message):
            await runtime.fork(result.workflow_id, offset=at, edits=edits)
        assert len((await runtime.log.runs(limit=10)).items) == 1


async def test_edits_of_python_values_are_checked_by_the_same_types():
    workflow = summing()
    result = await workflow.run(2)
    point = (await workflow.list_checkpoints(result.workflow_id))[1]
    with pytest.raises(InvalidEdit, match=r"state\.source\.seen: the key holds int here, and Part is given"):
        await workflow.run_from_checkpoint(point.id, edits=Edits(state={"source": {"seen": Part(1)}}))
    fork = await workflow.run_from_checkpoint(point.id, edits=Edits(state={"sum": {"total": 5}}))
    assert fork.get_outputs() == ["5 2", "6 2"]


def step(
    id: str, *, prompt: str = "go", model: str = "scripted:m", schema: Any = None, **more: Any
) -> dict[str, Any]:
    agent = {
        "systemPrompt": prompt,
        "input": "x",
        "attachedFunctions": "none",
        "model": model,
        "resultSchema": schema or {"type": "string"},
    }
    return {"type": "run", "id": id, "agent": agent, **more}


# -- another definition -----------------------------------------------------------------------------


class Double(Sum):
    @handler
    async def on_part(self, part: Part, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"double {part.number * 2}")


def doubling() -> Workflow:
    return (
        WorkflowBuilder("summing", max_iterations=50)
        .add_shared("best", Part)
        .set_start_executor(Source("source"))
        .add_chain(["source", Double("sum"), show])
        .build()
    )


def other_edges() -> Workflow:
    def is_long(text: str) -> bool:
        return len(text) > 3

    class Wide(Executor):
        @handler
        async def on_text(self, text: str | int, ctx: WorkflowContext[Never, str]) -> None: ...

    return (
        WorkflowBuilder("summing")
        .add_shared("best", Part)
        .set_start_executor(Source("source"))
        .add_edge("source", Sum("sum"))
        .add_edge("sum", Wide("show"), is_long)
        .build()
    )


async def test_a_fork_takes_other_code_with_an_equal_signature():
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(summing(), 2)
        at = await offset_behind(runtime, result.workflow_id, "superstep.completed")
        fork = await runtime.fork(result.workflow_id, offset=at, definition=doubling())
        found = await fork.result()
        old, new = [(await runtime.definition(i)) for i in (result.workflow_id, fork.workflow_id)]
    assert found.get_outputs() == ["double 0", "double 2"]
    assert old.ir_hash != new.ir_hash
    assert old.definition.signature == new.definition.signature == summing().signature


async def test_a_fork_with_another_graph_is_refused_with_each_node_and_edge_that_differs():
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(summing(), 2)
        with pytest.raises(GraphSignatureMismatch) as caught:
            await runtime.fork(result.workflow_id, offset=0, definition=other_edges())
        assert len((await runtime.log.runs(limit=10)).items) == 1
    text = str(caught.value)
    assert '"show" takes int | str now, it was str' in text
    assert result.workflow_id in text
    assert set(caught.value.details) == {"added", "removed", "changed"}
    assert "show" in caught.value.details["changed"]


async def test_a_changed_condition_is_told_by_its_edge():
    def first(text: str) -> bool:
        return True

    def second(text: str) -> bool:
        return True

    def built(rule: Any) -> Workflow:
        return WorkflowBuilder("w").set_start_executor(show_on()).add_edge("begin", show, rule).build()

    def show_on() -> Executor:
        @executor(id="begin")
        def begin(text: str) -> str:
            return text

        return begin

    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(built(first), "a")
        with pytest.raises(
            GraphSignatureMismatch, match='the edge from "begin" to "show" has another predicate'
        ):
            await runtime.fork(result.workflow_id, offset=0, definition=built(second))


async def test_resume_with_another_graph_names_what_differs(tmp_path: Path):
    url = f"sqlite:{tmp_path / 'runs.db'}"
    first = WorkflowBuilder("summing").set_start_executor(Source("source")).with_checkpointing(url).build()
    handle = await first.start(2)
    await handle.result()
    second = (
        WorkflowBuilder("summing")
        .set_start_executor(Source("source"))
        .add_edge("source", Sum("sum"))
        .with_checkpointing(url)
        .build()
    )
    with pytest.raises(GraphSignatureMismatch, match='step "sum" is new'):
        await second.resume(handle.workflow_id)


async def test_a_fork_of_a_document_takes_another_prompt_and_keeps_what_was_done(tmp_path: Path):
    asked: list[str] = []

    def answer(request: Any) -> str:
        asked.append(request.messages[0].content)
        return request.messages[0].content

    old = document(step("a", prompt="one"), step("b", prompt="two", depends_on=["a"]))
    new = document(step("a", prompt="uno"), step("b", prompt="due", depends_on=["a"]))
    async with Runtime(MemoryLog(), models=[ScriptedModel(answer)]) as runtime:
        result = await runtime.run(old)
        fork = await runtime.fork(result.workflow_id, from_step="b", definition=new)
        await fork.result()
        record = await runtime.definition(fork.workflow_id)
        await must_be_sound(runtime, fork.workflow_id)
    assert asked == ["one", "two", "due"]
    assert "due" in str(record.source)


async def test_a_fork_of_a_document_refuses_other_steps_and_results_that_break_a_schema():
    schema = {"type": "object", "required": ["x"]}
    old = document(step("a", prompt="one"), step("b", prompt="two", depends_on=["a"]))
    other = document(step("a"), step("c", depends_on=["a"]))
    stricter = document(step("a", schema=schema), step("b", prompt="two", depends_on=["a"]))
    wrong = document(step("a"), step("b", model="nobody:m", depends_on=["a"]))
    async with Runtime(MemoryLog(), models=[ScriptedModel(lambda _: "yes")]) as runtime:
        result = await runtime.run(old)
        with pytest.raises(GraphSignatureMismatch, match='step "b" is gone; step "c" is new'):
            await runtime.fork(result.workflow_id, from_step="b", definition=other)
        with pytest.raises(GraphSignatureMismatch, match='the recorded result of "a" breaks its new schema'):
            await runtime.fork(result.workflow_id, from_step="b", definition=stricter)
        with pytest.raises(DefinitionError):
            await runtime.fork(result.workflow_id, from_step="b", definition=wrong)
        assert len((await runtime.log.runs(limit=10)).items) == 1


async def test_a_client_forks_with_a_file_and_with_json_edits(tmp_path: Path):
    old = document(step("a", prompt="one"), step("b", prompt="two", depends_on=["a"]))
    file = tmp_path / "new.json"
    file.write_bytes(
        msgspec.json.encode(document(step("a", prompt="uno"), step("b", prompt="due", depends_on=["a"])))
    )
    answers: list[str] = []

    def answer(request: Any) -> str:
        answers.append(request.messages[0].content)
        return "yes"

    async with serving(tmp_path, model=ScriptedModel(answer)) as served, served.client() as client:
        run = await client.submit(old)
        await run.result()
        fork = await client.fork(run.workflow_id, from_step="b", definition=file)
        assert (await fork.result()).state == "completed"
        with pytest.raises(GraphSignatureMismatch, match='step "c" is new'):
            await client.fork(run.workflow_id, definition=document(step("a"), step("c", depends_on=["a"])))
        workflow = summing()
        served.runtime.register(workflow)
        handle = await served.runtime.submit(workflow, 2)
        await handle.result()
        at = await offset_behind(served.runtime, handle.workflow_id, "superstep.completed")
        edits = {"state": {"sum": {"total": 100}}}
        graph = await client.fork(handle.workflow_id, offset=at, edits=edits)
        assert (await graph.result()).get_outputs() == ["100 2", "101 2"]
        with pytest.raises(InvalidEdit, match=r"messages\.sum"):
            await client.fork(handle.workflow_id, offset=at, edits={"messages": {"sum": []}})
    assert answers == ["one", "two", "due"]
