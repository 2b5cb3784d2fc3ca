"""Foreign delegates: adapters that work on the steps of plans (page 004 §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.definition.delegates import DelegateError, DelegateResult, DelegateTask
from agentflow.errors import ConfigurationError, InvalidOptions
from agentflow.events.memory import MemoryLog
from agentflow.pipeline.requests import Requests
from agentflow.tools import ToolContext
from agentflow.tools.delegates import delegate_service
from tests.integration.pipeline.support import Desk, done, plan, requests_of, restored, step
from tests.integration.support.runs import log_of, must_be_sound
from tests.integration.virtual import LoopClock

Answer = Callable[[DelegateTask, ToolContext], Any]


class Crew:
    """A foreign delegate whose tasks are kept. `there` is the answer to its ping; None never answers."""

    def __init__(self, answer: Answer = lambda task, ctx: done(task.step_id), *, there: Any = True) -> None:
        self.answer, self.there = answer, there
        self.tasks: list[DelegateTask] = []
        self.pings = 0

    def service(self) -> Any:
        async def delegate_task(task: DelegateTask, ctx: ToolContext) -> Any:
            self.tasks.append(task)
            found = self.answer(task, ctx)
            found = await found if asyncio.iscoroutine(found) else found
            if isinstance(found, Exception):
                raise found
            return found

        async def ping() -> bool:
            self.pings += 1
            if self.there is None:
                await asyncio.Event().wait()
            return bool(self.there)

        return delegate_service("crew", delegate_task, ping=ping)

    @property
    def steps(self) -> list[tuple[str, int]]:
        return [(task.step_id, task.attempt) for task in self.tasks]


def runtime_of(crew: Crew, log: Any = "memory:", clock: Any = None) -> Runtime:
    return Runtime(log, models=[], services=[*Desk().services(), crew.service()], clock=clock)


def crew_requests(runtime: Runtime, root: Any, **more: Any) -> Requests:
    return requests_of(runtime, root, delegate="crew", **more)


async def final_of(run: Any) -> dict[str, Any]:
    return (await run.result()).output["final_output"]


class Failure(Exception):
    """An error of an adapter."""

    def __init__(self, message: str = "no", **more: Any) -> None:
        super().__init__(message)
        self.__dict__.update(more)


async def test_a_foreign_delegate_does_the_steps_and_gets_the_whole_task(tmp_path: Any):
    crew = Crew()
    async with runtime_of(crew) as runtime:
        steps = plan(step("a", expected_artifacts=["a.md"]), step("b", "a", toolsets=["files"], title="Bee"))
        run = await crew_requests(runtime, tmp_path).submit_plan(steps, options={"retry": {"timeout": "5s"}})
        final = await final_of(run)
        events = await must_be_sound(runtime, run.workflow_id)
        started = [e.data for e in events if e.type == "workflow.step_started" and "/" in e.data.step_id]
        calls = [e.data for e in events if e.type == "tool.call_started" and e.data.service == "crew"]
    assert [s["status"] for s in final["steps"]] == ["done", "done"]
    assert (final["execution_mode"], final["stage3_available"]) == ("delegated", True)
    task = crew.tasks[1]
    assert (task.workflow_id, task.step_id, task.attempt, task.role) == (run.workflow_id, "b", 1, "leaf")
    assert task.goal == "Bee\n\ndo b"
    assert task.context["objective"] == "the plan"
    assert task.context["dependencies"] == {"a": {"output": "a is done", "artifacts": []}}
    assert (task.toolsets, task.deadline, task.budget) == (["files"], 5.0, None)
    assert task.workspace == f"{tmp_path}/{run.workflow_id}"
    assert task.idempotency_key.startswith(run.workflow_id)
    assert [s.kind for s in started] == ["agent", "agent"]
    assert [s.input["execution_mode"] for s in started] == ["delegated", "delegated"]
    assert [c.side_effect for c in calls] == ["write", "write"]
    assert not any(e.type.startswith("model.") for e in events)


@pytest.mark.parametrize(
    "answer",
    [
        done("a"),
        DelegateResult(status="completed", result=done("a")),
        msgspec.json.encode(
            {"results": [{"status": "ok", "summary": msgspec.json.encode(done("a")).decode()}]}
        ).decode(),
        msgspec.json.encode(
            {
                "results": [{"summary": f"```json\n{msgspec.json.encode(done('a')).decode()}\n```"}],
                "error": None,
            }
        ).decode(),
    ],
    ids=["step result", "delegate result", "envelope", "fenced envelope"],
)
async def test_an_answer_may_have_several_forms(tmp_path: Any, answer: Any):
    async with runtime_of(Crew(lambda task, ctx: answer)) as runtime:
        final = await final_of(await crew_requests(runtime, tmp_path).submit_plan(plan(step("a"))))
    assert [(s["status"], s["output"]) for s in final["steps"]] == [("done", "a is done")]


async def test_an_answer_that_is_no_result_is_asked_for_again_twice(tmp_path: Any):
    answers = iter(["no JSON", done("z")])
    crew = Crew(lambda task, ctx: next(answers, done("a")))
    async with runtime_of(crew) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")))
        final = await final_of(run)
        events = await must_be_sound(runtime, run.workflow_id)
    assert [s["status"] for s in final["steps"]] == ["done"]
    assert crew.steps == [("a", 1), ("a", 2), ("a", 3)]
    assert 'for step "z"' in crew.tasks[2].context["repair"]
    assert [e.data.kind for e in events if e.type == "workflow.step_retrying"] == ["repair", "repair"]


async def test_an_answer_that_stays_no_result_fails_its_step(tmp_path: Any):
    crew = Crew(lambda task, ctx: {"results": [{"summary": "{"}]})
    async with runtime_of(crew) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a"), step("b", "a")))
        output = (await run.result()).output
        failed = [e.data for e in await log_of(runtime, run.workflow_id) if e.type == "workflow.step_failed"]
    assert len(crew.tasks) == 3
    assert failed[0].error.code == "invalid_output"
    assert [s["status"] for s in output["final_output"]["steps"]] == ["failed", "skipped"]


@virtual
@pytest.mark.parametrize(
    "problem",
    [
        Failure(http_status=503),
        Failure("upstream said HTTP 502"),
        Failure(code="network_error"),
        DelegateResult(status="timeout"),
        DelegateResult(status="error", error=DelegateError(message="status code: 500")),
    ],
    ids=["status", "text", "code", "timeout", "result"],
)
async def test_a_transient_failure_is_retried(tmp_path: Any, problem: Any):
    crew = Crew(lambda task, ctx: done("a") if task.attempt == 3 else problem)
    async with runtime_of(crew, clock=LoopClock()) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")))
        begun = asyncio.get_running_loop().time()
        final = await final_of(run)
        passed = asyncio.get_running_loop().time() - begun
    assert final["status"] == "ready"
    assert crew.steps == [("a", 1), ("a", 2), ("a", 3)]
    assert 2.5 < passed < 3.5  # 1 s and 2 s, with jitter


@virtual
async def test_a_number_in_a_message_is_no_status(tmp_path: Any):
    crew = Crew(lambda task, ctx: Failure("cannot create quotation 512"))
    async with runtime_of(crew, clock=LoopClock()) as runtime:
        final = await final_of(await crew_requests(runtime, tmp_path).submit_plan(plan(step("a"))))
    assert crew.steps == [("a", 1)]
    assert final["steps"][0]["status"] == "failed"


async def granted(runtime: Runtime, run: Any) -> None:
    await run.rest()
    await runtime.decide(run.workflow_id, step_id="a", granted=True, by="ann")


@virtual
@pytest.mark.parametrize("choice", ["retry", "done", "fail"])
async def test_an_external_step_is_not_repeated_without_a_persons_word(tmp_path: Any, choice: str):
    crew = Crew(lambda task, ctx: done("a") if len(crew.tasks) > 1 else Failure(http_status=503))
    async with runtime_of(crew, clock=LoopClock()) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a", toolsets=["messaging"])))
        await granted(runtime, run)
        rest = await run.rest()
        assert (rest.state, crew.steps) == ("waiting", [("a", 1)])
        (question,) = await runtime.requests(run.workflow_id)
        assert question.request_type == "outcome_unknown"
        await runtime.answer(run.workflow_id, question.request_id, {"choice": choice})
        final = await final_of(run)
        await must_be_sound(runtime, run.workflow_id)
    assert len(crew.tasks) == (2 if choice == "retry" else 1)
    assert final["steps"][0]["status"] == ("failed" if choice == "fail" else "done")


@pytest.mark.parametrize(("reports", "verdict"), [(True, "pass"), (False, "fail")])
async def test_a_reported_call_is_the_evidence_of_a_mail(tmp_path: Any, reports: bool, verdict: str):
    async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        if reports:
            parameters = {"to": "a@b.example", "body": "x"}
            await ctx.record_tool_call("gmail_send", parameters, {"message_id": "<7@crew>"})
        return done(
            "a",
            artifacts=[
                {"type": "email", "uri": "mailto:a@b.example", "status": "verified", "id": "<7@crew>"}
            ],
        )

    mail = [{"type": "email", "uri": "mailto:a@b.example"}]
    async with runtime_of(Crew(answer)) as runtime:
        steps = plan(step("a", toolsets=["messaging"], expected_artifacts=mail))
        run = await crew_requests(runtime, tmp_path).submit_plan(steps)
        await granted(runtime, run)
        output = (await run.result()).output
        events = await must_be_sound(runtime, run.workflow_id)
    assert [s["verdict"] for s in output["final_output"]["steps"]] == [verdict]
    calls = [e.data.tool_name for e in events if e.type == "tool.call_completed" and e.step == "execute/a"]
    assert calls == [*(["gmail_send"] if reports else []), "crew__delegate_task"]
    if reports:
        evidence = output["report"]["artifacts"][0]["evidence"]
        recorded = next(
            e for e in events if e.type == "tool.call_completed" and e.data.tool_name == "gmail_send"
        )
        assert (evidence["tool_call_id"], evidence["offset"]) == (recorded.data.tool_call_id, recorded.offset)


@virtual
async def test_after_a_reported_effect_no_attempt_follows(tmp_path: Any):
    async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        await ctx.record_tool_call("post", {}, {"id": 1})
        return Failure(http_status=503)

    crew = Crew(answer)
    async with runtime_of(crew, clock=LoopClock()) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")))  # no toolset: class none
        assert (await run.rest()).state == "waiting"
    assert crew.steps == [("a", 1)]


async def test_a_call_can_be_reported_only_while_the_task_is_open(tmp_path: Any):
    kept: list[ToolContext] = []

    def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        kept.append(ctx)
        return done("a")

    async with runtime_of(Crew(answer)) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(
            plan(step("a"), step("b", "a", owner="human"))
        )
        await run.rest()
        before = len(await log_of(runtime, run.workflow_id))
        with pytest.raises(Exception, match="only a delegate records calls"):
            await kept[0].record_tool_call("late", {}, {"id": 1})
        assert len(await log_of(runtime, run.workflow_id)) == before


class TestQuota:
    @virtual
    @pytest.mark.parametrize(
        "problem", [Failure(code="insufficient_quota"), Failure(http_status=429)], ids=["code", "429"]
    )
    async def test_it_pauses_and_only_the_refused_step_runs_again(self, tmp_path: Any, problem: Any):
        crew = Crew(
            lambda task, ctx: problem if task.step_id == "b" and crew.there != "free" else done(task.step_id)
        )
        async with runtime_of(crew, clock=LoopClock()) as runtime:
            steps = plan(step("a"), step("b"), step("c"), step("d", "b"))
            run = await crew_requests(runtime, tmp_path).submit_plan(steps)
            rest = await run.rest()
            assert (rest.state, rest.pause) == ("paused", "quota")
            assert (await runtime.record(run.workflow_id)).request.phase == "paused_quota"  # type: ignore[union-attr]
            refused = len(crew.steps)
            crew.there = "free"
            await runtime.resume(run.workflow_id)
            final = await final_of(run)
            await must_be_sound(runtime, run.workflow_id)
        assert final["status"] == "ready"
        # The pause may come before a step beside the refused one began.
        assert sorted(s for s, _ in crew.steps if s != "b") == ["a", "c", "d"]
        assert [s for s, _ in crew.steps[refused:]].count("b") == 1

    @virtual
    @pytest.mark.parametrize("resumes", [True, False])
    async def test_it_resumes_by_itself_unless_that_is_turned_off(self, tmp_path: Any, resumes: bool):
        limited = DelegateResult(
            status="error", error=DelegateError(code="insufficient_quota", retry_after=3600)
        )
        crew = Crew(lambda task, ctx: limited if len(crew.tasks) == 1 else done("a"))
        async with runtime_of(crew, clock=LoopClock()) as runtime:
            requests = crew_requests(runtime, tmp_path, quota_auto_resume=resumes)
            run = await requests.submit_plan(plan(step("a")))
            assert (await run.rest()).pause == "quota"
            events = await log_of(runtime, run.workflow_id)
            paused = next(e.data for e in events if e.type == "workflow.paused")
            assert (paused.resume_after is not msgspec.UNSET) is resumes
            assert paused.detail.startswith("delegate, insufficient_quota")
            await asyncio.sleep(3 * 3600)  # virtual
            state = (await runtime.record(run.workflow_id)).state
        assert state == ("completed" if resumes else "paused")

    @virtual
    async def test_an_external_step_is_asked_about_after_the_pause(self, tmp_path: Any):
        crew = Crew(lambda task, ctx: Failure(code="insufficient_quota"))
        async with runtime_of(crew, clock=LoopClock()) as runtime:
            run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a", toolsets=["messaging"])))
            await granted(runtime, run)
            assert (await run.rest()).pause == "quota"
            await runtime.resume(run.workflow_id)
            assert (await run.rest()).state == "waiting"
            (question,) = await runtime.requests(run.workflow_id)
        assert question.request_type == "outcome_unknown"
        assert crew.steps == [("a", 1)]


class TestMode:
    @virtual
    @pytest.mark.parametrize("there", [False, None], ids=["says no", "never answers"])
    async def test_without_an_answer_nothing_stands_in_for_the_delegate(self, tmp_path: Any, there: Any):
        crew = Crew(there=there)
        async with runtime_of(crew, clock=LoopClock()) as runtime:
            begun = asyncio.get_running_loop().time()
            run = await crew_requests(runtime, tmp_path).submit_plan(
                plan(step("a"), step("b", "a"), step("c"))
            )
            assert asyncio.get_running_loop().time() - begun == pytest.approx(
                2 if there is None else 0, abs=0.1
            )
            final = await final_of(run)
            failed = [
                e.data for e in await log_of(runtime, run.workflow_id) if e.type == "workflow.step_failed"
            ]
        assert crew.tasks == []
        assert (final["execution_mode"], final["stage3_available"]) == ("standalone", False)
        assert final["partial_reason"] == "delegate unavailable"
        assert [s["status"] for s in final["steps"]] == ["failed", "skipped", "failed"]
        assert {(f.error.category, f.error.code) for f in failed} == {("policy", "delegate_unavailable")}
        assert final["status"] == "blocked"

    @pytest.mark.parametrize(("first", "then"), [(False, True), (True, False)])
    async def test_it_is_computed_anew_at_execute(self, tmp_path: Any, first: bool, then: bool):
        crew = Crew(there=first)
        async with runtime_of(crew) as runtime:
            run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")), review=True)
            await run.rest()
            shown = (await runtime.record(run.workflow_id)).request
            assert shown.execution_mode == ("delegated" if first else "standalone")  # type: ignore[union-attr]
            crew.there = then
            await runtime.execute(run.workflow_id)
            final = await final_of(run)
            shown = (await runtime.record(run.workflow_id)).request
        mode = "delegated" if then else "standalone"
        assert final["execution_mode"] == shown.execution_mode == mode  # type: ignore[union-attr]
        assert final["steps"][0]["status"] == ("done" if then else "failed")

    @pytest.mark.parametrize("command", ["resume", "approve"])
    async def test_it_is_computed_anew_at_resume_and_approve(self, tmp_path: Any, command: str):
        crew = Crew()
        toolsets = ["messaging"] if command == "approve" else []
        async with runtime_of(crew) as runtime:
            requests = crew_requests(runtime, tmp_path)
            run = await requests.submit_plan(plan(step("a", toolsets=toolsets)), review=command == "resume")
            await run.rest()
            if command == "resume":
                await runtime.pause(run.workflow_id)
                await runtime.execute(run.workflow_id)
            crew.there = False
            if command == "resume":
                await runtime.resume(run.workflow_id)
            else:
                await runtime.decide(run.workflow_id, step_id="a", granted=True, by="ann")
            final = await final_of(run)
        assert crew.tasks == []
        assert final["partial_reason"] == "delegate unavailable"

    async def test_a_name_that_is_no_delegate_is_refused(self, tmp_path: Any):
        async with runtime_of(Crew()) as runtime:
            with pytest.raises(ConfigurationError, match='"crow" is no delegate') as refused:
                await requests_of(runtime, tmp_path, delegate="crow").submit_plan(plan(step("a")))
            assert "crew" in str(refused.value.hint)
            assert await runtime.list() == []


@pytest.mark.parametrize(("toolsets", "is_safe"), [([], True), (["messaging"], False)])
async def test_after_a_crash_only_a_safe_task_is_given_again(
    tmp_path: Any, toolsets: list[str], is_safe: bool
):
    log, crew = MemoryLog(), Crew()
    async with runtime_of(crew, log) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a", toolsets=toolsets)))
        if toolsets:
            await granted(runtime, run)
        await run.result()
        rows = await log.read(run.workflow_id, 0, 10_000)
    begun = next(i for i, row in enumerate(rows) if row.type == "tool.call_started")
    cut, again = await restored(run.workflow_id, log, rows[: begun + 1]), Crew()
    async with runtime_of(again, cut) as runtime:
        await runtime.recover()
        handle = await runtime.attach(run.workflow_id)
        rest = await handle.rest()
        await must_be_sound(runtime, run.workflow_id, ended=is_safe)
    assert rest.state == ("completed" if is_safe else "waiting")
    assert again.steps == ([("a", 2)] if is_safe else [])


async def test_the_read_model_shows_what_the_engine_folds(tmp_path: Any):
    async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        await ctx.record_tool_call("post", {}, {"id": 1}, side_effect="read")
        return "?" if task.attempt == 1 else done(task.step_id)

    async with runtime_of(Crew(answer)) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a"), step("b", "a")))
        await run.result()
        last = (await runtime.record(run.workflow_id)).last_offset
        for offset in range(last + 1):
            shown = await runtime.state(run.workflow_id, offset)
            folded = await runtime.fold(run.workflow_id, at=offset)
            steps = {name: (one.state, one.attempt, one.visits) for name, one in shown.steps.items()}
            places = {name: folded.nodes[name] for name in shown.steps}
            assert (offset, shown.state, steps) == (
                offset,
                folded.status,
                {name: (one.status, one.attempt, one.visits) for name, one in places.items()},
            )
            assert set(shown.calls) == set(folded.calls)
            assert shown.usage == folded.usage


async def test_four_steps_run_at_once(tmp_path: Any):
    at_work, most = 0, 0

    async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        for _ in range(50):
            await asyncio.sleep(0)
        at_work -= 1
        return done(task.step_id)

    async with runtime_of(Crew(answer)) as runtime:
        steps = plan(*(step(f"s{i}") for i in range(9)))
        final = await final_of(await crew_requests(runtime, tmp_path).submit_plan(steps))
    assert final["status"] == "ready"
    assert most == 4


@pytest.mark.parametrize(
    "options", [{"retry": {"attempts": 2}}, {"timeout": "soon"}, {"budget": {"max_tokens": "x"}}]
)
async def test_a_wrong_policy_of_steps_is_refused(tmp_path: Any, options: Any):
    async with runtime_of(Crew()) as runtime:
        with pytest.raises(InvalidOptions) as refused:
            await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")), options=options)
        assert refused.value.diagnostics[0].path.startswith("/options/")  # type: ignore[union-attr]
        assert await runtime.list() == []


@virtual
async def test_options_are_the_policy_of_every_step(tmp_path: Any):
    async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
        await asyncio.Event().wait()

    crew = Crew(answer)
    options = {"retry": {"max_attempts": 2, "timeout": "30s", "backoff": "1s"}, "budget": {"max_tokens": 5}}
    async with runtime_of(crew, clock=LoopClock()) as runtime:
        run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")), options=options)
        final = await final_of(run)
    assert [task.deadline for task in crew.tasks] == [30.0, 30.0]
    assert crew.tasks[0].budget == {"max_tokens": 5}
    assert final["steps"][0]["status"] == "failed"
    assert "took longer than 30 s" in final["blockers"][0]


class TestUsage:
    """What a delegate says that it has used counts against the budgets (page 000 §10)."""

    @staticmethod
    async def same_at_every_event(runtime: Runtime, run_id: str) -> Any:
        last = (await runtime.record(run_id)).last_offset
        for offset in range(last + 1):
            shown, folded = await runtime.state(run_id, offset), await runtime.fold(run_id, at=offset)
            assert shown.usage == folded.usage, offset
        return (await runtime.record(run_id)).usage

    async def test_it_is_counted_for_each_attempt(self, tmp_path: Any):
        spent = {"input_tokens": 10, "output_tokens": 5, "model_calls": 1, "cost_usd": 0.25}

        async def answer(task: DelegateTask, ctx: ToolContext) -> Any:
            await ctx.record_tool_call("look", {}, {"id": 1}, side_effect="read")
            if task.attempt == 1:
                return DelegateResult(status="completed", result={"step_id": "?"}, usage=spent)
            usage = {**spent, "tool_calls": 5, "latency": "9 s", "cache_read_input_tokens": -4}
            return DelegateResult(status="completed", result=done(task.step_id), usage=usage)

        async with runtime_of(Crew(answer)) as runtime:
            run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")))
            output = (await run.result()).output
            usage = await self.same_at_every_event(runtime, run.workflow_id)
        assert (usage.input_tokens, usage.output_tokens, usage.model_calls) == (20, 10, 2)
        assert usage.cost_usd == 0.5
        assert usage.cache_read_input_tokens == 0
        # The task, two reported calls, three more of the five that it says; verifier and writer.
        assert usage.tool_calls == 8
        assert output["report"]["usage"]["input_tokens"] == 20

    @virtual
    @pytest.mark.parametrize("where", ["run", "steps"])
    @pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
    async def test_what_is_used_up_stops_the_next_task(self, tmp_path: Any, where: str, fails: bool):
        def answer(task: DelegateTask, ctx: ToolContext) -> Any:
            usage = {"input_tokens": 90, "output_tokens": 10, "model_calls": 1}
            if fails and (task.step_id, task.attempt) == ("a", 1):
                error = DelegateError(message="HTTP 503")
                return DelegateResult(status="error", error=error, usage=usage)
            return DelegateResult(status="completed", result=done(task.step_id), usage=usage)

        crew, limit = Crew(answer), {"max_tokens": 100}
        given: Any = {"budget": limit} if where == "run" else {"options": {"budget": limit}}
        async with runtime_of(crew, clock=LoopClock()) as runtime:
            run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a"), step("b", "a")), **given)
            rest = await run.rest()
            if where == "steps" and not fails:  # each step has its own
                assert (rest.state, crew.steps) == ("completed", [("a", 1), ("b", 1)])
                return
            assert (rest.state, rest.pause, crew.steps) == ("paused", "budget", [("a", 1)])
            await runtime.resume(run.workflow_id, budget={"max_tokens": 1000})
            final = await final_of(run)
            await self.same_at_every_event(runtime, run.workflow_id)
        assert final["status"] == "ready"
        seen = [task.budget["max_tokens"] for task in crew.tasks]  # type: ignore[index]
        assert (
            seen
            == {
                (False, "run"): [100, 900],
                (True, "run"): [100, 900, 800],
                (True, "steps"): [100, 900, 100],
            }[fails, where]
        )

    async def test_a_failed_step_is_charged_as_well(self, tmp_path: Any):
        error = DelegateError(message="no", code="broken")
        answer = DelegateResult(status="error", error=error, usage={"output_tokens": 7})
        async with runtime_of(Crew(lambda task, ctx: answer)) as runtime:
            run = await crew_requests(runtime, tmp_path).submit_plan(plan(step("a")))
            await run.result()
            usage = await self.same_at_every_event(runtime, run.workflow_id)
        assert usage.output_tokens == 7


async def test_a_budget_of_steps_holds_for_the_built_in_delegate(tmp_path: Any, monkeypatch: Any):
    from tests.integration.pipeline.support import model_of

    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    async with Runtime(models=[model_of()]) as runtime:
        options = {"budget": {"max_tokens": 1, "on_exceeded": "fail"}}
        run = await requests_of(runtime, tmp_path).submit_plan(plan(step("a")), options=options)
        output = (await run.result()).output
    assert output["final_output"]["steps"][0]["status"] == "failed"
    assert "max_tokens of step execute/a" in output["final_output"]["blockers"][0]
