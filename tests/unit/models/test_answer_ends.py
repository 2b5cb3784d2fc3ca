"""The four ends of an answer, as the OpenAI adapter says them (agents-models-tools D1)."""

import pytest

from agentflow.definition.conversation import Message
from agentflow.models import ModelError, ModelReply
from agentflow.models.openai import OpenAIProvider

from .helpers import ask, ids, tool
from .wire_server import USAGE, Answer, WireServer, cut_after, delta, plain, stream

CLEANUP = tool("cleanup", scope={"type": "string", "default": "everything"})


async def complete(answer: Answer) -> ModelReply:
    async with WireServer(answer) as server:
        provider = OpenAIProvider(base_url=server.url)
        try:
            return await provider.complete(ask(tools=(CLEANUP,)), new_call_id=ids())
        finally:
            await provider.aclose()


async def fail(answer: Answer) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await complete(answer)
    return caught.value


def called(arguments: str = "", finish: str | None = None) -> dict[str, object]:
    function = {"name": "cleanup", "arguments": arguments}
    return delta(finish, tool_calls=[{"index": 0, "id": "p0", "function": function}])


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"]
)
async def test_an_answer_cut_by_length_is_cut(reason: str) -> None:
    reply = await complete(stream(called(), delta(reason), USAGE))
    assert (reply.end, reply.finish_reason, reply.provider_finish_reason) == ("cut", "length", reason)
    assert [call.arguments for call in reply.message.tool_calls] == [""]
    assert reply.usage.output_tokens == 20


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "end_turn", "eos"])
async def test_empty_arguments_of_a_complete_answer_are_an_empty_object(reason: str) -> None:
    reply = await complete(stream(called(finish=reason), USAGE))
    assert (reply.end, reply.finish_reason, reply.provider_finish_reason) == (
        "complete",
        "tool_calls",
        reason,
    )
    assert [call.arguments for call in reply.message.tool_calls] == ["{}"]


@pytest.mark.parametrize(
    "reason", ["error", "insufficient_system_resource", "engine_overloaded", "network_error", "whatever"]
)
async def test_a_finish_reason_that_is_no_good_one_is_a_transient_failure(reason: str) -> None:
    failure = await fail(stream(delta(content="half"), called(), delta(reason), USAGE))
    assert (failure.info.category, failure.info.code) == ("transient", "server_error")
    assert failure.info.retryable
    assert failure.info.details == {"finish_reason": reason}
    assert failure.partial == "half"
    assert failure.usage is not None
    assert failure.usage.output_tokens == 20


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(stream(delta(content="half")), id="done-without-a-finish-reason"),
        pytest.param(stream(called("{}")), id="call-without-a-finish-reason"),
        pytest.param(stream(USAGE), id="stream-without-choices"),
        pytest.param(plain(200, {"id": "x", "choices": []}), id="body-without-choices"),
        pytest.param(plain(200, {"id": "x"}), id="body-without-the-member"),
        pytest.param(plain(200, {"choices": [{"message": {"content": "a"}}]}), id="body-without-a-reason"),
        pytest.param(stream(delta(content="half"), done=False), id="nothing-more"),
        pytest.param(cut_after(called("{}")), id="connection-lost"),
        pytest.param(cut_after(called('{"scope": "ev')), id="connection-lost-in-arguments"),
    ],
)
async def test_an_answer_without_an_end_is_a_transient_failure(answer: Answer) -> None:
    failure = await fail(answer)
    assert failure.info.category == "transient"
    assert failure.info.retryable


@pytest.mark.parametrize("reason", ["content_filter", "SAFETY", "refusal", "RECITATION"])
async def test_a_withheld_answer_with_calls_is_withheld(reason: str) -> None:
    failure = await fail(stream(called("{}"), delta(reason)))
    assert (failure.info.category, failure.info.code) == ("agent", "content_filtered")
    assert failure.info.details == {"finish_reason": reason}


async def test_an_error_inside_a_choice_fails_the_answer_openrouter() -> None:
    broken = delta("error", content="half")
    broken["choices"][0]["error"] = {"code": 502, "message": "upstream"}
    failure = await fail(stream(broken))
    assert (failure.info.code, failure.partial) == ("server_error", None)


def test_a_reply_of_an_adapter_that_leaves_the_end_out_is_never_taken_as_complete() -> None:
    message = Message(role="assistant", content="x")
    for reason, end in (("stop", "complete"), ("length", "cut"), ("content_filter", "withheld")):
        assert ModelReply(message=message, finish_reason=reason, response_model="m").end == end


async def test_an_empty_assistant_message_is_not_sent_back() -> None:
    messages = (
        Message(role="user", content="a"),
        Message(role="assistant"),
        Message(role="user", content="b"),
    )
    async with WireServer(stream(delta("stop", content="ok"))) as server:
        provider = OpenAIProvider(base_url=server.url)
        await provider.complete(ask(messages=messages), new_call_id=ids())
        await provider.aclose()
        assert [m["content"] for m in server.requests[0].body["messages"]] == ["a", "b"]
