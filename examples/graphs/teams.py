"""Three teams of agents: a group chat, hand-overs, and one that a manager leads by a plan.

The model is written down here, so that everything runs offline; name a real one in `model=` of the agents.
"""

from __future__ import annotations

from typing import Any

from agentflow import (
    Agent,
    GroupChatBuilder,
    GroupChatState,
    HandoffBuilder,
    MagenticBuilder,
    Runtime,
)
from agentflow.testing import ScriptedModel, call

MODEL = "offline:scripted"
writer = Agent("Writer", "You write slogans.", description="writes slogans", model=MODEL)
critic = Agent("Critic", "You judge slogans.", description="judges slogans", model=MODEL)
triage = Agent("Triage", "You find out who can help.", model=MODEL)
refunds = Agent("Refunds", "You pay money back.", description="pays money back", model=MODEL)
lead = Agent("Lead", "You lead a team.", model=MODEL)


def in_turn(state: GroupChatState) -> str | None:
    """Let the writer and the critic speak in turn, until the critic is content."""
    if state.messages[-1].text == "Good.":
        return None
    return "critic" if state.last_speaker == "writer" else "writer"


def ledger(done: bool, speaker: str = "writer", told: str = "Write it.") -> dict[str, Any]:
    values = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": speaker,
        "instruction_or_question": told,
    }
    return {key: {"answer": value, "reason": "as planned"} for key, value in values.items()}


def offline() -> ScriptedModel:
    model = ScriptedModel(name="offline")
    model.add(["Fresh bread.", "Fresh bread, warm hearts.", "Bread that rises early."], when="write slogans")
    model.add(["Too short.", "Good."], when="judge slogans")
    model.add([call("handoff_to_refunds", message="They want their money back.")], when="who can help")
    model.add(["Which order?", "Order 17 is paid back."], when="pay money back")
    model.add(
        ["A bakery wants a slogan.", "The writer writes one.", ledger(False), ledger(True), "Rise early."],
        when="lead a team",
    )
    return model


async def main() -> None:
    async with Runtime(models=[offline()]) as runtime:
        chat = GroupChatBuilder([writer, critic], manager=in_turn).with_checkpointing(runtime).build()
        said = (await chat.run("A slogan for a bakery.")).output
        print(f"group chat: {said.stop_reason} after {said.rounds} answers")
        for message in said.messages[1:]:
            print(f"            {message.name}: {message.text}")

        desk = HandoffBuilder([triage, refunds], start=triage).with_checkpointing(runtime).build()
        result = await desk.run("The bread was stale.")
        for answer in ("17", ""):  # of the customer; an empty one ends the conversation
            (request,) = result.pending_requests
            print(f"hand-off:   {request.data.participant} asks: {request.data.text}")
            result = await desk.send_responses(result.workflow_id, {request.request_id: answer})
        print(f"hand-off:   {result.output.stop_reason}")

        team = MagenticBuilder([writer, critic], manager=lead).with_checkpointing(runtime).build()
        led = (await team.run("A slogan for a bakery.")).output
        print(f"magentic:   {led.stop_reason} after {led.rounds} rounds: {led.output}")
