"""The three patterns of this folder, one after the other.

    python examples/patterns/demo.py

Offline, with a model that is written down here.
"""

import asyncio
import os
from pathlib import Path

from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent
COUNTRIES = {"Lima": "Peru", "Oslo": "Norway"}


def offline() -> ScriptedModel:
    """A model that knows two cities, whose newswire is down, and that likes long applications."""
    model = ScriptedModel(name="offline")
    model.add(lambda r: {"cities": words_in(said(r))}, when="List the cities")
    model.add(lambda r: {"country": COUNTRIES[said(r).partition(": ")[2]]}, when="in which country")
    model.add(lambda r: "Founded in 1535.", when="the archive")
    model.add(unreachable, when="the newswire")
    model.add(lambda r: "A new mayor.", when="the newspaper")
    model.add(lambda r: f"All that is known: {said(r)}", when="Put the answers together")
    model.add(lambda r: {"quality": "high" if len(said(r)) > 20 else "low"}, when="how good")
    model.add(lambda r: "Come and see us.", when="in detail")
    model.add(lambda r: "Thank you.", when="Thank for")
    return model


def said(request) -> str:
    return request.messages[-1].content


def words_in(text: str) -> list[str]:
    return [word.strip(".,") for word in text.split() if word.strip(".,") in {*COUNTRIES, "Atlantis"}]


def unreachable(request):
    raise ModelError(ErrorInfo(category="transient", code="unreachable", message="the newswire is down"))


async def main() -> None:
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    async with Runtime(models=[offline()]) as runtime:

        async def output(file: str, inputs: dict[str, str]) -> dict:
            return (await runtime.run(HERE / file, inputs)).output

        found = await output("iterative.yaml", {"text": "From Lima over Atlantis to Oslo."})
        print("iterative:  ", dict(zip(found["cities"], found["left_out"], strict=True)), found["countries"])
        combined = await output("parallel.yaml", {"question": "What about Lima?"})
        print("parallel:   ", combined["newswire"], "|", combined["answer"])
        for application in ("I can do everything you need.", "Hire me."):
            decided = await output("conditional.yaml", {"application": application})
            print("conditional:", decided["way"], "|", decided["answer"])


if __name__ == "__main__":
    asyncio.run(main())
