"""A submission that is sent again is one run: the log decides which request began it (daemon D8)."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import msgspec
import pytest

from agentflow import Runtime
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import decode
from agentflow.runtime.submission import body_hash, is_repeat, submission_digest
from tests.unit.server.kit import ECHO, echo, serving

REPEATS = 50
NAMED = [
    pytest.param({}, {"Idempotency-Key": "k"}, id="key"),
    pytest.param({"workflow_id": "wf_mine"}, {}, id="id"),
    pytest.param({"workflow_id": "wf_mine"}, {"Idempotency-Key": "k"}, id="key and id"),
]


async def submit(http: httpx.AsyncClient, more: dict, headers: dict, query: str = "") -> httpx.Response:
    return await http.post(
        f"/workflows{query}", json={"definition": ECHO, "input": "x", **more}, headers=headers
    )


@pytest.mark.parametrize(("more", "headers"), NAMED)
@pytest.mark.parametrize("query", ["", "?wait=20"])
async def test_one_of_many_repeats_is_new(tmp_path, more, headers, query):
    async with serving(tmp_path, store=f"sqlite:{tmp_path / 'runs.db'}") as served, served.http() as http:
        answers = await asyncio.gather(*(submit(http, more, headers, query) for _ in range(REPEATS)))
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: REPEATS - 1}
        assert len({answer.json()["workflow_id"] for answer in answers}) == 1
        assert served.app.service.metrics.runs_accepted == 1
        again = await submit(http, more, headers)
        assert again.status_code == 200
        assert served.app.service.metrics.runs_accepted == 1


async def test_two_servers_on_one_store_count_a_run_once(tmp_path):
    store = f"sqlite:{tmp_path / 'runs.db'}"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with serving(tmp_path / "a", store=store) as one, serving(tmp_path / "b", store=store) as other:
        async with one.http() as first, other.http() as second:
            answers = await asyncio.gather(
                *(submit(http, {}, {"Idempotency-Key": "k"}) for _ in range(10) for http in (first, second))
            )
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 19}
        counted = [served.app.service.metrics.runs_accepted for served in (one, other)]
        assert sorted(counted) == [0, 1]


async def test_the_listener_makes_no_difference(tmp_path):
    """The owner of the Unix socket is trusted and named by a number, a client over TCP is neither."""
    async with serving(tmp_path) as served, served.http() as unix, served.http(tcp=True) as tcp:
        for key, (one, other) in {"a": (unix, tcp), "b": (tcp, unix)}.items():
            first = await submit(one, {}, {"Idempotency-Key": key})
            again = await submit(other, {}, {"Idempotency-Key": key})
            assert (first.status_code, again.status_code) == (201, 200), again.text
            assert first.json()["workflow_id"] == again.json()["workflow_id"]
            changed = await submit(other, {"input": "y"}, {"Idempotency-Key": key})
            assert (changed.status_code, changed.json()["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(("more", "headers"), NAMED)
async def test_a_repeat_is_one_though_what_it_needs_is_not_here_now(tmp_path, monkeypatch, more, headers):
    """A lost answer is asked for again while the service is down, or by a client that may not use it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from agentflow import function\n\n@function\ndef shout(text: str) -> str:\n    return text\n"
    (tmp_path / "idem_tools.py").write_text(text)
    code = {**ECHO, "services": {"idem": {"type": "python", "module": "idem_tools"}}}
    body = {"definition": code, "input": "x", **more}
    async with serving(tmp_path) as served, served.http() as owner, served.http(tcp=True) as other:
        refused = await other.post("/workflows", json=body, headers=headers)
        assert refused.status_code == 422, refused.text
        first = await owner.post("/workflows?wait=20", json=body, headers=headers)
        assert first.status_code == 201, first.text

        async def unavailable(*given, **more):
            pytest.fail("a repeat was bound")

        monkeypatch.setattr(served.runtime, "bind", unavailable)
        for http in (other, owner):
            again = await http.post("/workflows", json=body, headers=headers)
            assert (again.status_code, again.json().get("workflow_id")) == (200, first.json()["workflow_id"])
        changed = await other.post("/workflows", json={**body, "input": "y"}, headers=headers)
        assert changed.status_code == 409


@pytest.mark.parametrize("other", [{"labels": {"a": "b"}}, {"budget": {"max_tokens": 9}}], ids=str)
@pytest.mark.parametrize(("more", "headers"), NAMED)
async def test_labels_and_budget_belong_to_the_submission(tmp_path, more, headers, other):
    async with serving(tmp_path) as served, served.http() as http:
        assert (await submit(http, more, headers)).status_code == 201
        answer = await submit(http, {**more, **other}, headers)
        assert answer.status_code == 409
        assert answer.json()["code"] in ("run_exists", "idempotency_conflict")


async def test_a_key_of_an_older_store_is_known():
    """agentflow 0.1.0 had the actor and its trust in the digest."""
    async with Runtime("memory:", models=[echo()]) as runtime:
        handle = await runtime.submit(ECHO, "x", idempotency_key="k", by="uid:7", trusted=False)
        row = (await runtime.log.read(handle.workflow_id, 0, 1))[0]
        started = decode(row.body).data
    assert isinstance(started, WorkflowStarted)
    assert started.body_hash == submission_digest(started)
    parts = (started.definition.hash, started.input, started.labels, started.budget or None)
    older = body_hash(*parts, {"trusted": False}, "uid:7")
    first = msgspec.structs.replace(started, body_hash=older)
    again = msgspec.structs.replace(started, by="local", options={})
    assert is_repeat(again, first)
    assert not is_repeat(msgspec.structs.replace(again, input="y"), first)
