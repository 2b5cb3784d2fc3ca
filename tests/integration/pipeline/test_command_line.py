"""Requests on the command line, from the text to the mail: an OpenAI-compatible server, and real SMTP."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from tests.integration.pipeline.support import DELEGATE, NORMALIZER, PLANNER, normalized, plan, step
from tests.integration.support.terminal import Terminal, plain
from tests.unit.cli.support import ModelServer, Sandbox
from tests.unit.tools.toolsets.test_services import Mailbox

DIGEST = "# Actors\n\n" + "\n".join(f"- https://example.com/{i} tells more of it" for i in range(20)) + "\n"
MAIL = {"type": "email", "uri": "mailto:ada@example.org"}
STEPS = plan(
    step("write", toolsets=["file"], expected_artifacts=["digest.md"], verification={"min_urls": 3}),
    step("send", "write", toolsets=["messaging"], expected_artifacts=[MAIL]),
    step("spare"),
)


def think(body: dict[str, Any]) -> Any:
    """Answers as a model would: one stage after another, and a step by its tools."""
    system = body["messages"][0]["content"]
    if NORMALIZER in system:
        return json.dumps(normalized(objective="寄出摘要"))
    if PLANNER in system:
        return json.dumps(STEPS)
    assert DELEGATE in system
    task = json.loads(body["messages"][1]["content"])
    names = [tool["function"]["name"] for tool in body.get("tools", [])]
    last = body["messages"][-1]
    result: dict[str, Any] = {"step_id": task["step_id"], "status": "done", "output": "ok", "error": None}
    if last["role"] != "tool":
        if "file__write" in names:
            return {"call": "file__write", "arguments": {"path": "digest.md", "content": DIGEST}}
        if "messaging__send" in names:
            arguments = {"to": "ada@example.org", "subject": "摘要", "body": DIGEST}
            return {"call": "messaging__send", "arguments": arguments}
    elif task["step_id"] == "send":
        id = re.search(r"<[^>]+@[^>]+>", last["content"])
        assert id is not None
        result["artifacts"] = [{**MAIL, "status": "verified", "id": id[0]}]
    else:
        result["artifacts"] = [{"type": "markdown", "uri": "digest.md", "status": "created"}]
    return json.dumps(result)


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    yield box, port
    server.stop()


@pytest.fixture
def sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mailbox: tuple[Mailbox, int]
) -> Iterator[tuple[Sandbox, ModelServer]]:
    monkeypatch.chdir(tmp_path)
    with ModelServer(think) as model:
        env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url, "AGENTFLOW_MODEL": "openai:m"}
        made = Sandbox(tmp_path, **env)
        made.write(
            "agentflow.toml",
            f"""[toolsets]
