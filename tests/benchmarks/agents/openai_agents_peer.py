"""openai-agents: an Agent with a Model of our own. It stores nothing, so it has no durable case."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)


class Counting(Model):
    """Asks for `calls` calls, one after another, then answers."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
        answered = len(input) // 2 if isinstance(input, list) else 0
        if answered < self.calls:
            item: Any = ResponseFunctionToolCall(
                type="function_call",
                call_id=f"c{answered}",
                name="add",
                arguments=f'{{"x": {answered}}}',
            )
        else:
            assert input[-1]["output"] == str(self.calls), input[-1]
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            item = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


def case(calls: int) -> Any:
    @function_tool
    async def add(x: int) -> int:
        return x + 1

    agent = Agent(name="counter", instructions="Count with the tool.", model=Counting(calls), tools=[add])

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async def once() -> int:
            result = await Runner.run(agent, "Go.", max_turns=calls + 1)
            assert result.final_output == "done", result.final_output
            return calls + 1

        yield once

    return opened


SUBJECTS = {f"openai-agents {version('openai-agents')}": {"loop1_memory": case(1), "loop50_memory": case(50)}}
