"""Every operation of the API over a real socket: what it answers, and each problem that it can have."""

from __future__ import annotations

import asyncio
import re
from unittest.mock import AsyncMock

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from agentflow.definition.ir import Edge, EndNode, StartNode, Workflow
from agentflow.errors import LogCorrupt, RunNotFound
from agentflow.events.envelope import decode
from agentflow.events.retention import RetentionPolicy
from agentflow.records.export import export_pieces, export_run, open_export
from agentflow.records.read_model import ReadModel
from agentflow.records.runs import RunRecord
from agentflow.runtime.retention import upkeep
from agentflow.schemas import SCHEMA_FILES, SCHEMA_NAMES, json_schema
from agentflow.server.metrics import Metrics
from agentflow.server.problems import STATUS
from tests.unit.server.kit import APPROVAL, ECHO, STEPS, Gate, agents, holding_model, serving

OPENMETRICS_1 = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
async def http(served):
    async with served.http() as client:
        yield client


async def submit(http, definition=ECHO, input="hi", *, wait=10, **more):
    body = {"definition": definition, "input": input, **more}
    answer = await http.post("/workflows", params={} if wait is None else {"wait": wait}, json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def pages_of(http):
    """The page of metrics again and again: what was committed is there a moment later."""
    while True:
        yield (await http.get("/metrics")).text
        await asyncio.sleep(0.02)


def refused(answer, code):
    """The problem has this code and the status that the table gives it."""
    problem = answer.json()
    assert problem["code"] == code, problem
    assert answer.status_code == problem["status"] == STATUS[code][0]
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:agentflow:problem:{code}"
    assert problem["detail"]
    return problem


class TestSubmitting:
    async def test_a_run_is_accepted_with_its_record_and_place(self, http):
        answer = await http.post(
            "/workflows", json={"definition": ECHO, "input": "hi", "labels": {"team": "x"}}
        )
        assert answer.status_code == 201
        record = msgspec.json.decode(answer.content, type=RunRecord)
        assert answer.headers["location"] == f"/workflows/{record.workflow_id}" == record.links["self"]
        assert record.labels == {"team": "x"}
        assert re.fullmatch(r"wf_[0-9A-Z]{26}", record.workflow_id)

    async def test_wait_gives_the_record_at_rest(self, http):
        record = await submit(http)
        assert (record["state"], record["output"]) == ("completed", "hi!")

    async def test_wait_ends_when_its_time_is_over(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.http() as http,
        ):
            record = await submit(http, gate.document(), wait=0.05)
            assert record["state"] == "running"
            gate.leave.set()

    async def test_the_actor_stands_in_the_log(self, served, http):
        record = await submit(http)
        rows = await served.runtime.log.read(record["workflow_id"])
        assert decode(rows[0].body).data.by.startswith("uid:")

    async def test_a_yaml_body_is_the_definition_alone(self, http):
        answer = await http.post(
            "/workflows",
            content=STEPS.replace("${{ inputs.text }}", "x"),
            headers={"content-type": "application/yaml"},
        )
        assert answer.status_code == 201

    async def test_yaml_as_a_string(self, http):
        record = await submit(http, STEPS, {"text": "a"})
        assert record["output"] == {"second": "a!!"}

    async def test_all_that_is_wrong_is_told_and_nothing_is_made(self, served, http):
        broken = STEPS.replace("[first]", "[frist]").replace("id: second", "id: second\n      tiemout: 3s")
        answer = await http.post(
            "/workflows", json={"definition": broken, "input": {"text": "a"}, "file": "x.yaml"}
        )
        problem = refused(answer, "validation_failed")
        found = {d["code"]: d for d in problem["diagnostics"]}
        assert {"E_UNKNOWN_DEPENDENCY", "E_UNKNOWN_KEY"} <= set(found)
        assert found["E_UNKNOWN_DEPENDENCY"]["file"] == "x.yaml"
        assert found["E_UNKNOWN_DEPENDENCY"]["line"] > 0
        assert (await served.runtime.log.runs()).items == []

    async def test_the_same_id_again_is_the_same_run(self, http):
        first = await http.post(
            "/workflows", json={"definition": ECHO, "input": "a", "workflow_id": "wf_mine"}
        )
        again = await http.post(
            "/workflows", json={"definition": ECHO, "input": "a", "workflow_id": "wf_mine"}
        )
        assert (first.status_code, again.status_code) == (201, 200)
        other = await http.post(
            "/workflows", json={"definition": ECHO, "input": "b", "workflow_id": "wf_mine"}
        )
        refused(other, "run_exists")

    async def test_an_idempotency_key_gives_one_run(self, http):
        body = {"definition": ECHO, "input": "a"}
        answers = await asyncio.gather(
            *(http.post("/workflows", json=body, headers={"Idempotency-Key": "k1"}) for _ in range(5))
        )
        assert len({answer.json()["workflow_id"] for answer in answers}) == 1
        again = await http.post("/workflows", json=body, headers={"Idempotency-Key": "k1"})
        assert again.status_code == 200
        other = await http.post("/workflows", json={**body, "input": "b"}, headers={"Idempotency-Key": "k1"})
        refused(other, "idempotency_conflict")
        assert "agentflow.idempotency_key" not in (await http.get("/workflows")).json()["items"][0]["labels"]

    async def test_the_output_of_another_run_as_input(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.http() as http,
        ):
            first = await submit(http, gate.document(), wait=None)
            body = {"definition": ECHO, "input_from": {"workflow_id": first["workflow_id"]}}
            refused(await http.post("/workflows", json=body), "output_not_ready")
            gate.leave.set()
            async with served.client() as client:
                await client.rest(first["workflow_id"])
            answer = await http.post("/workflows?wait=10", json=body)
            assert answer.json()["output"] == "released!"

    async def test_a_trace_goes_on_in_the_run(self, served, http):
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        answer = await http.post("/workflows", json={"definition": ECHO}, headers={"traceparent": parent})
        rows = await served.runtime.log.read(answer.json()["workflow_id"])
        assert decode(rows[0].body).trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
        assert "tracestate" not in decode(rows[0].body).data.options
        headers = [("traceparent", parent), ("tracestate", "a=1"), ("tracestate", "b=2,c=3")]
        answer = await http.post("/workflows", json={"definition": ECHO}, headers=headers)
        rows = await served.runtime.log.read(answer.json()["workflow_id"])
        assert decode(rows[0].body).data.options["tracestate"] == "a=1,b=2,c=3"
        headers[1:] = [("tracestate", "no state")]
        answer = await http.post("/workflows", json={"definition": ECHO}, headers=headers)
        rows = await served.runtime.log.read(answer.json()["workflow_id"])
        assert "tracestate" not in decode(rows[0].body).data.options
        odd = await http.post("/workflows", json={"definition": ECHO}, headers={"traceparent": "nonsense"})
        assert odd.status_code == 201

    async def test_a_full_queue_says_when_to_come_again(self, tmp_path):
        gate = Gate()
        more = {"max_concurrent_runs": 1, "max_queued_runs": 1}
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),), **more) as served,
            served.http() as http,
        ):
            await submit(http, gate.document(), wait=None)
            await gate.entered.wait()
            queued = await submit(http, wait=None)
            assert queued["state"] == "pending"
            answer = await http.post("/workflows", json={"definition": ECHO})
            refused(answer, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
            gate.leave.set()
            async with served.client() as client:
                assert (await client.rest(queued["workflow_id"])).state == "completed"

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({}, "invalid_parameter"),
            ({"definition": ECHO, "definition_ref": "x"}, "invalid_parameter"),
            ({"definition": ECHO, "nonsense": 1}, "invalid_parameter"),
            ({"definition": 7}, "invalid_parameter"),
            ({"definition": ECHO, "workflow_id": "wf_../x"}, "invalid_parameter"),
            ({"definition": ECHO, "options": {"nonsense": 1}}, "validation_failed"),
            ({"definition": ECHO, "options": {"on_failure": "explode"}}, "validation_failed"),
            ({"definition": ECHO, "labels": {"a": 1}}, "invalid_parameter"),
            ({"definition": ECHO, "budget": {"max_tokens": -1}}, "invalid_parameter"),
            ({"definition": ECHO, "input_from": {"workflow_id": "wf_none"}}, "workflow_not_found"),
            ({"definition_ref": "none"}, "definition_not_found"),
            ({"definition": ECHO, "format": "agent-workflow/1.0"}, "validation_failed"),
            ([], "invalid_parameter"),
        ],
    )
    async def test_what_cannot_be_submitted(self, http, body, code):
        refused(await http.post("/workflows", json=body), code)

    @pytest.mark.parametrize("wait", ["-1", "x", "601", "nan", "inf"])
    async def test_a_wait_that_is_none(self, http, wait):
        refused(
            await http.post("/workflows", params={"wait": wait}, json={"definition": ECHO}),
            "invalid_parameter",
        )


