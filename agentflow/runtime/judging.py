"""What the engine will judge by schemas, judged before it decides: off the event loop if that takes long.

Decisions are plain calls on the event loop. The actor or command that has a value asks here first, where
it may wait; the decision then finds the answer (see `agentflow.judge`). Nothing here changes what is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentflow.engine.agents.conversation import answer_values
from agentflow.judge import judge_aside
from agentflow.models import ModelReply, ModelRequest
from agentflow.records.requests import RequestRecord

__all__ = ["judge_answers", "judge_reply"]


async def judge_reply(request: ModelRequest, reply: ModelReply) -> None:
    """Judge what a model answered: the arguments of its calls, or its final answer."""
    message = reply.message
    schemas = {tool.name: tool.input_schema for tool in request.tools}
    for call in message.tool_calls:
        if call.name in schemas:
            for value in answer_values(call.arguments):
                await judge_aside(schemas[call.name], value)
    if not message.tool_calls and request.output_schema is not None:
        for value in answer_values(message.content):
            await judge_aside(request.output_schema, value)


async def judge_answers(requests: Iterable[RequestRecord], responses: Mapping[str, Any]) -> None:
    """Judge what people answered to open requests."""
    for request in requests:
        if request.request_id in responses and request.response_schema is not None:
            await judge_aside(request.response_schema, responses[request.request_id])
