"""Run by test_generated_clients with the client that openapi-python-client makes: submit, stream, approve.

python use_of_client.py FOLDER_OF_THE_CLIENT URL
"""

import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from agentflow_api import AuthenticatedClient
from agentflow_api.api.commands import bulk_command, fork
from agentflow_api.api.daemon import totals
from agentflow_api.api.requests import answer, approve, inbox
from agentflow_api.api.runs import compared, list_runs, show, submit
from agentflow_api.models import (
    ApprovalBody,
    ApprovalBodyDecision,
    ApprovalRequestedEvent,
    BulkAnswer,
    BulkBody,
    BulkBodyCommand,
    ClosedRequestList,
    Comparison,
    ForkBody,
    ForkBodyEdits,
    ForkBodyEditsOutputs,
    InputsBody,
    InputsBodyResponses,
    RequestList,
    RunRecord,
    SubmitBody,
)

DOCUMENT = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: ask
      approval: true
      agent: {systemPrompt: go, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""

client = AuthenticatedClient(base_url=sys.argv[2], token="any")
record = submit.sync(client=client, body=SubmitBody(definition=DOCUMENT), wait=5)
assert isinstance(record, RunRecord), record
assert record.state.value == "waiting"
with client.get_httpx_client().stream("GET", f"/workflows/{record.workflow_id}/events?follow=false") as lines:
    events = [json.loads(line) for line in lines.iter_lines()]
asked = [ApprovalRequestedEvent.from_dict(e) for e in events if e["type"] == "approval.requested"]
opened = inbox.sync(client=client)
assert isinstance(opened, RequestList)
assert [one.digest for one in opened.items] == [asked[0].data.digest]
body = ApprovalBody(decision=ApprovalBodyDecision.GRANT, request_id=asked[0].data.request_id)
assert isinstance(approve.sync(id=record.workflow_id, client=client, body=body), RunRecord)
with client.get_httpx_client().stream("GET", f"/workflows/{record.workflow_id}/events") as lines:
    assert json.loads(list(lines.iter_lines())[-1])["type"] == "workflow.completed"
ended = show.sync(id=record.workflow_id, client=client)
assert isinstance(ended, RunRecord)
assert ended.state.value == "completed"
page = list_runs.sync(client=client)
assert page is not None
assert len(page.items) == 1
# A fork with another output of its step, beside its origin.
edits = ForkBodyEdits(outputs=ForkBodyEditsOutputs.from_dict({"ask": "other"}))
forked = fork.sync(
    id=record.workflow_id, client=client, body=ForkBody(offset=ended.last_offset - 1, edits=edits)
)
assert isinstance(forked, RunRecord), forked
assert forked.forked_from is not None
assert forked.forked_from.workflow_id == record.workflow_id
beside = compared.sync(id=record.workflow_id, with_=forked.workflow_id, client=client)
assert isinstance(beside, Comparison), beside
assert beside.equal is False
# What was decided, and a question that is answered.
decided = inbox.sync(client=client, open_=False)
assert isinstance(decided, ClosedRequestList)
assert decided.items[0].outcome.value == "granted"
QUESTION = """\
version: "v0"
name: ask
nodes:
  - {id: start, type: start, next: ask}
  - {id: ask, type: human_in_the_loop, input_type: text, prompt: Which size?, next: end}
  - {id: end, type: end}
"""
asking = submit.sync(client=client, body=SubmitBody(definition=QUESTION), wait=5)
assert isinstance(asking, RunRecord), asking
[request_id] = asking.waiting.requests
given = InputsBody(responses=InputsBodyResponses.from_dict({request_id: "XL"}))
assert isinstance(answer.sync(id=asking.workflow_id, client=client, body=given), RunRecord)
# One command for several runs: what cannot be done is told for each.
more = submit.sync(client=client, body=SubmitBody(definition=DOCUMENT), wait=5)
assert isinstance(more, RunRecord)
both = BulkBody(command=BulkBodyCommand.CANCEL, workflow_ids=[more.workflow_id, record.workflow_id])
told = bulk_command.sync(client=client, body=both)
assert isinstance(told, BulkAnswer), told
assert [one.code or "" for one in told.items] == ["", "run_terminal"]
counted = totals.sync(client=client)
assert counted is not None
assert counted.requests == 0

# Every operation of the document has a function, which reads what the daemon answers, and takes its examples.
document = json.loads((Path(sys.argv[1]) / "openapi.json").read_text())
described = {
    one["operationId"]: (method, one)
    for methods in document["paths"].values()
    for method, one in methods.items()
}
api = importlib.import_module("agentflow_api.api")
found = {
    name.rpartition(".")[2]: importlib.import_module(name)
    for _, name, is_package in pkgutil.walk_packages(api.__path__, "agentflow_api.api.")
    if not is_package
}
assert found.keys() == described.keys(), found.keys() ^ described.keys()
registered = client.get_httpx_client().post(
    "/definitions",
    json={"definition": json.loads(json.dumps(DOCUMENT)).replace("workflow:", "name: asks\nworkflow:", 1)},
)
assert registered.status_code == 201, registered.text
calls = client.get_httpx_client().get(f"/workflows/{record.workflow_id}/history").json()["models"]
names = {
    "show_definition": "asks",
    "list_versions": "asks",
    "schema": "event.json",
    "documentation_page": "approvals",
}
given = {
    "id": record.workflow_id,
    "step": "ask",
    "call": calls[0]["model_call_id"],
    "with_": forked.workflow_id,
    "follow": False,
    "sha256": "0" * 64,
    "template": "nowhere",
}
answered = {}
for name, module in found.items():
    method, operation = described[name]
    wanted = inspect.signature(module.sync_detailed, eval_str=True).parameters
    if method == "get":
        arguments = {each: value for each, value in given.items() if each in wanted}
        if "name" in wanted:
            arguments["name"] = names.get(
                name, "asks" if "definition" in module.__name__ + name else "approvals"
            )
        response = module.sync_detailed(client=client, **arguments)
        status = str(int(response.status_code))
        assert status in operation["responses"], (name, status)
        is_json = any(
            "json" in media and "ndjson" not in media
            for media in operation["responses"][status].get("content", ())
        )
        # A schema of its own for each answer: nothing is left to be guessed.
        answered[name] = (status, type(response.parsed).__name__ if is_json else "text")
        assert not is_json or response.parsed is not None, name
    elif "requestBody" in operation:
        [media] = [
            each for each in operation["requestBody"]["content"].items() if each[0] == "application/json"
        ]
        kinds = wanted["body"].annotation
        kind = next(one for one in getattr(kinds, "__args__", (kinds,)) if hasattr(one, "from_dict"))
        for example in media[1]["examples"].values():
            assert kind.from_dict(example["value"]).to_dict() == example["value"], name
failed = {name: told for name, told in answered.items() if not told[0].startswith("2")}
assert failed.keys() <= {"template", "blob", "get_plan", "compact", "final"}, failed
print("done")
