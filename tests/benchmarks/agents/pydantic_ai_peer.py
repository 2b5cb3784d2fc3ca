"""pydantic-ai: an Agent with a FunctionModel. It stores nothing, so it has no durable case."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits


def case(calls: int) -> Any:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answered = len(messages) // 2
        if answered < calls:
            return ModelResponse(parts=[ToolCallPart("add", {"x": answered}, tool_call_id=f"c{answered}")])
        assert messages[-1].parts[0].content == calls
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(answer), system_prompt="Count with the tool.")

    @agent.tool_plain
    async def add(x: int) -> int:
        return x + 1

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async def once() -> int:
            result = await agent.run("Go.", usage_limits=UsageLimits(request_limit=None))
            assert result.output == "done", result.output
            return calls + 1

        yield once

    return opened


SUBJECTS = {
    f"pydantic-ai {version('pydantic-ai-slim')}": {"loop1_memory": case(1), "loop50_memory": case(50)}
}
