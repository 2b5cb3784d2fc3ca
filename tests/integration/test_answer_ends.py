"""Nothing of an answer that is not complete is used (agents-models-tools D1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.testing import virtual
from agentflow import Runtime, Service, function
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelReply, ModelRequest
from agentflow.models.openai import OpenAIProvider
from agentflow.testing import ScriptedModel, call, cut, withheld
from tests.integration.support.runs import document, log_of, step
from tests.integration.virtual import LoopClock
from tests.unit.models.wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, Wire, encode
from tests.unit.models.wire_server import USAGE, Answer, WireServer, delta, sending, stream


class Yard:
    """The service `desk` with one irreversible function whose parameter has a default."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []

        @function(side_effect="irreversible")
        def cleanup(scope: str = "everything") -> str:
            """Remove what is in scope."""
            self.cleaned.append(scope)
            return "gone"

        self.service = Service.of("desk", cleanup)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


async def run(yard: Yard, model: Any, retry: Any = None, **agent: Any) -> tuple[Any, list[Any]]:
    log = MemoryLog()
    made = step("a", functions=["cleanup"])
    del made["agent"]["resultSchema"]
    made["agent"] |= agent
    if retry is not None:
        made["retry"] = retry
    steps = document(made)
    async with Runtime(log, models=[model], services=[yard.service], clock=LoopClock()) as runtime:
        result = await runtime.run(steps, {}, raise_on_failure=False)
        events = await log_of(log, result.workflow_id)
    return result, events


def of(events: list[Any], type: str) -> list[Any]:
    return [msgspec.to_builtins(e.data) for e in events if e.type == type]


CLEANUP = call("desk__cleanup")


@pytest.mark.parametrize(
    ("script", "code", "category"),
    [
        pytest.param(cut(CLEANUP), "output_truncated", "invalid_output", id="call-cut"),
        pytest.param(cut([CLEANUP, CLEANUP]), "output_truncated", "invalid_output", id="calls-cut"),
        pytest.param(cut("half an ans"), "output_truncated", "invalid_output", id="text-cut"),
        pytest.param(withheld(CLEANUP), "content_filtered", "agent", id="call-withheld"),
        pytest.param(withheld("half"), "content_filtered", "agent", id="text-withheld"),
    ],
)
@virtual
async def test_an_answer_that_is_not_complete_fails_the_agent(script: Any, code: str, category: str) -> None:
    yard = Yard()
    model = ScriptedModel([script])
    result, events = await run(yard, model)
    assert (result.state, yard.cleaned) == ("failed", [])
    [failed] = of(events, "model.call_failed")
    assert (failed["error"]["code"], failed["error"]["category"]) == (code, category)
    assert failed["error"]["details"]["finish_reason"] in ("length", "content_filter")
    assert failed["usage"]["model_calls"] == 1
    assert not failed["will_retry"]
    assert of(events, "tool.call_started") == []
    [agent] = of(events, "agent.failed")
    assert agent["error"]["code"] == code


def wire(finish: str | None, arguments: str = "") -> Answer:
    function_ = {"name": "desk__cleanup", "arguments": arguments}
    calls = delta(tool_calls=[{"index": 0, "id": "p", "function": function_}])
    return stream(calls, *([delta(finish)] if finish else []), USAGE)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ["", '{"scope": "ev', "{}"])
async def test_a_call_of_an_answer_that_is_not_complete_is_not_executed(finish: str, arguments: str) -> None:
    yard = Yard()
    async with WireServer(wire(finish, arguments)) as server:
        provider = OpenAIProvider(base_url=server.url, name="scripted")
        result, events = await run(yard, provider)
        assert len(server.requests) == 1
    assert (result.state, yard.cleaned) == ("failed", [])
    [failed] = of(events, "model.call_failed")
    assert failed["error"]["details"] == {"finish_reason": finish}
    assert (failed["usage"]["input_tokens"], failed["usage"]["output_tokens"]) == (100, 20)


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource", "engine_overloaded", None])
async def test_an_answer_that_failed_at_the_provider_is_asked_for_again(finish: str | None) -> None:
    yard = Yard()
    good = stream(delta("stop", content="fine"), USAGE)
    async with WireServer(wire(finish), wire("tool_calls"), good) as server:
        provider = OpenAIProvider(base_url=server.url, name="scripted")
        result, events = await run(yard, provider, retry={"backoff": "10ms"})
        assert len(server.requests) == 3
    assert result.state == "completed"
    assert yard.cleaned == ["everything"]  # of the complete answer alone
    [failed] = of(events, "model.call_failed")
    assert failed["will_retry"]
    reasons = [c["finish_reason"] for c in of(events, "model.call_completed")]
    assert reasons == ["tool_calls", "stop"]


