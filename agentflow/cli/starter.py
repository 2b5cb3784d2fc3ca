"""The files of a new project: a small workflow, its function, a test, and how to go on.

`@NAME@` stands for the name of the project.
"""

from __future__ import annotations

__all__ = ["starter_files"]

_WORKFLOW = """\
# yaml-language-server: $schema=workflow.schema.json
# A message comes in, one agent says what it is about, the next one looks the answer up and writes it.
#
#   agentflow check workflow.yaml
#   agentflow run workflow.yaml -i message="Where is my parcel?"
version: "1.0"
name: @NAME@

# What every run is given. Agents see of it what their input says.
inputs:
  message: { type: string, description: What the customer wrote. }

# Where functions come from. This one is desk.py, beside this file.
services:
  desk: { type: python, module: desk }

# No model is named here, so that AGENTFLOW_MODEL, a provider's key, or the embedded model decides. To choose:
# models:
#   default: openai:gpt-5-mini

workflow:
  steps:
    - type: run
      id: classify
      agent:
        # Only instructions belong here. Untrusted text belongs into `input`.
        systemPrompt: |
          Say what the message is about.

          When will my parcel arrive?
          {"topic":"delivery"}
          My card was declined.
          {"topic":"payment"}
          The order has not come yet.
          {"topic":"delivery"}
          Can I have an invoice?
          {"topic":"payment"}
        input: ${{ inputs.message }}
        attachedFunctions: none
        # An answer that breaks this schema is sent back to the model to be mended.
        resultSchema:
          type: object
          properties:
            topic: { type: string, enum: [delivery, payment] }
          required: [topic]
          additionalProperties: false

    - type: run
      id: reply
      depends_on: [classify]
      # Steps can be skipped: `if: ${{ steps.classify.outputs.result.topic == "delivery" }}`
      agent:
        systemPrompt: |
          Look up what to answer, and repeat it.

          topic: returns

          text: Send it back within 30 days.
          {"text":"Send it back within 30 days."}
        input: "topic: ${{ steps.classify.outputs.result.topic }}"
        attachedFunctions:
          - { service: desk, function: find_answer }
        resultSchema:
          type: object
          properties:
            text: { type: string }
          required: [text]
          additionalProperties: false

# What a run gives back. Without it: the results of the last steps.
outputs:
  topic: ${{ steps.classify.outputs.result.topic }}
  reply: ${{ steps.reply.outputs.result.text }}
"""

_DESK = '''\
"""The functions that agents of workflow.yaml may call. Types and docstrings are what a model is told."""

from agentflow import function

ANSWERS = {
    "delivery": "Parcels arrive within three days.",
    "payment": "We take cards and bank transfers.",
}


# Say what a call may change: after a crash, a call that only reads is simply made again.
@function(side_effect="read")
def find_answer(topic: str) -> dict[str, str]:
    """The answer to questions about a topic: delivery or payment."""
    return {"text": ANSWERS.get(topic, "We will ask and write back.")}
'''

_TEST = '''\
"""The workflow with a model that says what this test wrote down: fast, offline, the same every time."""

import asyncio
from pathlib import Path

from agentflow import Runtime, check_file
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

WORKFLOW = Path(__file__).parent / "workflow.yaml"


def test_the_document_has_no_problem():
    assert check_file(WORKFLOW, strict=True) == []


def test_a_question_gets_its_answer(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:any")
    model = ScriptedModel()
    model.add([{"topic": "payment"}], when="what the message is about")
    model.add([call("desk__find_answer", topic="payment"), {"text": "By card."}], when="Look up")

    async def run():
        async with Runtime(models=[model]) as runtime:
            return await runtime.run(WORKFLOW, {"message": "How can I pay?"})

    result = asyncio.run(run())
    assert result.state == "completed"
    assert result.output == {"topic": "payment", "reply": "By card."}
    model.assert_complete()
'''

_README = """\
# @NAME@

    agentflow check workflow.yaml
    agentflow run workflow.yaml -i message="Where is my parcel?"
    python -m pip install pytest
    python -m pytest

Without a provider's key, `agentflow model install smollm2-135m` gets a small model that runs on this machine.
`workflow.schema.json` gives editors help with workflow.yaml (`agentflow schema workflow` prints it).
"""


def starter_files(name: str) -> dict[str, bytes]:
    """Return the content of each file of a project with this name."""
    from agentflow.schemas import json_schema

    texts = {
        "README.md": _README,
        "desk.py": _DESK,
        "test_workflow.py": _TEST,
        "workflow.yaml": _WORKFLOW,
    }
    files = {file: text.replace("@NAME@", name).encode() for file, text in texts.items()}
    return {**files, "workflow.schema.json": json_schema("workflow")}
