"""One run drafts a text, a second run takes that text from the first one's log and refines it.

    python examples/refinement/demo.py

Offline, with a model that is written down here. With AGENTFLOW_MODEL set, that model does the work.
"""

import asyncio
import json
import os
from pathlib import Path

from agentflow import Runtime
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent


def offline() -> ScriptedModel:
    """What a model might say, for any topic."""
    model = ScriptedModel(name="offline")
    model.add(lambda r: {"text": f"we has {r.messages[-1].content}!!!"}, when="draft short announcements")
    model.add(review, when="name what is wrong")
    model.add(rewrite, when="rewrite a text")
    return model


def review(request):
    text = request.messages[-1].content
    problems = []
    if "we has" in text:
        problems.append('It says "we has".')
    if "!!!" in text:
        problems.append("It shouts.")
    return {"problems": problems}


def rewrite(request):
    given = json.loads(request.messages[-1].content)
    text = given["text"].replace("we has", "We have").replace("!!!", ".")
    return {"text": f"Good news: {text}" if given["tone"] == "warm" else text}


async def refined(runtime: Runtime, topic: str, tone: str) -> dict[str, str]:
    """The text before and after; two runs, each with a log of its own."""
    draft = await runtime.run(HERE / "draft.yaml", {"topic": topic})
    # The result is read from the log of the first run: whoever starts the second one need not have it.
    source = {"workflow_id": draft.workflow_id, "step_id": "write", "as": "draft"}
    result = await runtime.run(HERE / "refine.yaml", {"tone": tone}, input_from=source)
    return result.output


async def main() -> None:
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    async with Runtime(models=[offline()]) as runtime:
        texts = await refined(runtime, "a new opening hour", tone="warm")
    print("before:", texts["before"])
    print("after: ", texts["after"])


if __name__ == "__main__":
    asyncio.run(main())
