"""The same request again: whatever has changed since, it is the first run (page 000 §8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.errors import AgentflowError, IdempotencyConflict, RunExists
from agentflow.events.memory import MemoryLog
from agentflow.pipeline.requests import Requests
from agentflow.pipeline.settings import PipelineSettings
from agentflow.pipeline.template_store import TemplateStore
from tests.integration.pipeline.support import Desk, model_of, plan, requests_of, step
from tests.integration.pipeline.test_delegates import Crew
from tests.unit.server.kit import serving


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


NAMES = [{"idempotency_key": "k"}, {"workflow_id": "wf_own"}]


@pytest.mark.parametrize("name", NAMES, ids=["key", "id"])
async def test_other_toolsets_and_settings_make_no_other_request(tmp_path: Any, name: dict[str, str]):
    log = MemoryLog()
    async with Runtime(log, models=[model_of(plan(step("a")))]) as runtime:
        first = await requests_of(runtime, tmp_path).submit(
            "workflow: x", options={"max_parallel": 2}, **name
        )
        assert first.run is not None
        assert first.run.created
        await first.run.result()
    async with Runtime(log, models=[], services=Desk().services()) as runtime:
        requests = requests_of(runtime, tmp_path, review="always", approval_class="write")
        again = await requests.submit("workflow: x", options={"max_parallel": 2}, **name)
        assert again.run is not None
        assert (again.run.workflow_id, again.run.created) == (first.run.workflow_id, False)
        assert again.activation == first.activation
        for other in ({"review": True}, {"options": {"max_parallel": 3}}, {"labels": {"a": "b"}}):
            with pytest.raises((IdempotencyConflict, RunExists)):
                await requests.submit("workflow: x", **{"options": {"max_parallel": 2}, **other}, **name)
        with pytest.raises((IdempotencyConflict, RunExists)):
            await requests.submit("workflow: y", options={"max_parallel": 2}, **name)


async def test_a_delegate_that_has_gone_makes_no_other_request(tmp_path: Any):
    log, crew = MemoryLog(), Crew()
    async with Runtime(log, models=[], services=[crew.service()]) as runtime:
        requests = requests_of(runtime, tmp_path, delegate="crew")
        first = await requests.submit_plan(plan(step("a")), idempotency_key="k", review=True)
        crew.there = False
        second = await requests.submit_plan(plan(step("a")), idempotency_key="k", review=True)
        assert (second.workflow_id, crew.pings) == (first.workflow_id, 1)
    async with Runtime(log, models=[]) as runtime:
        requests = requests_of(runtime, tmp_path, delegate="crew")
        third = await requests.submit_plan(plan(step("a")), idempotency_key="k", review=True)
        assert third.workflow_id == first.workflow_id
        with pytest.raises(AgentflowError):  # what is new needs the delegate
            await requests.submit_plan(plan(step("b")), idempotency_key="other")


TEMPLATE = """
name: notes
inputs: {topic: {required: true}}
summary: "Note ${{ inputs.topic }}"
steps:
  - {id: note, title: Note, action: "Write", owner: agent, depends_on: []}
"""


async def test_a_template_that_was_changed_or_removed_makes_no_other_request(tmp_path: Path):
    store = TemplateStore(tmp_path / "templates")
    store.put(TEMPLATE)
    async with Runtime(models=[model_of()]) as runtime:
        settings = PipelineSettings(workspace_roots=(str(tmp_path / "work"),))
        requests = Requests(runtime, settings, templates=store)
        first = await requests.run_template("notes", {"topic": "a"}, idempotency_key="k")
        store.put(TEMPLATE.replace("Write", "Write more"), overwrite=True)
        again = await requests.run_template("notes", {"topic": "a"}, idempotency_key="k")
        store.remove("notes")
        third = await requests.run_template("notes", {"topic": "a"}, idempotency_key="k")
        assert {first.workflow_id} == {again.workflow_id, third.workflow_id}
        with pytest.raises(IdempotencyConflict):
            await requests.run_template("notes", {"topic": "b"}, idempotency_key="k")
        await first.result()


async def test_the_daemon_answers_a_repeat_with_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model = model_of(plan(step("a")))
    async with serving(tmp_path, model=model) as served, served.http() as http:
        await http.post("/templates", json={"source": TEMPLATE})
        for path, body in (
            ("/requests", {"message": "workflow: x", "review": True}),
            ("/templates/notes/runs", {"inputs": {"topic": "a"}}),
        ):
            head = {"Idempotency-Key": f"key of {path}"}
            first = await http.post(path, json=body, headers=head)
            again = await http.post(path, json=body, headers=head)
            assert (first.status_code, again.status_code) == (201, 200)
            assert again.headers["location"] == first.headers["location"]
            other = await http.post(path, json={**body, "labels": {"a": "b"}}, headers=head)
            assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        run_id = first.json()["workflow_id"]
        await (await served.runtime.attach(run_id)).result()


async def test_two_at_once_begin_one_run(tmp_path: Path):
    async with Runtime(models=[model_of(plan(step("a")))]) as runtime:
        requests = requests_of(runtime, tmp_path)
        found = await asyncio.gather(*(requests.submit("workflow: x", idempotency_key="k") for _ in range(5)))
        runs = {one.run.workflow_id for one in found if one.run is not None}
        assert len(runs) == 1
        assert len(await runtime.list()) == 1
        assert found[0].run is not None
        await found[0].run.result()
