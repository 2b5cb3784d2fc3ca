"""What a model gets of an image, of other bytes, and of a result that is too large to be shown whole."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.conversation import Message, ToolCall
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.agents.tool_messages import tool_message
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelProfile, Models
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import document, log_of, step
from tests.unit.models.wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, Wire
from tests.unit.models.wire_server import WireServer, sending

PNG = b"\x89PNG\r\n\x1a\n" + bytes(60)
DATA = base64.b64encode(PNG).decode()


@function(side_effect="read")
def look() -> bytes:
    """Takes a picture."""
    return PNG


@function(side_effect="read")
def report() -> bytes:
    """Prints a report."""
    return b"%PDF-1.7 report"


@function(side_effect="read")
def dump(n: int) -> list[str]:
    """Dumps what there is."""
    return ["世" * 10] * n


def desk() -> Service:
    return Service.of("desk", look, report, dump)


def images_in(wire: Wire, body: dict[str, Any]) -> list[Any]:
    """Return the images of a request, where this wire format has them."""
    if wire is CHAT:
        parts = [p for m in body["messages"] if isinstance(m["content"], list) for p in m["content"]]
        return [p["image_url"]["url"] for p in parts if p["type"] == "image_url"]
    if wire is RESPONSES:
        outputs = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
        return [
            p["image_url"] for o in outputs if isinstance(o, list) for p in o if p["type"] == "input_image"
        ]
    if wire is MESSAGES:
        blocks = [b["content"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_result"]
        sources = [p["source"] for b in blocks if isinstance(b, list) for p in b if p["type"] == "image"]
        return [f"data:{s['media_type']};{s['type']},{s['data']}" for s in sources]
    data = [p["inlineData"] for c in body["contents"] for p in c["parts"] if "inlineData" in p]
    return [f"data:{d['mimeType']};base64,{d['data']}" for d in data]


@pytest.mark.parametrize("takes_images", [True, False])
@pytest.mark.parametrize("wire", [pytest.param(w, id=w.name) for w in (CHAT, RESPONSES, MESSAGES, GEMINI)])
async def test_an_image_is_a_part_of_the_request_or_a_line_in_it(wire: Wire, takes_images: bool) -> None:
    def profile(model: str) -> ModelProfile:
        return ModelProfile(media=("image/png",) if takes_images else ())

    one = step("a", functions=["look"])
    one["agent"]["model"] = "p:m"
    calls = sending(wire.stream(calls=[("p1", "desk__look", ["{}"]), ("p2", "desk__look", ["{}"])]))
    async with WireServer(calls, sending(wire.stream(['"seen"']))) as server:
        models = Models([wire.provider(base_url=server.url, name="p", profiles=profile)])
        async with Runtime(services=[desk()], models=models) as runtime:
            assert (await runtime.run(document(one), {})).state == "completed"
    body = server.requests[1].body
    assert images_in(wire, body) == [f"data:image/png;base64,{DATA}"] * (2 if takes_images else 0)
    assert json.dumps(body).count("[image: image/png, 68 bytes]") == 2
    if not takes_images:
        assert DATA not in json.dumps(body)


def test_the_shipped_table_and_the_configuration_say_which_images_a_model_takes() -> None:
    models = Models(env={"OPENAI_API_KEY": "k" * 8, "ANTHROPIC_API_KEY": "k" * 8})
    assert "image/png" in models.profile(models.resolve("openai:gpt-4.1")).media
    assert "image/webp" in models.profile(models.resolve("anthropic:claude-sonnet-5-5")).media
    assert models.profile(models.resolve("openai:new-model")).media == ()


async def test_bytes_that_are_no_image_are_described() -> None:
    model = ScriptedModel([call("desk__report"), "{}"])
    async with Runtime(services=[desk()], models=[model]) as runtime:
        one = step("a", functions=["report"])
        result = await runtime.run(
            {**document(one), "models": {"default": "scripted:m"}}, {}, workflow_id="wf_a"
        )
        assert result.state == "completed"
        completed = [e.data for e in await log_of(runtime, "wf_a") if e.type == "tool.call_completed"]
    told = model.requests[1].messages[-1]
    assert (told.content, told.media) == ("[file: application/pdf, 15 bytes]", ())
    assert base64.b64decode(completed[0].output["data"]) == report()


async def test_a_large_result_is_in_the_log_and_the_model_gets_its_head_and_a_reference() -> None:
    n = 10_000
    model = ScriptedModel([call("desk__dump", n=n), "{}"])
    log = MemoryLog()
    async with Runtime(log, services=[desk()], models=[model]) as runtime:
        one = step("a", functions=["dump"])
        result = await runtime.run(
            {**document(one), "models": {"default": "scripted:m"}}, {}, workflow_id="wf_a"
        )
        assert result.state == "completed"
        events = [e.data for e in await log_of(runtime, "wf_a")]
    whole = dump(n)
    (completed,) = [e for e in events if e.EVENT_TYPE == "tool.call_completed"]
    assert completed.output == whole
    told = model.requests[1].messages[-1].content
    head, _, note = told.rpartition("\n")
    assert head == msgspec.json.encode(whole).decode()[: len(head)]
    assert 10_000 < len(head) < 20_000
    reference = json.loads(note[note.index("{") : note.rindex("}") + 1])
    body = msgspec.json.encode(whole)
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert reference == {"$blob": digest, "size": len(body), "type": "json"}


def test_the_reference_is_to_the_innermost_large_values() -> None:
    large = "x" * 300_000
    record = ToolRecord(ToolCall(id="call_1", name="f", arguments="{}"), "f")
    record.state, record.output = "done", {"a": {"b": large}, "c": 1, "d": [large]}
    body = msgspec.json.encode(large)
    told = tool_message(record).content
    assert told.count(f"sha256:{hashlib.sha256(body).hexdigest()}") == 2


async def test_a_result_below_the_limit_is_told_whole() -> None:
    model = ScriptedModel([call("desk__dump", n=5_000), "{}"])
    async with Runtime(services=[desk()], models=[model]) as runtime:
        one = step("a", functions=["dump"])
        await runtime.run({**document(one), "models": {"default": "scripted:m"}}, {})
    assert json.loads(model.requests[1].messages[-1].content) == dump(5_000)


async def test_a_budget_counts_the_bound_of_an_image_and_not_its_bytes() -> None:
    from agentflow.definition.conversation import MediaPart
    from agentflow.definition.ir import ModelRef
    from agentflow.engine.bindings import ModelTerms
    from agentflow.engine.reservations import need_of_request

    part = MediaPart(media_type="image/png", data="x" * 1_000_000)
    message = Message(role="tool", content="[image]", tool_call_id="c", media=(part, part))
    ref = ModelRef(provider="p", model="m")
    plain = need_of_request([message], None, ref, ModelTerms()).input
    assert plain < 1_000
    assert need_of_request([message], None, ref, ModelTerms(image_tokens=5_000)).input == plain + 10_000
