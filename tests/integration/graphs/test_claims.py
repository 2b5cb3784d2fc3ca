"""Graph runs through Workflow: the example of page 002 §2, results, streams, checkpoints, forks, homes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentflow import (
    CheckpointNotFound,
    DefinitionError,
    Edits,
    GraphSignatureMismatch,
    InvalidEdit,
    RequestInfoEvent,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowOutputEvent,
    WorkflowRunResult,
    WorkflowStartedEvent,
)
from agentflow.errors import CommandRefused, InvalidAnswer, RunExists, UnknownRequest
from agentflow.graphs import close_runtimes
from tests.integration.graphs import claims
from tests.integration.graphs.claims import Claim, Risk, Verdict, workflow

ROOT = Path(__file__).parents[3]
BIG, SMALL = Claim("c-7", 12_000), Claim("c-8", 90)


@pytest.fixture(autouse=True)
async def homes():
    yield
    await close_runtimes()


async def waiting() -> Any:
    result = await workflow.run(BIG)
    assert result.state == "waiting"
    return result


async def test_the_example_of_the_page_runs_as_written():
    result = await workflow.run(Claim("c-7", 12_000))
    assert isinstance(result, WorkflowRunResult)
    assert result.state == "waiting"
    answers = {r.request_id: Verdict(pay=True) for r in result.pending_requests}
    result = await workflow.send_responses(result.workflow_id, answers)
    assert (result.state, result.get_outputs(), result.output) == (
        "completed",
        [Verdict(pay=True)],
        Verdict(True),
    )
    seen = [(event.offset, event.type) async for event in workflow.run_stream(Claim("c-8", 90), view="all")]
    assert [offset for offset, _ in seen] == list(range(len(seen)))
    assert seen[-1][1] == "workflow.completed"
    points = await workflow.list_checkpoints(result.workflow_id)
    fork = await workflow.run_from_checkpoint(points[1].id, edits=Edits(shared={"history": []}))
    assert (fork.state, fork.forked_from.offset) == ("waiting", points[1].offset)
    assert fork.workflow_id != result.workflow_id


async def test_a_request_is_shown_with_its_value_and_the_type_of_its_answer():
    (request,) = (await waiting()).pending_requests
    assert request.data == Risk("c-7", 0.9)
    assert (request.response_type, request.step_id, request.activation) == ("Verdict", "desk", "/desk#0")
    assert request.response_schema["$defs"]["Verdict"]["required"] == ["pay"]
    assert request.deadline is not None


async def test_a_message_that_no_start_takes_begins_no_run():
    with pytest.raises(DefinitionError) as refused:
        await workflow.run("c-7")
    (problem,) = refused.value.diagnostics
    assert (problem.code, problem.severity) == ("E_INPUT_INVALID", "error")
    assert '"intake" takes Claim, not str' in problem.message
    assert await (await workflow.runtime()).rows() == []


async def test_a_repeated_id_gives_the_run_that_there_is():
    one = await workflow.run(SMALL, workflow_id="wf_one")
    two = await workflow.run(SMALL, workflow_id="wf_one")
    assert one.output == two.output == Verdict(pay=True)
    assert [e.id for e in one.events] == [e.id for e in two.events]
    with pytest.raises(RunExists):
        await workflow.run(BIG, workflow_id="wf_one")


async def test_two_runs_of_one_workflow_at_once_share_nothing():
    results = await asyncio.gather(*[workflow.run(Claim(f"c-{i}", 90)) for i in range(20)])
    assert {r.state for r in results} == {"completed"}
    assert len({r.workflow_id for r in results}) == 20
    runtime = await workflow.runtime()
    folds = [await runtime.fold(r.workflow_id) for r in results]
    assert {f.shared.private["intake"]["seen"] for f in folds} == {1}


async def test_views_leave_out_and_never_renumber():
    run = await workflow.start(BIG)
    await run.result()
    everything = [e async for e in run.stream()]
    shown = [e async for e in run.stream(view="workflow")]
    assert [e.offset for e in shown] == [
        e.offset for e in everything if not e.type.startswith(("workflow.step_", "tool.", "timer."))
    ]
    assert isinstance(shown[0], WorkflowStartedEvent)
    (asked,) = (e for e in shown if isinstance(e, RequestInfoEvent))
    assert asked.request == Risk("c-7", 0.9)
    await (await run.respond({asked.request_id: Verdict(False)})).result()
    (given,) = [e async for e in run.events() if isinstance(e, WorkflowOutputEvent)]
    assert (given.value, given.executor_id, given.kind) == (Verdict(False), "desk", "output")


async def test_a_stream_that_is_left_changes_nothing_for_the_run():
    async for event in workflow.run_stream(SMALL):
        run_id = event.workflow_id
        break
    run = await workflow.attach(run_id)
    assert (await run.result()).state == "completed"


async def test_answers_are_all_or_nothing():
    result = await waiting()
    (request,) = result.pending_requests
    with pytest.raises(UnknownRequest):
        await workflow.send_responses(
            result.workflow_id, {request.request_id: Verdict(True), "req_no": Verdict(True)}
        )
    with pytest.raises(InvalidAnswer):
        await workflow.send_responses(result.workflow_id, {request.request_id: "yes"})
    again = await workflow.send_responses(result.workflow_id, {})
    assert [r.request_id for r in again.pending_requests] == [request.request_id]
    done = await workflow.send_responses(result.workflow_id, {request.request_id: {"pay": True}})
    assert done.output == Verdict(pay=True)


async def test_checkpoints_are_read_from_the_log():
    result = await waiting()
    (request,) = result.pending_requests
    done = await workflow.send_responses(result.workflow_id, {request.request_id: Verdict(True)})
    points = await workflow.list_checkpoints(result.workflow_id)
    assert [p.cause for p in points] == ["start", *["superstep"] * 4, "input", "superstep", "terminal"]
    assert [p.superstep for p in points] == [0, 1, 2, 3, 4, 4, 5, 5]
    assert {p.signature for p in points} == {workflow.signature}
    assert points[0].id == f"{result.workflow_id}@0"
    assert done.checkpoint == points[-1].id


@pytest.mark.parametrize("id", ["wf_none@0", "nonsense", "@", "wf_a@x", "wf_a@-1", "{}@999"])
async def test_an_unknown_checkpoint_is_not_found(id: str):
    result = await workflow.run(SMALL, workflow_id="wf_a")
    with pytest.raises(CheckpointNotFound) as refused:
        await workflow.run_from_checkpoint(id.format(result.workflow_id))
    assert refused.value.code == "checkpoint_not_found"


async def test_a_fork_asks_an_open_question_again_under_a_new_id():
    result = await waiting()
    (request,) = result.pending_requests
    fork = await workflow.run_from_checkpoint(result.checkpoint)
    (asked,) = fork.pending_requests
    assert (asked.data, asked.step_id) == (request.data, "desk")
    assert asked.request_id != request.request_id
    done = await workflow.send_responses(fork.workflow_id, {asked.request_id: Verdict(True, "fork")})
    assert done.output == Verdict(True, "fork")
    old = await (await workflow.attach(result.workflow_id)).result()
    assert old.state == "waiting"
    again = await workflow.run_from_checkpoint(
        fork.checkpoint, responses={asked.request_id: Verdict(True, "twice")}
    )
    assert again.output == Verdict(True, "twice")


async def test_responses_of_a_fork_take_the_old_ids():
    result = await waiting()
    (request,) = result.pending_requests
    point = result.checkpoint
    fork = await workflow.run_from_checkpoint(point, responses={request.request_id: Verdict(True, "x")})
    assert (fork.state, fork.output) == ("completed", Verdict(True, "x"))
    before = len(await (await workflow.runtime()).rows())
    with pytest.raises(UnknownRequest):
        await workflow.run_from_checkpoint(point, responses={"req_other": Verdict(True)})
    with pytest.raises(InvalidAnswer):
        await workflow.run_from_checkpoint(point, responses={request.request_id: 3})
    assert len(await (await workflow.runtime()).rows()) == before


async def test_edits_of_the_input_the_shared_state_and_messages():
    result = await waiting()
    points = await workflow.list_checkpoints(result.workflow_id)
    other = await workflow.run_from_checkpoint(points[0].id, edits=Edits(input=SMALL))
    assert other.output == Verdict(pay=True)
    runtime = await workflow.runtime()
    fork = await workflow.run_from_checkpoint(
        points[1].id, edits=Edits(shared={"history": [0.5]}, state={"intake": {"seen": 9}})
    )
    state = await runtime.fold(fork.workflow_id)
    assert state.shared.values["history"] == [0.5, 0.9]
    assert state.shared.private["intake"]["seen"] == 9
    assert (await runtime.fold(result.workflow_id)).shared.values["history"] == [0.9]
    sent = await workflow.run_from_checkpoint(
        points[2].id, edits=Edits(messages={"assess": [[Risk("c-7", 0.2)]]})
    )
    assert sent.output == Verdict(pay=True)
    again = await workflow.run_from_checkpoint(fork.checkpoint)
    assert (await runtime.fold(again.workflow_id)).shared.values["history"] == [0.5, 0.9]


@pytest.mark.parametrize(
    ("at", "edits", "named"),
    [
        (0, Edits(input="c-7"), "input"),
        (1, Edits(input=SMALL), "input"),
        (1, Edits(shared={"history": "none"}), "shared.history"),
        (1, Edits(shared={"history": [object()]}), "shared.history"),
        (1, Edits(state={"nobody": {}}), "state.nobody"),
        (1, Edits(outputs={"assess": 1}), "outputs.assess"),
        (1, Edits(messages={"rules": []}), "messages.rules"),
        (1, Edits(messages={"rules": [3]}), "messages.rules"),
    ],
    ids=lambda value: value if isinstance(value, str | int) else "",
)
async def test_an_edit_that_does_not_fit_begins_no_run(at: int, edits: Edits, named: str):
    result = await waiting()
    points = await workflow.list_checkpoints(result.workflow_id)
    with pytest.raises(InvalidEdit) as refused:
        await workflow.run_from_checkpoint(points[at].id, edits=edits)
    assert (refused.value.code, refused.value.details["edit"]) == ("invalid_edit", named)
    assert len(await (await workflow.runtime()).rows()) == 1


def changed() -> Workflow:
    """The same nodes, and an edge more."""
    return claims.builder().add_edge("rules", "registry", "false", name="never").build()


async def test_a_run_goes_on_with_a_graph_of_equal_signature_alone(tmp_path: Path):
    store = f"sqlite:{tmp_path}/runs.db"
    first = claims.builder().with_checkpointing(store).build()
    result = await first.run(BIG)
    assert result.checkpoint is not None

    def other(value: Claim) -> bool:
        return False

    builder = claims.builder().with_checkpointing(store)
    second = builder.add_edge("intake", "registry", other, name="more").build()
    with pytest.raises(GraphSignatureMismatch) as refused:
        await second.run_from_checkpoint(result.checkpoint)
    assert refused.value.details == {"added": (), "removed": (), "changed": ("intake",)}
    with pytest.raises(CommandRefused) as refused_too:
        await second.resume(result.workflow_id)
    assert refused_too.value.code == "graph_signature_mismatch"
    third = claims.builder().add_shared("note", str, default="").with_checkpointing(store).build()
    assert (third.signature, third.definition.hash != first.definition.hash) == (first.signature, True)
    fork = await third.run_from_checkpoint(result.checkpoint)
    assert fork.state == "waiting"
    runtime = await third.runtime()
    assert (await runtime.record(fork.workflow_id)).definition.hash == third.definition.hash


async def test_one_runtime_for_each_loop_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stores = [f"sqlite:{tmp_path}/runs.db", "sqlite:runs.db", "sqlite:./runs.db"]
    built = [claims.builder().with_checkpointing(store).build() for store in stores]
    found = await asyncio.gather(*[w.runtime() for w in built])
    assert len({id(r) for r in found}) == 1
    assert await workflow.runtime() is not found[0]
    assert await workflow.runtime() is await claims.builder().build().runtime()


async def test_a_runtime_of_the_callers_is_used_and_left_open():
    async with Runtime() as runtime:
        own = claims.builder().with_checkpointing(runtime).build()
        assert (await own.run(SMALL)).output == Verdict(pay=True)
        assert (await runtime.run(own, SMALL)).state == "completed"
        assert len(await runtime.rows()) == 2


SCRIPT = """
import asyncio, sys
from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler
from typing import Never

