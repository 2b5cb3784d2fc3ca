"""ToolActor: one for each service; executes its functions, a bounded number at once."""

from __future__ import annotations

import asyncio
import time

from actors import on
from agentflow.definition.failure import ErrorInfo
from agentflow.runtime.limited import LimitedActor
from agentflow.runtime.messages import CallTool, ToolCallFailure, ToolCallSuccess
from agentflow.tools import Service, ToolContext, ToolError, invoke

__all__ = ["ToolActor"]


class ToolActor(LimitedActor):
    """A function that raises is an answer, never a failure of the actor."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.spec.max_concurrency)
        self._service = service

    @on(CallTool)
    def call(self, message: CallTool) -> None:
        self.enqueue(message)

    async def work(self, message: CallTool) -> ToolCallSuccess | ToolCallFailure:
        began = time.perf_counter()
        tool = self._service.tools.get(message.function)
        if tool is None:
            return ToolCallFailure(
                call_id=message.call_id,
                duration_ms=0,
                executed=False,
                error=ErrorInfo(
                    category="policy",
                    code="tool_not_found",
                    message=f"service {message.service} has no function {message.function} any more",
                ),
            )
        context = ToolContext(
            context=message.context,
            workflow_id=message.workflow_id,
            step_id=message.step_id,
            iteration=message.iteration,
            call_id=message.call_id,
            idempotency_key=message.idempotency_key,
            attempt=message.attempt,
        )
        try:
            async with asyncio.timeout(message.timeout):
                output = await invoke(tool, message.parameters, context)
        except ToolError as error:
            entered = error.info.code != "invalid_tool_input"
            return ToolCallFailure(
                call_id=message.call_id, error=error.info, duration_ms=_since(began), executed=entered
            )
        except TimeoutError:
            error_info = ErrorInfo(
                category="timeout",
                code="tool_timeout",
                message=f"{tool.name} did not answer within {message.timeout:g} s",
                retryable=True,
            )
            return ToolCallFailure(
                call_id=message.call_id, error=error_info, duration_ms=_since(began), unknown=True
            )
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # a function's own kind of exception is its own affair too
            info = ErrorInfo(
                category="tool",
                code="tool_execution_failed",
                message=f"{tool.name} raised {type(error).__name__}: {error}",
            )
            return ToolCallFailure(call_id=message.call_id, error=info, duration_ms=_since(began))
        return ToolCallSuccess(call_id=message.call_id, output=output, duration_ms=_since(began))


def _since(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
