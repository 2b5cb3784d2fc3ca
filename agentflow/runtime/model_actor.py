"""ModelActor: one for each provider key, shared by all runs; keeps the provider's limit of open calls."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from actors import on
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.ids import derive
from agentflow.models import ModelError, ModelProvider
from agentflow.runtime.limited import LimitedActor
from agentflow.runtime.messages import Complete, ModelCallFailure, ModelCallSuccess

__all__ = ["ModelActor"]


class ModelActor(LimitedActor):
    """Makes single attempts; whether a failed call is made again is decided by the engine."""

    def __init__(self, provider: ModelProvider) -> None:
        super().__init__(provider.max_concurrency)
        self._provider = provider

    @on(Complete)
    def complete(self, message: Complete) -> None:
        self.enqueue(message)

    async def work(self, message: Complete) -> ModelCallSuccess | ModelCallFailure:
        call = message.call
        began = time.perf_counter()
        number = count()

        def new_call_id() -> str:
            return derive("call_", time.time_ns() // 1000, call.id_seed, next(number))

        def passed() -> int:
            return round((time.perf_counter() - began) * 1000)

        try:
            async with asyncio.timeout(call.timeout):
                reply = await self._provider.complete(call.request, new_call_id=new_call_id)
        except ModelError as error:
            return ModelCallFailure(
                call_id=call.call_id,
                error=error.info,
                duration_ms=passed(),
                retry_after=error.retry_after,
                partial=error.partial,
            )
        except TimeoutError:
            info = ErrorInfo(
                category="timeout",
                code="response_timeout",
                message=f"{call.ref.name} did not answer within {call.timeout:g} s",
                retryable=True,
                provider=call.ref.provider,
            )
            return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=passed())
        except Exception as error:  # an adapter's bug ends one call, not the provider for all runs
            info = ErrorInfo(
                category="agent",
                code="agent_error",
                message=f"the adapter of {call.ref.provider} raised {type(error).__name__}: {error}",
                provider=call.ref.provider,
            )
            return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=passed())
        return ModelCallSuccess(call_id=call.call_id, reply=reply, duration_ms=passed())