class Slow(Executor):
    @handler
    async def go(self, message: int, ctx: WorkflowContext[Never, int]) -> None:
        if sys.argv[2] == "stop":
            print("begun", flush=True)
            await asyncio.Event().wait()
        await ctx.yield_output(message + 1)

workflow = WorkflowBuilder("w").set_start_executor(Slow("a")).with_checkpointing(sys.argv[1]).build()

async def main():
    if sys.argv[2] == "go":
        result = await workflow.resume("wf_a")
        print(result.state, result.output)
        return
    run = await workflow.start(1, workflow_id="wf_a")
    async for event in run.events():
        if event.type == "workflow.step_started":
            return

asyncio.run(main())
"""


def test_the_end_of_the_loop_pauses_runs_and_another_process_goes_on(tmp_path: Path):
    (tmp_path / "w.py").write_text(SCRIPT)

    def start(what: str) -> subprocess.CompletedProcess[str]:
        args = [sys.executable, "-W", "error", str(tmp_path / "w.py"), f"sqlite:{tmp_path}/runs.db", what]
        return subprocess.run(
            args, cwd=ROOT, capture_output=True, text=True, timeout=50, env={"PYTHONPATH": str(ROOT)}
        )

    stopped = start("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "never retrieved" not in stopped.stderr
    went_on = start("go")
    assert (went_on.stdout.strip(), went_on.stderr) == ("completed 2", "")


def test_a_workflow_draws_itself():
    assert 'assess -- "too_risky" --> block' in workflow.to_mermaid()
    assert 'label="too_risky"' in workflow.to_dot()
    assert workflow.to_mermaid() == claims.builder().build().to_mermaid()
    assert WorkflowBuilder("claims").name == workflow.name
