"""Submitting twice, and submitting on what another run has found."""

from __future__ import annotations

import asyncio
import re

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import (
    CommandRefused,
    ConfigurationError,
    IdempotencyConflict,
    OutputNotReady,
    RunExists,
    RunNotFound,
)
from agentflow.events.open import open_log
from agentflow.events.tracing import outgoing_headers
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def opened(log="memory:", desk: Desk | None = None) -> Runtime:
    services = [desk.service()] if desk is not None else []
    model = ScriptedModel(lambda r: {"said": r.messages[1].content})
    return Runtime(log, models=[model], services=services, clock=LoopClock())


class TestIdempotencyKeys:
    async def test_the_same_again_is_the_same_run_also_in_another_process(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with opened(url, desk) as runtime:
            first = await runtime.submit(chain("pay"), {"n": 1}, idempotency_key="k")
            again = await runtime.submit(chain("pay"), {"n": 1}, idempotency_key="k")
            assert again.workflow_id == first.workflow_id
            assert (await again.result()).state == "completed"
        async with opened(url, desk) as runtime:
            again = await runtime.submit(chain("pay"), {"n": 1}, idempotency_key="k")
            assert again.workflow_id == first.workflow_id
            assert (await again.result()).state == "completed"
            assert len(await runtime.rows()) == 1
        assert desk.calls == 1

    async def test_many_at_once(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with opened(url, desk) as runtime:
            graph = runtime.load(chain("pay"))
            handles = await asyncio.gather(
                *(runtime.submit(graph, {}, idempotency_key=f"k{n % 3}") for n in range(30))
            )
            assert len({h.workflow_id for h in handles}) == 3
            assert {(await h.result()).state for h in handles} == {"completed"}
            assert len(await runtime.rows()) == 3
        assert desk.calls == 3

    async def test_processes_that_share_a_store_make_one_run(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with opened(url, desk) as one, opened(url, desk) as other:
            keys = [f"k{n}" for n in range(15)]
            submitted = [
                (key, runtime.submit(chain("pay"), {"n": 1}, idempotency_key=key))
                for key in keys
                for runtime in (one, other)
            ]
            handles = await asyncio.gather(*(begun for _, begun in submitted))
            runs: dict[str, set[str]] = {}
            for (key, _), handle in zip(submitted, handles, strict=True):
                runs.setdefault(key, set()).add(handle.workflow_id)
            assert {len(ids) for ids in runs.values()} == {1}
            assert len(await one.rows(limit=500)) == len(keys)
            for run in {handle.workflow_id for handle in handles}:
                assert re.fullmatch("wf_[0-7][0-9A-HJKMNP-TV-Z]{25}", run)
                assert [e async for e in other.events(run)][-1].type == "workflow.completed"
                await must_be_sound(one, run)
        assert desk.calls == len(keys)

    async def test_nor_do_they_take_another_body_for_the_same(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with opened(url, desk) as one, opened(url, desk) as other:
            for key in ("a", "b", "c"):
                answers = await asyncio.gather(
                    one.submit(chain("pay"), {"n": 1}, idempotency_key=key),
                    other.submit(chain("pay"), {"n": 2}, idempotency_key=key),
                    return_exceptions=True,
                )
                (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
                assert isinstance(refused, IdempotencyConflict)

    async def test_nor_with_ids_of_their_own(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with opened(url, desk) as one, opened(url, desk) as other:
            for number in range(10):
                id, key = f"wf_{number}", f"k{number}" if number % 2 else None
                handles = await asyncio.gather(
                    *(
                        runtime.submit(chain("pay"), {}, workflow_id=id, idempotency_key=key)
                        for runtime in (one, other)
                    )
                )
                assert {handle.workflow_id for handle in handles} == {id}
                answers = await asyncio.gather(
                    one.submit(chain("pay"), {"n": 1}, workflow_id=f"{id}x"),
                    other.submit(chain("pay"), {"n": 2}, workflow_id=f"{id}x"),
                    return_exceptions=True,
                )
                (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
                assert isinstance(refused, RunExists)

    @virtual
    async def test_a_key_lasts_as_long_as_its_run(self):
        log = open_log("memory:")
        async with opened(log, Desk()) as runtime:
            ids: set[str] = set()
            for _ in range(3):
                handle = await runtime.submit(chain("pay"), {}, idempotency_key="k")
                assert (await handle.result()).state == "completed"
                assert (await runtime.submit(chain("pay"), {}, idempotency_key="k")).workflow_id not in ids
                ids.add(handle.workflow_id)
                await log.delete(handle.workflow_id, 1)
            assert len(ids) == 3
        await log.close()

    @virtual
    async def test_another_body(self):
        async with opened(desk=Desk()) as runtime:
            await runtime.submit(chain("pay"), {"n": 1}, idempotency_key="k")
            for graph, input, more in (
                (chain("look"), {"n": 1}, {}),
                (chain("pay"), {"n": 2}, {}),
                (chain("pay"), {"n": 1}, {"labels": {"a": "b"}}),
                (chain("pay"), {"n": 1}, {"budget": {"max_tokens": 5}}),
            ):
                with pytest.raises(IdempotencyConflict):
                    await runtime.submit(graph, input, idempotency_key="k", **more)
            assert len(await runtime.rows()) == 1
            await runtime.submit(chain("pay"), {"n": 2}, idempotency_key="k2")
            assert len(await runtime.rows()) == 2

    @virtual
    async def test_the_same_from_another_span_is_the_same(self):
        """A request that is sent again is a span of its own; the body is the same."""
        async with opened(desk=Desk()) as runtime:
            ids: set[str] = set()
            for span in ("a" * 16, "b" * 16):
                options = {"traceparent": f"00-{'c' * 32}-{span}-01", "tracestate": f"x={span}"}
                handle = await runtime.submit(chain("pay"), {}, idempotency_key="k", options=options)
                ids.add(handle.workflow_id)
            assert len(ids) == 1

    @virtual
    async def test_beside_an_id(self):
        async with opened(desk=Desk()) as runtime:
            mine = await runtime.submit(chain("pay"), {}, idempotency_key="k", workflow_id="wf_mine")
            assert mine.workflow_id == "wf_mine"
            again = await runtime.submit(chain("pay"), {}, idempotency_key="k", workflow_id="wf_mine")
            assert again.workflow_id == "wf_mine"
            await mine.result()
            with pytest.raises(RunExists):
                await runtime.submit(chain("pay"), {}, idempotency_key="other", workflow_id="wf_mine")
            assert len(await runtime.rows()) == 1
            await must_be_sound(runtime, "wf_mine")

    @virtual
    async def test_an_id_that_is_at_work_is_left_alone(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            mine = await runtime.submit(chain("pay"), {}, workflow_id="wf_mine")
            await desk.entered.wait()
            with pytest.raises(RunExists):
                await runtime.submit(chain("pay"), {}, idempotency_key="k", workflow_id="wf_mine")
            desk.gates["pay"].set()
            assert (await mine.result()).state == "completed"
            await must_be_sound(runtime, "wf_mine")
        assert desk.calls == 1

    @virtual
    async def test_a_refused_submission_leaves_its_key(self):
        async with opened(desk=Desk()) as runtime:
            for bad in ({"on_failure": "explode"}, {"nothing": 1}):
                with pytest.raises(ConfigurationError):
                    await runtime.submit(chain("pay"), {}, idempotency_key="k", options=bad)
            assert (await runtime.run(chain("pay"), {}, idempotency_key="k")).state == "completed"

    @virtual
    async def test_a_fork_does_not_take_the_key(self):
        async with opened(desk=Desk()) as runtime:
            first = await runtime.submit(chain("pay"), {}, idempotency_key="k")
            await first.result()
            await (await runtime.fork(first.workflow_id)).result()
            again = await runtime.submit(chain("pay"), {}, idempotency_key="k")
            assert again.workflow_id == first.workflow_id


class TestInputFrom:
    @virtual
    async def test_the_output_of_a_run_or_a_step_as_the_input_or_a_part_of_it(self):
        async with opened() as runtime:
            source = await runtime.run(document(step("a"), step("b", depends_on=["a"])), {})
            use = {"workflow_id": source.workflow_id}
            for given, input, seen in (
                (use, None, '{"b":{"said":"go"}}'),
                ({**use, "step_id": "a"}, None, '{"said":"go"}'),
            ):
                got = await runtime.run(document(step("x", input="${{ inputs }}")), input, input_from=given)
                assert got.output == {"x": {"said": seen}}
            steps = document(step("x", input="${{ inputs.old.said }} ${{ inputs.n }}"))
            got = await runtime.run(steps, {"n": 7}, input_from={**use, "step_id": "a", "as": "old"})
            assert got.output == {"x": {"said": "go 7"}}
            record = await runtime.record(got.workflow_id)
            assert record.input == {"n": 7, "old": {"said": "go"}}

    @virtual
    async def test_one_that_is_not_there_yet(self):
        desk = Desk(look=True)
        async with opened(desk=desk) as runtime:
            source = await runtime.submit(chain("pay", "look"), {})
            await run_until_idle()
            use = {"workflow_id": source.workflow_id}
            for given in (use, {**use, "step_id": "t1"}):
                with pytest.raises(OutputNotReady):
                    await runtime.submit(document(step("x")), None, input_from=given)
            got = await runtime.run(
                document(step("x", input="${{ inputs.done }}")), input_from={**use, "step_id": "t0"}
            )
            assert got.output == {"x": {"said": "pay"}}
            await source.cancel(mode="hard")
            await source.rest()
            with pytest.raises(OutputNotReady):
                await runtime.submit(document(step("x")), None, input_from=use)

    @virtual
    async def test_what_is_none(self):
        async with opened() as runtime:
            source = await runtime.run(document(step("a")), {})
            use = {"workflow_id": source.workflow_id}
            with pytest.raises(RunNotFound):
                await runtime.submit(document(step("x")), None, input_from={"workflow_id": "wf_none"})
            with pytest.raises(CommandRefused) as caught:
                await runtime.submit(document(step("x")), None, input_from={**use, "step_id": "z"})
            assert caught.value.code == "step_not_found"
            for given, input in (
                ({}, None),
                ({**use, "step": "a"}, None),
                (use, {"n": 1}),
            ):
                with pytest.raises(ConfigurationError):
                    await runtime.submit(document(step("x")), input, input_from=given)
            assert len(await runtime.rows()) == 1


async def test_the_options_of_a_submission_count_for_its_key():
    async with Runtime(models=[ScriptedModel(["a", "b", "c"])]) as runtime:
        document = {"agents": [{"name": "one", "system_prompt": "p", "model": "scripted:m"}]}
        first = await runtime.submit(document, "x", idempotency_key="k", options={"on_unknown": "fail"})
        again = await runtime.submit(document, "x", idempotency_key="k", options={"on_unknown": "fail"})
        assert again.workflow_id == first.workflow_id
        with pytest.raises(IdempotencyConflict):
            await runtime.submit(document, "x", idempotency_key="k", options={"on_unknown": "ask"})
        await first.result()
        source = {"workflow_id": first.workflow_id, "as": "draft"}
        with pytest.raises(ConfigurationError, match="names one input"):
            await runtime.submit(document, ["no", "names"], input_from=source)


async def test_a_stored_graph_keeps_the_order_of_keys(tmp_path):
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}}
    agent = {"name": "one", "system_prompt": "p", "model": "scripted:m", "output_schema": schema}
    async with Runtime(f"sqlite:{tmp_path / 'r.db'}", models=[ScriptedModel(["{}"])]) as runtime:
        handle = await runtime.submit({"agents": [agent]}, "x")
        node = next(n for n in (await runtime.graph(handle.workflow_id)).nodes if n.id == "one")
        assert list(node.agent.output_schema["properties"]) == ["z", "a", "m"]
        await handle.result()
        with pytest.raises(ConfigurationError, match="max_duration_s"):
            await runtime.submit({"agents": [agent]}, "x", budget={"max_duration_s": 1e308})


class CountingLog:
    """A store that notes which calls that cost a commit of their own were made."""

    def __init__(self, log) -> None:
        self._log = log
        self.calls: list[str] = []
        self.released = asyncio.Event()

    def __getattr__(self, name):
        found = getattr(self._log, name)
        if name not in ("put_definition", "release", "claim"):
            return found

        async def counted(*arguments):
            self.calls.append(name)
            if name == "release":
                self.released.set()
            return await found(*arguments)

        return counted


async def test_a_run_costs_no_commit_but_those_of_its_events(tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr("agentflow.runtime.submit.time.time", lambda: now[0])
    log = CountingLog(open_log(f"sqlite:{tmp_path / 'runs.db'}"))
    document = {"agents": [{"name": "a", "system_prompt": "s", "model": "scripted:m"}]}
    async with Runtime(log, models=[ScriptedModel(lambda request: "x")]) as runtime:
        for _ in range(3):
            assert (await runtime.run(document, "in")).output == "x"
        assert log.calls == ["put_definition"], "it was put a moment ago, and ended runs need no release"
        now[0] += 61
        await runtime.run(document, "in")
        now[0] -= 300  # the clock was set back: nothing is known of when it was put
        await runtime.run(document, "in")
        assert log.calls == ["put_definition"] * 3
        other = {"agents": [{"name": "b", "system_prompt": "s", "model": "scripted:m"}]}
        await runtime.run(other, "in")
        assert log.calls == ["put_definition"] * 4
    await log.close()


async def test_a_run_that_rests_is_released(tmp_path):
    log = CountingLog(open_log(f"sqlite:{tmp_path / 'runs.db'}"))
    document = {"agents": [{"name": "a", "system_prompt": "s", "model": "scripted:m"}], "on_failure": "hold"}
    failing = ErrorInfo(category="auth", code="authentication_failed", message="no")
    async with Runtime(log, models=[ScriptedModel([ModelError(failing)])]) as runtime:
        run = await runtime.submit(document, "in")
        assert (await run.result()).state == "paused"
        await log.released.wait()
    await log.close()


class TestTheTraceOfASubmission:
    TRACE = f"00-{'c' * 32}-{'a' * 16}-01"

    async def test_its_state_goes_with_every_model_call(self, tmp_path):
        seen: list[dict[str, str]] = []

        def answer(request):
            seen.append(outgoing_headers())
            return {"ok": True}

        url, options = (
            f"sqlite:{tmp_path / 'runs.db'}",
            {"traceparent": self.TRACE, "tracestate": "a=1, b@c=x:y"},
        )
        graph = document(step("a"), step("b", depends_on=["a"], approval=True))
        async with Runtime(url, models=[ScriptedModel(answer)]) as runtime:
            handle = await runtime.submit(graph, {}, options=options)
            assert (await handle.result()).state == "waiting"
        async with Runtime(url, models=[ScriptedModel(answer)]) as runtime:
            handle = await runtime.decide(handle.workflow_id, granted=True, step_id="b")
            assert (await handle.result()).state == "completed"
        assert [headers["tracestate"] for headers in seen] == ["a=1, b@c=x:y"] * 2
        assert all(headers["traceparent"].startswith(f"00-{'c' * 32}-") for headers in seen)

    async def test_a_state_alone_says_nothing(self):
        def answer(request):
            assert "tracestate" not in outgoing_headers()
            return {"ok": True}

        async with Runtime(models=[ScriptedModel(answer)]) as runtime:
            result = await runtime.run(document(step("a")), {}, options={"tracestate": "a=1"})
            assert result.state == "completed"

    @pytest.mark.parametrize(
        "wrong", ["", "a", "a=1,", "A=1", "a=1\r\nx: y", "a=é", "a=" + "x" * 600, 5, "a=1=2"]
    )
    async def test_one_that_is_none(self, wrong):
        async with opened() as runtime:
            with pytest.raises(ConfigurationError, match="tracestate"):
                await runtime.submit(document(step("a")), {}, options={"tracestate": wrong})