class TestBodies:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b'{"definition": "\xff"}',
            b"\xff\xfe",
            b'{"definition": {"a": ' + b"[" * 100_000,
            b"{} x",
            b"NaN",
            b"{'a': 1}",
        ],
    )
    async def test_what_is_not_json(self, http, content):
        answer = await http.post("/workflows", content=content, headers={"content-type": "application/json"})
        refused(answer, "malformed_json")

    @pytest.mark.parametrize(
        "kind",
        [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "a"],
    )
    async def test_media_types_that_are_not_taken(self, http, kind):
        headers = {} if kind is None else {"content-type": kind}
        refused(await http.post("/workflows", content=b"{}", headers=headers), "unsupported_media_type")

    async def test_utf8_may_be_named(self, http):
        headers = {"content-type": "Application/JSON; charset=UTF-8"}
        answer = await http.post(
            "/workflows", content=msgspec.json.encode({"definition": ECHO}), headers=headers
        )
        assert answer.status_code == 201

    async def test_a_body_that_is_announced_too_large(self, http):
        answer = await http.post(
            "/workflows", content=b"x" * (8 << 20) + b"x", headers={"content-type": "application/json"}
        )
        refused(answer, "payload_too_large")

    async def test_a_body_that_becomes_too_large(self, http):
        async def endless():
            for _ in range(9 * 16):
                yield b" " * 65_536

        answer = await http.post(
            "/workflows", content=endless(), headers={"content-type": "application/json"}
        )
        refused(answer, "payload_too_large")

    @pytest.mark.parametrize("count", [10_000, 1_000_000])  # below and above what is decoded in a thread
    async def test_a_body_of_numbers_that_take_long_to_decode(self, http, count):
        body = b'{"definition":{},"input":[' + b"1e300," * count + b"1]}"
        answer = await http.post("/workflows", content=body, headers={"content-type": "application/json"})
        refused(answer, "payload_too_large")

    async def test_commands_need_no_body(self, http):
        record = await submit(http, APPROVAL, None)
        answer = await http.post(f"/workflows/{record['workflow_id']}/cancel")
        assert answer.status_code == 202