enabled = ["file", "messaging"]
[toolsets.messaging]
smtp_url = "smtp://127.0.0.1:{mailbox[1]}"
from = "bot@example.org"
""",
        )
        yield made, model
        made.close()


def test_a_request_in_chinese_is_reviewed_edited_executed_approved_and_mailed(
    sandbox: tuple[Sandbox, ModelServer], mailbox: tuple[Mailbox, int], tmp_path: Path
):
    made, model = sandbox
    text = "啟用 workflow：研究 actors 並寄給 ada@example.org，先給我看"
    asked = made.invoke("request", text, "--workspace", "work", "--json")
    assert asked.exit_code == 9, asked.stderr
    run_id = json.loads(asked.stdout)["workflow_id"]
    assert model.arrived.qsize() == 2  # stages 1 and 2
    assert not (tmp_path / "work/digest.md").exists()
    shown = json.loads(made.invoke("plan", run_id).stdout)
    assert [s["id"] for s in shown["plan"]["steps"]] == ["write", "send", "spare"]
    edited = {**STEPS, "steps": STEPS["steps"][:2]}
    made.write("plan.json", json.dumps(edited))
    wrong = made.write("wrong.json", json.dumps({**STEPS, "steps": [step("a", "a"), step("a", "b")]}))
    refused = made.invoke("plan", run_id, "--edit", wrong)
    assert refused.exit_code == 3
    for code in ("E_PLAN_DUPLICATE_ID", "E_PLAN_CYCLE", "E_PLAN_DEPENDENCY"):
        assert code in refused.stderr
    assert made.invoke("plan", run_id, "--edit", "plan.json").exit_code == 0
    waits = made.invoke("execute", run_id)
    assert waits.exit_code == 9, waits.stderr
    assert (tmp_path / "work/digest.md").read_text() == DIGEST
    assert mailbox[0].messages == []
    ended = made.invoke("approve", run_id, "send")
    assert ended.exit_code == 0, ended.stderr
    final = json.loads(made.invoke("final", run_id).stdout)
    assert (final["status"], final["objective"]) == ("ready", "寄出摘要")
    assert [(s["step_id"], s["verdict"]) for s in final["steps"]] == [("write", "pass"), ("send", "pass")]
    (mail,) = mailbox[0].messages
    report = json.loads(made.invoke("final", run_id, "--full").stdout)["report"]
    found = {one["artifact"]["uri"]: one["evidence"] for one in report["artifacts"]}
    assert found["mailto:ada@example.org"]["id"] == mail["Message-ID"]
    assert report["approvals"][0]["decision"] == "granted"
    lines = (tmp_path / "work/.agentflow-workflow-state.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["status"] == "ready"
    again = made.invoke("execute", run_id)
    assert (again.exit_code, "run_terminal" in again.stderr) == (5, True)
    resumed = made.invoke("resume", run_id)
    assert resumed.exit_code == 0, resumed.stderr
    none_left = made.invoke("resume")
    assert (none_left.exit_code, "no_resumable_run" in none_left.stderr) == (4, True)
    assert len(mailbox[0].messages) == 1


def test_a_denied_mail_leaves_the_rest_and_exits_partial(
    sandbox: tuple[Sandbox, ModelServer], mailbox: tuple[Mailbox, int]
):
    made, _ = sandbox
    waits = made.invoke("request", "plan a workflow that mails a digest")
    assert waits.exit_code == 9, waits.stderr
    compact = json.loads(waits.stdout)
    run_id = compact["workflow_id"]
    assert (compact["status"], compact["blockers"]) == ("blocked", ["send: approval required"])
    latest = made.invoke("resume", "--json")
    assert (latest.exit_code, json.loads(latest.stdout)["workflow_id"]) == (9, run_id)
    denied = made.invoke("deny", run_id, "send", "--reason", "not today")
    assert denied.exit_code == 10, denied.stderr
    final = made.invoke("final", run_id)
    shown = json.loads(final.stdout)
    assert json.loads(denied.stdout) == {"workflow_id": run_id, **shown, "final_output": shown}
    assert final.exit_code == 10
    steps = json.loads(final.stdout)["steps"]
    assert [s["status"] for s in steps] == ["done", "skipped", "done"]
    assert mailbox[0].messages == []


def test_a_rejected_request_is_told_in_json(sandbox: tuple[Sandbox, ModelServer]):
    made, _ = sandbox
    held = made.invoke("request", "workflow: mail a digest", "--review")
    assert (held.exit_code, json.loads(held.stdout)["status"]) == (9, "ready")
    rejected = made.invoke("reject", json.loads(held.stdout)["workflow_id"], "--reason", "too long")
    assert rejected.exit_code == 0, rejected.stderr
    compact = json.loads(rejected.stdout)
    assert (compact["status"], compact["blockers"]) == ("blocked", ["plan rejected: too long"])


def test_classify_judges_as_a_request_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)

    def judged(*more: str) -> bool:
        found = made.invoke("classify", "plan a workflow", *more)
        assert found.exit_code == 0, found.stderr
        return json.loads(found.stdout)["execution_requested"]

    assert judged()
    made.write("agentflow.toml", '[pipeline]\nreview = "always"\n')
    assert not judged()
    empty = made.invoke("classify", " ")
    assert (empty.exit_code, "message_length" in empty.stderr) == (2, True)
    for verb in ("classify", "request"):
        refused = made.invoke(verb, "plan \udcff a workflow")
        assert (refused.exit_code, "not UTF-8" in refused.stderr) == (2, True)
    made.close()


def test_a_terminal_shows_the_final_output_for_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("agentflow.toml", '[toolsets]\nenabled = ["file"]\n[pipeline]\ndelegate = "none"\n')
    words = ("template", "run", "write_note", "title=Note", "text=It works", "--workspace", "work")
    terminal = Terminal(made, *words)
    assert terminal.end() == 0, terminal.text
    assert '\n  "status": "ready",\n' in plain(terminal.text).replace("\r", "")
    made.close()


def test_what_plan_prints_is_edited_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With its digest, so that an edit in between is not overwritten; without a daemon nothing is left alone
    in the middle of its work; and a state file makes no second run of an id."""
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("agentflow.toml", '[toolsets]\nenabled = ["file"]\n[pipeline]\ndelegate = "none"\n')
    words = ("template", "run", "write_note", "title=Note", "text=It works", "--review")
    asked = made.invoke(*words, "--workspace", "work")
    assert asked.exit_code == 9, asked.stderr
    run_id = json.loads(asked.stdout)["workflow_id"]
    printed = json.loads(made.invoke("plan", run_id).stdout)
    printed["plan"]["summary"] = "Edited"
    made.write("plan.json", json.dumps(printed))
    edited = made.invoke("plan", run_id, "--edit", "plan.json")
    assert (edited.exit_code, json.loads(edited.stdout)["plan"]["summary"]) == (0, "Edited")
    stale = made.invoke("plan", run_id, "--edit", "plan.json")
    assert (stale.exit_code, "digest_mismatch" in stale.stderr) == (5, True)
    made.write("odd.json", json.dumps({"plan": 5}))
    odd = made.invoke("execute", run_id, "--plan", "odd.json")
    assert (odd.exit_code, "its plan is no object" in odd.stderr) == (2, True)
    left = made.invoke("execute", run_id, "--detach")
    assert (left.exit_code, "none listens" in left.stderr) == (2, True)
    made.write("bare.json", json.dumps(printed["plan"] | {"summary": "Bare"}))
    done = made.invoke("execute", run_id, "--plan", "bare.json")
    assert (done.exit_code, json.loads(done.stdout)["plan_summary"]) == (0, "Bare")
    again = made.invoke("approve", run_id, "write")
    assert "execute/" not in again.stderr
    states = tmp_path / "work/.agentflow-workflow-state.jsonl"
    waiting = [one for one in states.read_text().splitlines() if json.loads(one)["final_output"] is None]
    made.write("states.jsonl", waiting[-1] + "\n")
    twice = made.invoke("import", "states.jsonl")
    assert "not imported: the store has a run of this id" in twice.stderr
    assert made.invoke("import", "nothing.jsonl").exit_code == 3
    made.close()


def test_a_template_does_real_work_without_any_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("agentflow.toml", '[toolsets]\nenabled = ["file"]\n[pipeline]\ndelegate = "none"\n')
    words = ("template", "run", "write_note", "title=Note", "text=It works")
    ended = made.invoke(*words, "--workspace", "work")
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["status"] == "ready"
    run_id = json.loads(ended.stdout)["workflow_id"]
    assert (tmp_path / "work/note.md").read_text() == "# Note\n\nIt works\n"
    report = json.loads(made.invoke("final", run_id, "--full").stdout)["report"]
    assert all(one["evidence"]["sha256"] for one in report["artifacts"])
    made.close()
