"""Run by test_generated_clients with the client that openapi-python-client makes: submit, stream, approve.

python use_of_client.py FOLDER_OF_THE_CLIENT URL
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

from agentflow_api import AuthenticatedClient
from agentflow_api.api.requests import approve, inbox
from agentflow_api.api.runs import list_runs, show, submit
from agentflow_api.models import (
    ApprovalBody,
    ApprovalBodyDecision,
    ApprovalRequestedEvent,
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
print("done")