class TestRouting:
    async def test_what_is_not_there(self, http):
        for path in ("/nope", "/workflows/", "/workflows/wf_x/nope", "/workflows//events"):
            assert (await http.get(path)).status_code == 404, path

    async def test_methods_that_a_path_has_not(self, http):
        answer = await http.put("/workflows", json={})
        refused(answer, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD, POST"
        assert (await http.options("/version")).status_code == 405

    async def test_head_is_get_without_a_body(self, http):
        record = await submit(http)
        for path in (
            "/version",
            f"/workflows/{record['workflow_id']}",
            f"/workflows/{record['workflow_id']}/events",
        ):
            answer = await http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")

    @pytest.mark.parametrize(
        ("path", "accept"),
        [("/version", "text/html"), ("/version", "application/json;q=0"), ("/metrics", "application/json")],
    )
    async def test_what_cannot_be_answered(self, http, path, accept):
        refused(await http.get(path, headers={"accept": accept}), "not_acceptable")

    @pytest.mark.parametrize(
        "path", ["/version?x=1", "/workflows?limit=0", "/workflows?limit=501", "/workflows?limit=5&limit=6"]
    )
    async def test_unknown_and_wrong_query_parameters(self, http, path):
        refused(await http.get(path), "invalid_parameter")

    async def test_unknown_query_parameters_name_those_that_are_known(self, http):
        problem = refused(await http.get("/workflows?lmit=5"), "invalid_parameter")
        assert "lmit" in problem["detail"]
        assert "limit" in problem["hint"]


class TestLists:
    async def test_pages_newest_first(self, http):
        ids = [(await submit(http, input=str(i)))["workflow_id"] for i in range(5)]
        found, cursor = [], None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await http.get("/workflows", params=query)).json()
            found += [item["workflow_id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == ids[::-1]
        rising = (await http.get("/workflows?order=asc")).json()["items"]
        assert [item["workflow_id"] for item in rising] == ids

    async def test_by_state_name_label_and_time(self, http):
        done = await submit(http, labels={"team": "a"})
        waiting = await submit(http, APPROVAL, None, labels={"team": "b"})

        async def ids(query):
            items = (await http.get(f"/workflows?{query}")).json()["items"]
            return {item["workflow_id"] for item in items}

        one, two = done["workflow_id"], waiting["workflow_id"]
        assert await ids("state=completed") == {one}
        assert await ids("state=completed,waiting") == {one, two}
        assert await ids("label=team=b") == {two}
        assert await ids("name=nobody") == set()
        assert await ids(f"since={waiting['created_at']}") == {two}
        assert await ids(f"until={waiting['created_at']}") == {one}

    async def test_full_gives_run_records(self, http):
        await submit(http)
        (item,) = (await http.get("/workflows?full=true")).json()["items"]
        assert msgspec.convert(item, RunRecord).output == "hi!"

    @pytest.mark.parametrize(
        "query",
        [
            "state=done",
            "cursor=nonsense",
            "since=yesterday",
            "until=2026-01-01",
            "label=x",
            "order=up",
            "full=maybe",
        ],
    )
    async def test_what_cannot_be_listed(self, http, query):
        refused(await http.get(f"/workflows?{query}"), "invalid_parameter")


class TestReading:
    async def test_a_run_in_all_its_views(self, http):
        record = await submit(http, STEPS, {"text": "a"})
        base = record["links"]["self"]
        history = (await http.get(f"{base}/history")).json()
        assert [(s["step_id"], s["state"], s["output"]) for s in history["steps"]] == [
            ("first", "succeeded", "a!"),
            ("second", "succeeded", "a!!"),
        ]
        assert [a["model"] for a in history["agents"]] == ["scripted:m"] * 2
        assert [m["state"] for m in history["models"]] == ["succeeded"] * 2
        assert history["workflow"]["workflow_id"] == record["workflow_id"]
        log = await http.get(f"{base}/log")
        assert log.headers["content-type"] == "application/x-ndjson"
        lines = log.content.splitlines()
        assert [decode(line).offset for line in lines] == list(range(record["last_offset"] + 1))
        step = (await http.get(f"{base}/state/second")).json()
        assert (step["input"], step["data"], step["step_index"]) == ("a!", "a!!", 1)
        context = (await http.get(f"{base}/context/second")).json()
        assert [m["role"] for m in context["messages"]] == ["system", "user", "assistant"]
        definition = (await http.get(f"{base}/definition")).json()
        assert definition["source"] == STEPS
        assert definition["ir"]["nodes"]
        assert "flowchart TD" in (await http.get(f"{base}/graph?format=mermaid")).text
        assert "digraph" in (await http.get(f"{base}/graph?format=dot")).text
        assert (await http.get(f"{base}/graph")).json() == definition["ir"]

    async def test_the_log_is_a_file_that_opens_elsewhere(self, served, http, tmp_path):
        """A graph that no source gives, and a value that is no event: both are only named by events."""
        graph = Workflow(
            nodes=[StartNode(id="start"), EndNode(id="end")],
            edges=[Edge(source="start", target="end")],
            name="g",
        )
        built = (await served.runtime.run(graph, {"x": 1})).workflow_id
        run = (await submit(http, STEPS, {"text": "a"}))["workflow_id"]
        fork = (await served.runtime.fork(run, from_step="second")).workflow_id
        await served.runtime.rest(fork)
        for run, attached in ((built, ["definition"]), (fork, ["blob"])):
            answer = await http.get(f"/workflows/{run}/log")
            assert answer.headers["content-type"] == "application/x-ndjson"
            assert answer.headers["content-disposition"] == f'inline; filename="{run}.ndjson"'
            lines = [line async for line in export_run(served.runtime.log, run)]
            assert answer.content == b"\n".join(lines) + b"\n"
            kinds = [msgspec.json.decode(line).get("attachment") for line in lines]
            assert [kind for kind in kinds if kind] == attached
            path = tmp_path / "run.ndjson"
            path.write_bytes(answer.content)
            opened = await open_export(path)
            assert opened.warning is None
            there, here = ReadModel(served.runtime.log), ReadModel(opened.log)
            for view in ("record", "graph", "state", "history"):
                assert await getattr(here, view)(run) == await getattr(there, view)(run)
            expanded = (await http.get(f"/workflows/{run}/log?expand=true")).content.splitlines()
            assert [decode(line).offset for line in expanded] == list(range(len(expanded)))
        async with served.client() as client:
            assert b"".join([piece async for piece in client.export(run)]) == answer.content
            with pytest.raises(RunNotFound):
                await anext(client.export("wf_none"))

    async def test_the_log_of_a_trimmed_run_brings_the_records_that_were_kept(self, served, http, tmp_path):
        run = (await submit(http, STEPS, {"text": "a"}))["workflow_id"]
        record = await ReadModel(served.runtime.log).record(run)
        policy = RetentionPolicy(mode="age", max_age=0, trim_to_events=2)
        await upkeep(served.runtime.log, policy, served.runtime.clock.now() + 10**15)
        earliest = (await served.runtime.log.run(run)).earliest_offset
        assert earliest > 0
        path = tmp_path / "run.ndjson"
        path.write_bytes((await http.get(f"/workflows/{run}/log")).content)
        opened = (await open_export(path)).log
        assert (await opened.run(run)).earliest_offset == earliest
        found = await ReadModel(opened).record(run)
        assert (found.output, found.steps) == (record.output, record.steps)

    async def test_a_long_log_is_sent_as_it_is_read(self, served, http, monkeypatch):
        run = (await submit(http))["workflow_id"]
        log = served.runtime.log
        (first, *_, last) = await log.read(run)
        count = 3_000
        read = []

        async def pages(self, workflow_id, start=0, limit=512):
            read.append(start)
            return [
                msgspec.structs.replace(first if n == 0 else last, offset=n)
                for n in range(start, min(start + limit, count))
            ]

        row = msgspec.structs.replace(await log.run(run), last_offset=count - 1)
        monkeypatch.setattr(type(log), "read", pages)
        monkeypatch.setattr(type(log), "run", AsyncMock(return_value=row))
        pieces = export_pieces(log, run)
        sizes = [len(await anext(pieces))]
        assert read == [0], "the first piece is given before the second page is read"
        sizes += [len(piece) async for piece in pieces]
        assert all(64 * 1024 <= size < 128 * 1024 for size in sizes[:-1])
        assert len(read) == 6

    async def test_a_log_that_is_damaged_at_its_beginning_is_a_problem(self, served, http, monkeypatch):
        run = (await submit(http))["workflow_id"]
        monkeypatch.setattr(type(served.runtime.log), "read", AsyncMock(side_effect=LogCorrupt("line 1")))
        refused(await http.get(f"/workflows/{run}/log"), "log_corrupt")

    async def test_the_state_as_of_every_offset(self, http):
        record = await submit(http, STEPS, {"text": "a"})
        base = record["links"]["self"]
        seen = []
        for offset in range(record["last_offset"] + 1):
            state = (await http.get(f"{base}/state", params={"offset": offset})).json()
            assert state["offset"] == offset
            seen.append((state["state"], state["steps"]["first"]["state"], state["steps"]["second"]["state"]))
        assert seen[0] == ("pending", "pending", "pending")
        assert seen[-1] == ("completed", "succeeded", "succeeded")
        assert ("running", "succeeded", "running") in seen
        beyond = (await http.get(f"{base}/state?offset=99999")).json()
        assert beyond["offset"] == record["last_offset"]

    async def test_a_step_with_a_slash_is_one_name(self, http):
        record = await submit(http)
        answer = await http.get(f"/workflows/{record['workflow_id']}/state/a%2Fb")
        refused(answer, "step_not_found")

    @pytest.mark.parametrize(
        "path", ["", "/events", "/history", "/log", "/state", "/definition", "/graph", "/requests"]
    )
    @pytest.mark.parametrize(
        "name", ["wf_none", "..%2F..%2Fetc", "wf_%00", "wf_a%2Fb", "%ff", "x" * 3000, "wf_" + "x" * 65]
    )
    async def test_runs_that_are_not_there(self, http, path, name):
        refused(await http.get(f"/workflows/{name}{path}"), "workflow_not_found")

    @pytest.mark.parametrize(
        "path", ["state/none", "context/none", "state/%2e%2e", "state/first?iteration=3"]
    )
    async def test_steps_that_are_not_there(self, http, path):
        record = await submit(http, STEPS, {"text": "a"})
        refused(await http.get(f"/workflows/{record['workflow_id']}/{path}"), "step_not_found")

    async def test_blobs(self, served, http):
        name = await served.runtime.log.put_blob(b'"large"')
        answer = await http.get(f"/blobs/{name}")
        assert answer.content == b'"large"'
        assert answer.headers["content-type"] == "application/octet-stream"
        assert (await http.get(f"/blobs/{name.partition(':')[2]}")).status_code == 200
        for missing in ("sha256:" + "0" * 64, "nonsense", "..%2f"):
            refused(await http.get(f"/blobs/{missing}"), "blob_not_found")


class TestDeleting:
    async def test_an_ended_run_leaves_a_tombstone(self, http):
        record = await submit(http)
        path = f"/workflows/{record['workflow_id']}"
        assert (await http.delete(path)).status_code == 204
        problem = refused(await http.get(path), "run_gone")
        assert (problem["workflow_id"], problem["state"]) == (record["workflow_id"], "completed")
        refused(await http.get(f"{path}/events"), "run_gone")
        refused(await http.delete(path), "run_gone")
        again = await http.post("/workflows", json={"definition": ECHO, "workflow_id": record["workflow_id"]})
        assert again.status_code in (409, 410)

    async def test_a_run_that_goes_on_stays(self, http):
        record = await submit(http, APPROVAL, None)
        refused(await http.delete(f"/workflows/{record['workflow_id']}"), "run_not_terminal")
        refused(await http.delete("/workflows/wf_none"), "workflow_not_found")


class TestCommands:
    @pytest.fixture
    async def held(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.http() as http,
        ):
            record = await submit(http, gate.document(), wait=None)
            await gate.entered.wait()
            yield served, http, gate, f"/workflows/{record['workflow_id']}"

    async def test_cancel(self, held):
        served, http, _, path = held
        answer = await http.post(f"{path}/cancel", json={"mode": "hard", "reason": "enough"})
        assert answer.status_code == 202
        async with served.client() as client:
            assert (await client.rest(path.split("/")[2])).state == "cancelled"
        refused(await http.post(f"{path}/cancel", json={}), "run_terminal")
        refused(await http.post(f"{path}/resume", json={}), "run_terminal")
        refused(await http.post(f"{path}/pause", json={}), "run_terminal")

    async def test_pause_and_resume(self, held):
        served, http, gate, path = held
        answer = await http.post(f"{path}/pause", json={"reason": "lunch"})
        assert answer.status_code == 202
        assert answer.json()["state"] == "paused"
        assert (await http.post(f"{path}/pause", json={})).status_code == 200
        gate.leave.set()
        answer = await http.post(f"{path}/resume", json={})
        assert answer.status_code == 200
        async with served.client() as client:
            assert (await client.rest(path.split("/")[2])).state == "completed"

    async def test_resume_when_there_is_nothing_to_resume(self, held):
        _, http, gate, path = held
        before = (await http.get(path)).json()["last_offset"]
        assert (await http.post(f"{path}/resume")).status_code == 200
        assert (await http.get(path)).json()["last_offset"] == before
        gate.leave.set()

    async def test_a_command_for_a_log_that_has_grown(self, held):
        _, http, gate, path = held
        for command in ("cancel", "pause", "resume"):
            refused(await http.post(f"{path}/{command}", json={"expected_offset": 0}), "offset_mismatch")
        body = {"expected_offset": 0, "name": "x"}
        refused(await http.post(f"{path}/signals", json=body), "offset_mismatch")
        gate.leave.set()

    async def test_signals_are_taken_once(self, held):
        _, http, gate, path = held
        body = {"name": "go", "data": {"a": 1}, "signal_id": "sig_1"}
        assert (await http.post(f"{path}/signals", json=body)).status_code == 202
        assert (await http.post(f"{path}/signals", json=body)).status_code == 200
        gate.leave.set()

    async def test_retry_wants_a_held_step(self, held):
        _, http, gate, path = held
        answer = await http.post(f"{path}/retry", json={"step_id": "holder"})
        assert answer.status_code in (404, 409)
        gate.leave.set()

    @pytest.mark.parametrize(
        ("command", "body"),
        [
            ("cancel", {"mode": "gently"}),
            ("cancel", {"grace_s": -1}),
            ("pause", {"in_flight": "x"}),
            ("retry", {}),
            ("retry", {"step_id": "x", "action": "x"}),
            ("signals", {}),
            ("signals", {"name": ""}),
            ("approvals", {"decision": "perhaps", "step_id": "a"}),
            ("approvals", {"decision": "grant"}),
            ("approvals", {"decision": "grant", "step_id": "a", "request_id": "b"}),
            ("inputs", {"responses": {}}),
            ("inputs", {}),
            ("fork", {"offset": -1}),
            ("fork", {"from": "here"}),
            ("cancel", {"unknown": 1}),
        ],
    )
    async def test_bodies_that_make_no_command(self, http, command, body):
        record = await submit(http, APPROVAL, None)
        refused(
            await http.post(f"/workflows/{record['workflow_id']}/{command}", json=body), "invalid_parameter"
        )

    @pytest.mark.parametrize(
        ("command", "body"),
        [
            ("cancel", {}),
            ("pause", {}),
            ("resume", {}),
            ("retry", {"step_id": "x"}),
            ("fork", {}),
            ("signals", {"name": "x"}),
            ("approvals", {"decision": "grant", "step_id": "a"}),
            ("inputs", {"responses": {"a": 1}}),
        ],
    )
    async def test_commands_to_runs_that_are_not_there(self, http, command, body):
        refused(await http.post(f"/workflows/wf_none/{command}", json=body), "workflow_not_found")

    async def test_fork(self, http):
        record = await submit(http, STEPS, {"text": "a"})
        path = f"/workflows/{record['workflow_id']}"
        answer = await http.post(f"{path}/fork", json={"from_step": "second"})
        assert answer.status_code == 201
        forked = answer.json()
        assert forked["forked_from"]["workflow_id"] == record["workflow_id"]
        assert answer.headers["location"] == forked["links"]["self"]
        refused(await http.post(f"{path}/fork", json={"from": "failure"}), "not_failed")
        refused(await http.post(f"{path}/fork", json={"from_step": "none"}), "step_not_found")
        refused(await http.post(f"{path}/fork", json={"offset": 9999}), "invalid_parameter")
        refused(await http.post(f"{path}/fork", json={"workflow_id": record["workflow_id"]}), "run_exists")
        refused(await http.post(f"{path}/fork", json={"edits": {}}), "invalid_edit")

    async def test_replay(self, http, served):
        record = await submit(http, STEPS, {"text": "a"})
        path = f"/workflows/{record['workflow_id']}"
        async with served.client() as client:
            first = await client.result(record["workflow_id"])
            answer = await http.post(f"{path}/replay", json={"policy": "Always"})
            assert answer.status_code == 201
            found = answer.json()
            assert answer.headers["location"] == found["links"]["self"]
            again = await client.result(found["workflow_id"])
            assert (again.output, again.usage.model_calls) == (first.output, 0)
            by_client = await client.replay(record["workflow_id"], "Mixed")
            assert (await by_client.result()).output == first.output
        refused(await http.post(f"{path}/replay", json={"policy": "always"}), "invalid_parameter")
        refused(await http.post(f"{path}/replay", json={"definition": "flow.yaml"}), "invalid_parameter")
        refused(await http.post(f"{path}/replay", json={"workflow_id": record["workflow_id"]}), "run_exists")

    async def test_the_state_of_a_fork_holds_what_was_kept(self, http, served):
        record = await submit(http, STEPS, {"text": "a"})
        answer = await http.post(f"/workflows/{record['workflow_id']}/fork", json={"from_step": "second"})
        async with served.client() as client:
            result = await client.rest(answer.json()["workflow_id"])
            state = await client.state(result.workflow_id)
        assert result.output == {"second": "a!!"}
        assert state.steps["first"].output == "a!"


class TestRequests:
    async def test_an_approval_from_the_inbox_to_the_end(self, http, served):
        record = await submit(http, APPROVAL, None)
        path = f"/workflows/{record['workflow_id']}"
        assert record["state"] == "waiting"
        (request,) = (await http.get("/inbox")).json()["items"]
        assert (request["workflow_id"], request["step_id"]) == (record["workflow_id"], "ask")
        assert (await http.get(f"{path}/requests")).json()["items"] == [request]
        assert (await http.get("/inbox?kind=input")).json()["items"] == []
        body = {"request_id": request["request_id"], "decision": "grant"}
        refused(await http.post(f"{path}/approvals", json={**body, "digest": "sha256:x"}), "digest_mismatch")
        answer = await http.post(
            f"{path}/approvals", json={**body, "digest": request["digest"], "actor": "ann", "reason": "fine"}
        )
        assert answer.status_code == 200
        async with served.client() as client:
            assert (await client.rest(record["workflow_id"])).state == "completed"
        lines = [decode(line) for line in (await http.get(f"{path}/log")).content.splitlines()]
        granted = next(e.data for e in lines if e.type == "approval.granted")
        assert granted.by.startswith("uid:")
        assert granted.reason == "fine"
        assert granted.claimed_actor == "ann"

    async def test_the_first_decision_wins(self, http):
        record = await submit(http, APPROVAL, None)
        path = f"/workflows/{record['workflow_id']}/approvals"
        refused(await http.post(path, json={"step_id": "none", "decision": "grant"}), "step_not_found")
        assert (await http.post(path, json={"step_id": "ask", "decision": "deny"})).status_code == 200
        opposite = await http.post(path, json={"step_id": "ask", "decision": "grant"})
        assert opposite.status_code == 409, opposite.text

    @pytest.mark.parametrize("named_by", ["step_id", "request_id"])
    @pytest.mark.parametrize(("first", "opposite"), [("grant", "deny"), ("deny", "grant")])
    async def test_a_decision_is_final_after_the_end_of_the_run(
        self, http, served, named_by, first, opposite
    ):
        """daemon D10: the same decision again is no error, the opposite is told the recorded one."""
        record = await submit(http, APPROVAL, None)
        (request,) = (await http.get("/inbox")).json()["items"]
        name = {named_by: "ask" if named_by == "step_id" else request["request_id"]}
        path = f"/workflows/{record['workflow_id']}"
        assert (await http.post(f"{path}/approvals", json={**name, "decision": first})).status_code == 200
        async with served.client() as client:
            ended = await client.rest(record["workflow_id"])
            assert ended.state in ("completed", "failed")
        before = (await http.get(f"{path}/log")).content
        again = await http.post(f"{path}/approvals", json={**name, "decision": first})
        assert again.status_code == 200, again.text
        assert again.json()["state"] == ended.state
        refused(
            await http.post(f"{path}/approvals", json={**name, "decision": opposite}), "decision_conflict"
        )
        assert (await http.get(f"{path}/log")).content == before

    async def test_a_step_of_an_ended_run_that_asked_nobody(self, http):
        record = await submit(http, STEPS, {"text": "a"})
        path = f"/workflows/{record['workflow_id']}/approvals"
        refused(await http.post(path, json={"step_id": "first", "decision": "grant"}), "run_terminal")

    async def test_answers_that_nobody_asked_for(self, http):
        record = await submit(http, APPROVAL, None)
        path = f"/workflows/{record['workflow_id']}"
        refused(await http.post(f"{path}/inputs", json={"responses": {"req_none": 1}}), "unknown_request")
        refused(await http.delete(f"{path}/requests/req_none"), "unknown_request")
        refused(await http.get("/inbox?since=2026-01-01T00:00:00Z"), "invalid_parameter")

    async def test_a_question_is_taken_back(self, http):
        record = await submit(http, APPROVAL, None)
        path = f"/workflows/{record['workflow_id']}"
        (request,) = (await http.get(f"{path}/requests")).json()["items"]
        answer = await http.request(
            "DELETE", f"{path}/requests/{request['request_id']}", json={"reason": "old"}
        )
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await http.get("/inbox")).json()["items"] == []


class TestCatalogue:
    async def test_validate(self, served, http):
        good = (await http.post("/validate", json={"definition": ECHO})).json()
        assert good["valid"]
        assert good["ir_hash"].startswith("sha256:")
        bad = (await http.post("/validate", json={"definition": {"agents": []}})).json()
        assert (bad["valid"], bad["diagnostics"][0]["code"]) == (False, "E_NO_AGENTS")
        unbound = (
            await http.post(
                "/validate",
                json={
                    "definition": {
                        "agents": [
                            {"name": "a", "system_prompt": "x", "tools": ["no.such"], "model": "scripted:m"}
                        ]
                    }
                },
            )
        ).json()
        assert not unbound["valid"]
        missing = (await http.post("/validate", json={"definition": STEPS, "input": {}})).json()
        assert not missing["valid"]
        assert (await http.post("/validate", json={"definition": STEPS})).json()["valid"]
        assert (await served.runtime.log.runs()).items == []

    async def test_definitions_by_name_and_version(self, http):
        one = await http.post("/definitions", json={"definition": ECHO, "name": "echo", "version": "1"})
        assert one.status_code == 201
        assert (await http.get(one.headers["location"])).json() == one.json()
        again = await http.post("/definitions", json={"definition": ECHO, "name": "echo", "version": "1"})
        assert again.status_code == 201
        other = {"definition": agents("other"), "name": "echo", "version": "1"}
        refused(await http.post("/definitions", json=other), "version_exists")
        assert (await http.post("/definitions", json={**other, "version": "2"})).status_code == 201
        (listed,) = (await http.get("/definitions")).json()["items"]
        assert (listed["name"], listed["version"]) == ("echo", "2")
        assert "source" not in listed
        for reference in ("echo@1", {"name": "echo", "version": "1"}):
            answer = await http.post("/workflows?wait=10", json={"definition_ref": reference, "input": "x"})
            assert answer.json()["definition"]["hash"] == one.json()["hash"]
        refused(await http.get("/definitions/none"), "definition_not_found")
        refused(await http.get("/definitions/echo?version=9"), "definition_not_found")
        refused(await http.post("/definitions", json={"definition": {"agents": []}}), "validation_failed")
        refused(await http.get("/definitions/..%2f"), "not_found")

    async def test_tools(self, tmp_path):
        async with serving(tmp_path, services=(Gate().service(),)) as served, served.http() as http:
            (tool,) = (await http.get("/tools")).json()["items"]
            assert (tool["service"], tool["side_effect"]) == ("gate", "read")

    async def test_schemas_are_those_that_the_command_line_prints(self, http):
        assert set(SCHEMA_FILES) >= {"workflow-1.0.json", "ir-v0.json", "event.json"}
        assert set(SCHEMA_FILES.values()) == set(SCHEMA_NAMES)
        for file, name in SCHEMA_FILES.items():
            answer = await http.get(f"/schemas/{file}")
            assert (answer.status_code, answer.content) == (200, json_schema(name))
            assert answer.headers["content-type"] == "application/schema+json"
        for name in ("none.json", "plan.json", "workflow"):
            problem = refused(await http.get(f"/schemas/{name}"), "not_found")
            assert all(file in problem["hint"] for file in SCHEMA_FILES)
            assert "plan.json" not in problem["hint"]


class TestSystem:
    async def test_home_for_machines_and_people(self, http):
        machine = (await http.get("/")).json()
        assert machine["documentation"] == "/openapi.json"
        for link in machine["links"].values():
            async with http.stream(
                "GET", link, params={"follow": "false"} if link == "/events" else {}
            ) as answer:
                assert answer.status_code == 200, link
        page = await http.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert page.headers["content-type"].startswith("text/html")
        assert "/openapi.json" in page.text

    async def test_health_readiness_version(self, http):
        assert (await http.get("/healthz")).json() == {
            "status": "ok",
            "durable": False,
            "store": "memory",
            "detail": None,
        }
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/version")).json()["name"] == "agentflow"

    async def test_a_draining_daemon_takes_nothing_new(self, served, http):
        record = await submit(http)
        served.app.service.draining = True
        answer = await http.post("/workflows", json={"definition": ECHO})
        refused(answer, "draining")
        assert answer.headers["retry-after"]
        refused(await http.get("/readyz"), "draining")
        refused(await http.post(f"/workflows/{record['workflow_id']}/cancel"), "draining")
        assert (await http.get("/healthz")).json()["status"] == "draining"
        assert (await http.get(f"/workflows/{record['workflow_id']}")).status_code == 200

    async def test_a_failed_store_is_told(self, served, http, monkeypatch):
        from agentflow.errors import LogFailed

        monkeypatch.setattr(type(served.runtime.log), "failure", LogFailed("disk"))
        answer = await http.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        async with served.client() as client:
            assert (await client.health()).status == "failed"

    async def test_a_mounted_daemon_does_not_end_its_server(self, http):
        refused(await http.post("/admin/drain"), "not_found")

    async def test_metrics_count_requests_and_runs(self, http):
        await submit(http)
        await http.get("/nope")
        text = (await http.get("/metrics")).text
        assert 'agentflow_http_requests_total{method="POST",path="/workflows",status="201"} 1.0' in text
        assert "agentflow_runs_accepted_total 1.0" in text
        assert 'agentflow_runs{state="running"} 0.0' in text
        for line in text.splitlines():
            assert line.startswith("# ") or re.fullmatch(r"[a-z_]+(\{[^}]*\})? [0-9.e+-]+", line), line

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            (None, "text/plain; version=0.0.4; charset=utf-8"),
            ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
            ("text/plain;version=1.0.0;escaping=nonsense", "text/plain; version=0.0.4; charset=utf-8"),
            ("application/openmetrics-text", OPENMETRICS_1),
            ("application/openmetrics-text;version=abc", OPENMETRICS_1),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
                "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OPENMETRICS_1,
            ),
        ],
    )
    async def test_metrics_come_as_the_scraper_likes_them(self, http, accept, kind):
        answer = await http.get("/metrics", headers={"Accept": accept} if accept else {})
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        read = openmetrics_families if kind == OPENMETRICS_1 else text_string_to_metric_families
        assert {"agentflow_streams_open", "agentflow_runs"} <= {f.name for f in read(answer.text)}

    async def test_metrics_show_what_the_runtime_measures(self, tmp_path):
        """Under the names that Prometheus has for instruments of OpenTelemetry, and nothing about those."""
        page = Metrics()
        async with (
            serving(tmp_path, metrics=page, telemetry=page.telemetry()) as served,
            served.http() as http,
        ):
            run = await submit(http, STEPS, {"text": "a"})
            text = ""
            async for text in pages_of(http):
                if "agentflow_run_duration_seconds_count" in text:
                    break
        found = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation, family.name
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        assert found["agentflow_run_duration_seconds_count"] == [({"agentflow_state": "completed"}, 1)]
        assert found["agentflow_log_events_total"] == [({}, run["last_offset"] + 1)]
        assert found["agentflow_log_commit_duration_seconds_count"][0][1] >= 1
        assert found["agentflow_node_executions_total"] == [
            ({"agentflow_step_kind": "agent", "agentflow_status": "success"}, 2)
        ]
        ((labels, calls),) = found["gen_ai_client_operation_duration_seconds_count"]
        assert (calls, labels["gen_ai_request_model"], labels["gen_ai_operation_name"]) == (2, "m", "chat")
        assert {labels["gen_ai_token_type"] for labels, _ in found["gen_ai_client_token_usage_sum"]} == {
            "input",
            "output",
        }
        depths = {labels["agentflow_actor_type"] for labels, _ in found["agentflow_mailbox_depth"]}
        assert "EventBus" in depths
        for noise in ("otel_scope", "target_info", "_created", run["workflow_id"]):
            assert noise not in text

    async def test_a_defect_shows_nothing_of_itself(self, served, http, monkeypatch, caplog):
        async def broken(*args, **kwargs):
            raise RuntimeError("the secret is violet")

        monkeypatch.setattr(served.app.service.runtime, "record", broken)
        answer = await http.get("/workflows/wf_x")
        problem = refused(answer, "internal_error")
        assert "violet" not in answer.text
        assert "RuntimeError" not in answer.text
        number = problem["detail"].rpartition(" ")[2]
        assert any(number in str(record.__dict__) for record in caplog.records)
