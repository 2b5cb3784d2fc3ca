"""Which model takes over when one fails (page 000 §9), and what a call that writes to a cache is charged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import Runtime
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.bindings import ModelTerms
from agentflow.events import catalogue as ev
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError, ModelProfile
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, log_of, must_be_sound, step

TOO_LONG = ErrorInfo(category="invalid_input", code="context_length_exceeded", message="too long")


def model(name: str, context: int | None, answer: Any) -> ScriptedModel:
    return ScriptedModel([answer], name=name, profile=ModelProfile(context_tokens=context))


async def run(*models: ScriptedModel) -> tuple[str, list[Any]]:
    made, log = step("a"), MemoryLog()
    made["agent"] |= {"model": f"{models[0].name}:m", "fallback": [f"{m.name}:m" for m in models[1:]]}
    async with Runtime(log, models=models) as runtime:
        handle = await runtime.submit(document(made), {})
        result = await handle.rest()
        await must_be_sound(log, handle.workflow_id)
    return result.state, [e.data for e in await log_of(log, handle.workflow_id)]


async def test_a_prompt_that_is_too_long_goes_to_a_model_with_more_context() -> None:
    smaller, larger = model("smaller", 1_000, {}), model("larger", 9_000, {"ok": True})
    state, events = await run(model("small", 4_000, ModelError(TOO_LONG)), smaller, larger)
    assert state == "completed"
    assert (len(smaller.requests), len(larger.requests)) == (0, 1)
    (retry,) = [e for e in events if isinstance(e, ev.AgentRetrying)]
    assert (retry.kind, retry.model) == ("fallback", "larger:m")


@pytest.mark.parametrize("context", [4_000, 1_000])
async def test_a_prompt_that_is_too_long_fails_without_a_model_with_more_context(context: int) -> None:
    other = model("other", context, {})
    state, _ = await run(model("small", 4_000, ModelError(TOO_LONG)), other)
    assert (state, len(other.requests)) == ("failed", 0)


async def test_a_model_of_unknown_context_is_tried() -> None:
    assert (await run(model("small", 4_000, ModelError(TOO_LONG)), model("other", None, {"ok": 1})))[
        0
    ] == "completed"


async def test_another_refusal_of_the_request_is_left_to_no_other_model() -> None:
    wrong = ErrorInfo(category="invalid_input", code="invalid_request", message="no")
    other = model("other", 9_000, {})
    state, _ = await run(model("small", 4_000, ModelError(wrong)), other)
    assert (state, len(other.requests)) == ("failed", 0)


def test_what_is_written_to_a_cache_is_bounded_and_charged_by_its_own_price() -> None:
    terms = ModelTerms(input_price=2.0, output_price=10.0, cached_input_price=0.2, cache_write_price=2.5)
    usage = Usage(
        input_tokens=1_000_000,
        cache_creation_input_tokens=600_000,
        cache_read_input_tokens=300_000,
        output_tokens=100_000,
    )
    assert terms.cost(usage) == pytest.approx(0.2 + 1.5 + 0.06 + 1.0)
    bound = terms.worst_cost(usage.input_tokens, usage.output_tokens)
    assert bound is not None
    all_written = msgspec.structs.replace(usage, cache_creation_input_tokens=1_000_000)
    assert bound >= (terms.cost(msgspec.structs.replace(all_written, cache_read_input_tokens=0)) or 0)
