"""Write, judge, write again: a loop of runs that ends when the judge approves, or after so many rounds.

    python examples/judge_loop/loop.py [--store sqlite:loop.db] [--name NAME] [--rounds N]

Each round is two runs with names of their own. Started again with the same store and name, the loop goes
through the rounds that are recorded without asking a model again, and goes on where it was.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from agentflow import Runtime
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent
TASK = "Coffee that is roasted on a ship. At most six words, no exclamation mark."


async def improved(runtime: Runtime, task: str, *, name: str, rounds: int) -> list[dict[str, Any]]:
    """The verdicts, one for each round: {text, approved, feedback}. The last one is approved, or the rounds
    are used up."""
    verdicts: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        written, judged = f"wf_{name}_{number}_write", f"wf_{name}_{number}_judge"
        labels = {"loop": name, "round": str(number)}
        # The same id with the same input is the same run: what is recorded is not done twice.
        inputs = {"task": task, "last": verdicts[-1] if verdicts else None}
        await settled(runtime, HERE / "write.yaml", inputs, workflow_id=written, labels=labels)
        source = {"workflow_id": written, "step_id": "write", "as": "attempt"}
        verdict = await settled(
            runtime, HERE / "judge.yaml", {"task": task}, workflow_id=judged, labels=labels, input_from=source
        )
        verdicts.append(verdict)
        if verdict["approved"]:
            break
    return verdicts


async def settled(runtime: Runtime, file: Path, inputs: Any, **more: Any) -> Any:
    """The output of a run that may have been begun by an earlier start of this program."""
    handle = await runtime.submit(file, inputs, **more)
    result = await (await runtime.resume(handle.workflow_id)).result()
    if result.state != "completed":
        raise SystemExit(f"{result.workflow_id} is {result.state}: {result.error}")
    return result.output


def offline() -> ScriptedModel:
    """A writer who listens, and a judge who counts."""
    model = ScriptedModel(name="offline")
    model.add(write, when="write a slogan")
    model.add(judge, when="judge whether")
    return model


def write(request):
    last = json.loads(request.messages[-1].content)["last"]
    if last is None:
        return {"text": "Our amazing coffee is roasted on a real ship at sea!"}
    if "words" in last["feedback"]:
        return {"text": "Roasted at sea, for you!"}
    return {"text": last["text"].rstrip("!") + "."}


def judge(request):
    text = json.loads(request.messages[-1].content)["text"]
    if len(text.split()) > 6:
        return {"approved": False, "feedback": "It has too many words."}
    if "!" in text:
        return {"approved": False, "feedback": "It has an exclamation mark."}
    return {"approved": True, "feedback": ""}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="memory:")
    parser.add_argument("--name", default="slogan")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    model = offline()
    async with Runtime(asked.store, models=[model]) as runtime:
        verdicts = await improved(runtime, TASK, name=asked.name, rounds=asked.rounds)
    for number, verdict in enumerate(verdicts, 1):
        mark = "approved" if verdict["approved"] else verdict["feedback"]
        print(f"round {number}: {verdict['text']}  ({mark})")
    print(f"{len(model.requests)} model calls")


if __name__ == "__main__":
    asyncio.run(main())
