"""The shipped template `research_email_digest`, end to end: pages are read, a digest is written and mailed.

    python examples/requests/digest.py --smtp smtp://127.0.0.1:2525 --to ada@example.org URL URL URL

Without AGENTFLOW_MODEL a script stands in for the delegate's model. The pages, the file and the mail are
real: the mail goes out after the approval, and the verifier passes its step for the recorded call alone.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentflow import Runtime
from agentflow.config import Config, MessagingConfig, ToolsetsConfig, WebConfig
from agentflow.pipeline.assembly import assemble
from agentflow.testing import ScriptedModel, call


async def digest(urls: list[str], *, smtp: str, to: str, topic: str, folder: Path) -> dict[str, Any]:
    """Return the output of the run: final_output and report."""
    config = Config(
        store="memory:",
        pipeline={"workspace_roots": [str(folder)]},
        toolsets=ToolsetsConfig(
            enabled=("web", "file", "messaging"),
            # Pages of this machine are private addresses: they are read because their hosts are named.
            web=WebConfig(allowed_hosts=tuple({urlsplit(url).netloc for url in urls})),
            messaging=MessagingConfig(smtp_url=smtp, sender="digest@example.org"),
        ),
    )
    parts = assemble(config)
    models = None if "AGENTFLOW_MODEL" in os.environ else [offline(urls)]
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    async with Runtime(config.store, models=models, services=parts.services()) as runtime:
        requests = parts.requests(runtime)
        run = await requests.run_template(
            "research_email_digest", {"topic": topic, "recipient": to}, workspace=str(folder)
        )
        while (await run.rest()).state == "waiting":
            for request in await runtime.requests(run.workflow_id):
                print(f"approve {request.step_id}: {request.subject['action']}")
                await runtime.decide(
                    run.workflow_id, request_id=request.request_id, granted=True, digest=request.digest
                )
        return (await run.result()).output


def offline(urls: list[str]) -> ScriptedModel:
    """A delegate that reads the pages, writes what they are called, and mails it."""

    def work(request: Any) -> Any:
        task = json.loads(next(m.content for m in request.messages if m.role == "user"))
        answers = [json.loads(m.content) for m in request.messages if m.role == "tool"]
        step, goal = task["step_id"], task["goal"]
        if step == "search":
            if len(answers) < len(urls):
                return call("web__fetch", url=urls[len(answers)])
            return done(step, "\n".join(f"- {page['title']}: {page['url']}" for page in answers))
        if step == "write":
            found = task["context"]["dependencies"]["search"]["output"]
            text = f"# Digest\n\n{goal.splitlines()[-1]}\n\n{found}\n\n" + "More next week.\n" * 20
            if not answers:
                return call("file__write", path="digest.md", content=text)
            return done(step, "written", {"type": "markdown", "uri": "digest.md"})
        if not answers:
            return call("file__read", path="digest.md")
        to = goal.rpartition(" to ")[2]
        if len(answers) == 1:
            return call("messaging__send", to=to, subject="Digest", body=answers[0]["content"])
        return done(step, "sent", {"type": "email", "uri": f"mailto:{to}", "id": answers[1]["message_id"]})

    return ScriptedModel(work, name="offline")


def done(step_id: str, output: str, *artifacts: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a step."""
    made = [{**one, "status": "created"} for one in artifacts]
    return {"step_id": step_id, "status": "done", "output": output, "error": None, "artifacts": made}


def main() -> None:
    """Print what each step came to, and what its verdict rests on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--smtp", required=True)
    parser.add_argument("--to", default="ada@example.org")
    parser.add_argument("--topic", default="durable actors")
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    folder = given.folder.resolve()
    output = asyncio.run(digest(given.urls, smtp=given.smtp, to=given.to, topic=given.topic, folder=folder))
    for step in output["final_output"]["steps"]:
        print(f"{step['step_id']:<7} {step['status']:<5} {step['verdict']}")
    for artifact in output["report"]["artifacts"]:
        print(f"{artifact['step_id']}: evidence {', '.join(sorted(artifact['evidence']))}")
    print(output["final_output"]["status"])


if __name__ == "__main__":
    main()
