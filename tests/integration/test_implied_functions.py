"""Functions that an agent has only because it may call all of them (page 001 §5.6)."""

from __future__ import annotations

from typing import Any

from agentflow import Runtime, Service, function
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

DOCUMENT: dict[str, Any] = {
    "version": "1.0",
    "models": {"default": "scripted:m"},
    "workflow": {"steps": [{"type": "run", "id": "a", "agent": {"systemPrompt": "p"}}]},
}


def shop(made: list[str]) -> Service:
    @function(side_effect="write")
    def pay(n: int) -> int:
        """Pays."""
        made.append("pay")
        return n

    @function(side_effect="read")
    def look() -> int:
        """Looks."""
        made.append("look")
        return 1

    return Service.of("shop", pay, look)


def model() -> ScriptedModel:
    return ScriptedModel([call("shop__look"), call("shop__pay", n=1), "{}"])


async def test_what_changes_something_is_asked_about_before_each_call():
    made: list[str] = []
    async with Runtime(models=[model()], services=[shop(made)]) as runtime:
        handle = await runtime.submit(DOCUMENT, {})
        assert (await handle.result()).state == "waiting"
        assert made == ["look"]
        request = (await runtime.requests(handle.workflow_id))[0]
        assert (request.kind, request.side_effect) == ("tool", "write")
        assert request.subject["parameters"] == {"n": 1}
        await runtime.decide(handle.workflow_id, request_id=request.request_id, granted=True)
        assert (await handle.result()).state == "completed"
    assert made == ["look", "pay"]


async def test_a_runtime_may_allow_or_withhold_it():
    made: list[str] = []
    async with Runtime(models=[model()], services=[shop(made)], implicit_side_effects="allow") as runtime:
        assert (await runtime.run(DOCUMENT, {})).state == "completed"
    assert made == ["look", "pay"]
    made.clear()
    async with Runtime(models=[model()], services=[shop(made)], implicit_side_effects="deny") as runtime:
        handle = await runtime.submit(DOCUMENT, {})
        assert (await handle.result()).state == "completed"
        failed = [e.data async for e in handle.events() if e.type == "tool.call_failed"]
    assert [e.error.code for e in failed] == ["tool_not_attached"]
    assert made == ["look"]


async def test_a_function_that_no_service_has_is_told_from_one_that_is_not_attached():
    """documents D6."""
    script = [call("shop__gift"), call("elsewhere__look"), call("shop__pay", n=1), "{}"]
    agent = {"systemPrompt": "p", "attachedFunctions": [{"service": "shop", "function": "look"}]}
    step = {"type": "run", "id": "a", "agent": agent}
    made: list[str] = []
    async with Runtime(models=[ScriptedModel(script)], services=[shop(made)]) as runtime:
        handle = await runtime.submit({**DOCUMENT, "workflow": {"steps": [step]}}, {})
        assert (await handle.result()).state == "completed"
        failed = [e.data async for e in handle.events() if e.type == "tool.call_failed"]
    told = [(e.error.code, e.executed, e.error.message) for e in failed]
    assert told == [
        ("tool_not_found", False, "there is no function shop__gift; attached: shop__look"),
        ("tool_not_found", False, "there is no function elsewhere__look; attached: shop__look"),
        ("tool_not_attached", False, "shop__pay is not attached; attached: shop__look"),
    ]
    assert made == []


async def test_a_function_that_is_named_needs_no_consent():
    made: list[str] = []
    named = {
        **DOCUMENT,
        "workflow": {
            "steps": [
                {
                    "type": "run",
                    "id": "a",
                    "agent": {
                        "systemPrompt": "p",
                        "attachedFunctions": [
                            {"service": "shop", "function": "pay"},
                            {"service": "shop", "function": "*"},
                        ],
                    },
                }
            ]
        },
    }
    async with Runtime(models=[model()], services=[shop(made)]) as runtime:
        assert (await runtime.run(named, {})).state == "completed"
    assert made == ["look", "pay"]
