"""`resume --all --reason R` (page 000 §11): in the Runtime, in the API by its client, on the command line."""

from __future__ import annotations

import json

import pytest

from agentflow import Runtime
from agentflow.client import ProblemError
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import ConfigurationError
from agentflow.events.catalogue import WorkflowPaused
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import log_of, must_be_sound
from tests.integration.test_cli_control import model, refusals, refusing, sandbox  # noqa: F401 — fixtures
from tests.unit.cli.support import ModelServer, Sandbox
from tests.unit.server.kit import agents, serving

QUOTA = ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="no credit"))


class Credit(ScriptedModel):
    """Answers once there is credit."""

    def __init__(self) -> None:
        super().__init__(lambda request: "paid" if self.there else QUOTA)
        self.there = False


class TestRuntime:
    async def test_those_that_paused_for_the_reason_go_on_and_no_others(self):
        credit = Credit()
        async with Runtime(models=[credit]) as runtime:
            short = [await runtime.submit(agents("a"), "x") for _ in range(3)]
            for handle in short:
                assert (await handle.result()).state == "paused"
            other = await runtime.submit(agents("b"), "x", budget={"max_model_calls": 0})
            assert (await other.result()).state == "paused"
            credit.there = True
            found = await runtime.resume_all(reason="quota", by="ann")
            assert found.resumed == [handle.workflow_id for handle in short]
            assert found.failed == []
            for run in found.resumed:
                assert (await (await runtime.attach(run)).result()).state == "completed"
                events = await must_be_sound(runtime, run)
                assert [e.data.by for e in events if e.type == "workflow.resumed"] == ["ann"]
            assert (await runtime.record(other.workflow_id)).state == "paused"
            assert (await runtime.resume_all(reason="quota")).resumed == []

    async def test_a_pause_is_found_behind_later_events(self):
        credit = Credit()
        async with Runtime(models=[credit]) as runtime:
            handle = await runtime.submit(agents("a"), "x")
            await handle.result()
            await runtime.signal(handle.workflow_id, "hello")
            last = (await log_of(runtime, handle.workflow_id))[-1]
            assert not isinstance(last.data, WorkflowPaused)
            credit.there = True
            assert (await runtime.resume_all(reason="quota")).resumed == [handle.workflow_id]

    async def test_a_limit_that_is_none_is_refused_before_any_run_goes_on(self):
        async with Runtime(models=[Credit()]) as runtime:
            handle = await runtime.submit(agents("a"), "x")
            await handle.result()
            with pytest.raises(ConfigurationError):
                await runtime.resume_all(reason="quota", budget={"max_token": 1})
            assert (await runtime.record(handle.workflow_id)).state == "paused"

    async def test_one_that_cannot_go_on_stops_no_other(self):
        document = agents("a") | {"budget": {"max_model_calls": 1}}
        two = {**document, "agents": [*agents("a", "b")["agents"]]}
        async with Runtime(models=[ScriptedModel(lambda r: "x")]) as runtime:
            handles = [await runtime.submit(two, "x") for _ in range(2)]
            for handle in handles:
                assert (await handle.result()).state == "paused"
            found = await runtime.resume_all(reason="budget", budget={"max_model_calls": 1})
            assert found.resumed == []
            assert [run.code for run in found.failed] == ["budget_too_small"] * 2
            found = await runtime.resume_all(reason="budget", budget={"max_model_calls": 2})
            assert len(found.resumed) == 2


async def test_the_api_and_its_client(tmp_path):
    credit = Credit()
    async with serving(tmp_path, model=credit) as served, served.client() as client:
        handle = await client.submit(agents("a"), "x")
        assert (await handle.result()).state == "paused"
        credit.there = True
        assert (await client.resume_all(reason="recovery_limit")).resumed == []
        assert (await client.resume_all(reason="quota")).resumed == [handle.workflow_id]
        assert (await handle.result()).state == "completed"
        with pytest.raises((ProblemError, ConfigurationError)):
            await client.resume_all(reason="quota", budget={"max_token": 1})


def test_the_command_line(sandbox: Sandbox, model: ModelServer):  # noqa: F811
    for run in ("wf_a", "wf_b"):
        more = ("-i", "name=A", "--id", run, "--budget", "max_model_calls=1")
        assert sandbox.invoke("run", "two.yaml", *more).exit_code == 9
    small = sandbox.invoke("resume", "--all", "--reason", "budget", "--budget", "max_model_calls=1")
    assert (small.exit_code, small.stdout) == (1, "0 resumed, 2 not\n")
    assert "wf_a stays paused" in small.stderr
    done = sandbox.invoke("resume", "--all", "--reason", "budget", "--budget", "max_model_calls=2", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"resumed": ["wf_a", "wf_b"], "failed": []}
    for run in ("wf_a", "wf_b"):
        assert json.loads(sandbox.invoke("show", run, "--json").stdout)["state"] == "completed"
    for wrong in (["wf_a", "--all", "--reason", "x"], ["--all"], ["--reason", "x"]):
        assert sandbox.invoke("resume", *wrong).exit_code == 2
    assert sandbox.invoke("resume").exit_code == 4  # it means the latest request, and there is none
