import asyncio
from typing import Any

import pytest

from agentflow.definition.failure import ErrorInfo
from agentflow.models import ModelError, ModelProfile, ModelProvider, ModelReply, ModelRequest
from agentflow.testing import ScriptedModel, call

from .helpers import ask, ids


async def say(model: ScriptedModel, /, **more: Any) -> ModelReply:
    return await model.complete(ask(**more), new_call_id=ids())


async def test_steps_of_every_kind_in_order() -> None:
    failure = ModelError(ErrorInfo(category="transient", code="server_error", message="down"))
    model = ScriptedModel(
        [
            "text",
            {"a": [1, None]},
            call("look.up", id=7),
            [call("a"), call("b", x="y")],
            [1, 2],
            failure,
            lambda r: r.model,
        ]
    )
    assert isinstance(model, ModelProvider)
    assert (await say(model)).message.content == "text"
    assert (await say(model)).message.content == '{"a":[1,null]}'
    reply = await say(model)
    assert reply.finish_reason == "tool_calls"
    assert [(c.id, c.name, c.arguments) for c in reply.message.tool_calls] == [
        ("call_1", "look.up", '{"id":7}')
    ]
    assert [(c.id, c.name) for c in (await say(model)).message.tool_calls] == [
        ("call_1", "a"),
        ("call_2", "b"),
    ]
    assert (await say(model)).message.content == "[1,2]"
    with pytest.raises(ModelError) as caught:
        await say(model)
    assert caught.value is failure
    assert (await say(model, model="mini")).message.content == "mini"
    assert len(model.requests) == 7
    model.assert_complete()


async def test_scripts_are_chosen_by_the_system_prompt() -> None:
    model = ScriptedModel(["other"])
    model.add(["w1", "w2"], when="You write").add(["short"], when=lambda request: len(request.messages) == 1)
    assert (await say(model, system="You write books.")).message.content == "w1"
    assert (await say(model, system="You read.")).message.content == "other"
    lone = ModelRequest(model="m", messages=ask().messages[1:])
    assert (await model.complete(lone, new_call_id=ids())).message.content == "short"
    with pytest.raises(AssertionError, match=r"the script for 'You write' has 1 of 2 steps left"):
        model.assert_complete()
    await say(model, system="You write more.")
    model.assert_complete()


async def test_an_exhausted_script_says_so_everywhere() -> None:
    model = ScriptedModel(["only"])
    await say(model)
    with pytest.raises(ModelError) as caught:
        await say(model, system="Be kind.", text="and now?")
    info = caught.value.info
    assert (info.code, info.retryable) == ("script_exhausted", False)
    for part in ("no step left after 1", "Be kind.", "and now?"):
        assert part in info.message
    with pytest.raises(AssertionError, match="1 times too often"):
        model.assert_complete()


async def test_a_request_that_no_script_fits() -> None:
    model = ScriptedModel(["x"], when="You write")
    with pytest.raises(ModelError, match="no script fits"):
        await say(model)


async def test_one_function_answers_everything() -> None:
    model = ScriptedModel(lambda request: request.messages[-1].content.upper())
    assert (await say(model, text="a")).message.content == "A"
    assert (await say(model, text="b")).message.content == "B"
    model.assert_complete()


async def test_a_step_may_wait() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> str:
        asked.set()
        await gate.wait()
        return "late"

    model = ScriptedModel([slow, "soon"])
    waiting = asyncio.create_task(say(model))
    await asked.wait()
    assert (await say(model)).message.content == "soon"
    assert not waiting.done()
    gate.set()
    assert (await waiting).message.content == "late"


async def test_deltas_usage_and_cost() -> None:
    pieces: list[tuple[str, str]] = []
    model = ScriptedModel(["two  words"], profile=ModelProfile(input_price=1.0, output_price=2.0))
    reply = await model.complete(
        ask("one two three"), new_call_id=ids(), on_delta=lambda k, t: pieces.append((k, t))
    )
    assert pieces == [("output", "two  "), ("output", "words")]
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.model_calls) == (5, 2, 1)
    assert reply.usage.cost_usd == pytest.approx(9e-6)
    assert model.profile("any").input_price == 1.0