async def test_the_providers_own_finish_reason_is_recorded_beside_calls() -> None:
    yard = Yard()
    good = stream(delta("end_turn", content="fine"))
    async with WireServer(wire("stop"), good) as server:
        provider = OpenAIProvider(base_url=server.url, name="scripted")
        result, events = await run(yard, provider)
    assert result.state == "completed"
    assert [c["finish_reason"] for c in of(events, "model.call_completed")] == ["stop", "end_turn"]


@virtual
async def test_a_cut_answer_is_left_to_the_fallback() -> None:
    yard = Yard()

    def answer(request: ModelRequest) -> Any:
        return cut(CLEANUP) if request.model == "m" else "whole"

    result, events = await run(yard, ScriptedModel(answer), fallback=["scripted:other"])
    assert (result.state, yard.cleaned) == ("completed", [])
    assert [e["kind"] for e in of(events, "agent.retrying")] == ["fallback"]


@virtual
async def test_an_empty_answer_is_repaired_once() -> None:
    yard = Yard()
    model = ScriptedModel(["", "better"])
    result, events = await run(yard, model)
    assert result.state == "completed"
    [again] = of(events, "agent.retrying")
    assert (again["kind"], again["error"]["code"]) == ("repair", "empty_answer")
    assert model.requests[1].messages[-1].content == "The answer was empty. Answer the request above."


@virtual
async def test_a_second_empty_answer_fails() -> None:
    model = ScriptedModel(["", "  \n"])
    result, events = await run(Yard(), model)
    assert result.state == "failed"
    [agent] = of(events, "agent.failed")
    assert (agent["error"]["category"], agent["error"]["code"]) == ("invalid_output", "empty_answer")
    model.assert_complete()


@virtual
async def test_an_adapter_that_leaves_the_end_out_is_not_believed() -> None:
    """An adapter of a user's own, written before the field was there."""

    class Old(ScriptedModel):
        async def complete(self, request: ModelRequest, **more: Any) -> ModelReply:
            reply = await super().complete(request, **more)
            return ModelReply(
                message=reply.message, finish_reason="length", response_model="m", usage=reply.usage
            )

    yard = Yard()
    result, _ = await run(yard, Old([CLEANUP]))
    assert (result.state, yard.cleaned) == ("failed", [])


WHOLE, HALF = '{"scope": "everything"}', '{"scope": "ev'
CUTS = {
    "length-before-arguments": ([], "cut", None),
    "length-in-arguments": ([HALF], "cut", None),
    "length-behind-arguments": ([WHOLE], "cut", None),
    "withheld": ([], "withheld", None),
    "failed": ([WHOLE], "failed", None),
    "lost-before-arguments": ([], "complete", 1),
    "lost-in-arguments": ([HALF], "complete", 1),
    "lost-behind-arguments": ([WHOLE], "complete", 1),
    "lost-in-the-last-event": ([WHOLE], "complete", 0),
}
"""Pieces of the arguments, how the answer ends, how many of its last events never come (0: half of one)."""

_ENDING = {"openai": 2, "openai-responses": 2, "anthropic": 3, "gemini": 1}
"""Events behind the arguments of a call, from the one that ends it."""


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, MESSAGES, GEMINI], ids=lambda wire: wire.name)
@pytest.mark.parametrize("cut", CUTS)
async def test_no_cut_of_an_answer_executes_its_call(cut: str, wire: Wire) -> None:
    pieces, end, lost = CUTS[cut]
    if wire is GEMINI and pieces == [HALF]:
        pieces = []  # whose arguments are never sent in pieces
    events = wire.events(["I clean up."], [("p1", "desk__cleanup", pieces)], end)
    if lost is not None:
        count = _ENDING[wire.name]
        body = encode(events[:-count]) + (encode(events[-count:])[:40] if lost == 0 else b"")
    else:
        body = encode(events)
    yard = Yard()
    async with WireServer(sending(body)) as server:
        provider = wire.provider(base_url=server.url, name="scripted")
        result, log = await run(yard, provider, retry={"max_attempts": 1})
    assert (result.state, yard.cleaned) == ("failed", [])
    assert of(log, "tool.call_started") == []
    assert of(log, "model.call_completed") == []
