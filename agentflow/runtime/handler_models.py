"""Models that handlers ask: `ctx.call_model` (page 002 §3). Used by the ExecutorActor's port.

A call is made by the actor of its provider, as an agent's is; whether it is made, and that it ended, the
RunSupervisor is asked first. An answer that does not satisfy its schema is asked for again, twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from actors import ActorStopped
from agentflow.definition.conversation import Message as Said
from agentflow.definition.conversation import Usage, add_usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentSpec, Capabilities, ModelRef
from agentflow.engine import ModelTerms
from agentflow.engine.agents.conversation import BadAnswer, read_answer, repair
from agentflow.engine.grants import denied_call
from agentflow.executors.model_answers import ModelAnswer
from agentflow.models import ModelError, ModelRequest
from agentflow.runtime.agent_actor import Directory, lost_call
from agentflow.runtime.messages import Message
from agentflow.runtime.model_calls import CallModel, Complete, ModelCallFailure, ModelCallSuccess

__all__ = ["BeginModelCall", "EndModelCall", "HandlerModels", "ModelVerdict"]

_MAX_REPAIRS = 2


class BeginModelCall(Message, frozen=True, kw_only=True):
    """Ask whether to make a model call; answered with a ModelVerdict when its start is durable."""

    activation: str
    attempt: int
    ref: ModelRef
    messages: tuple[Said, ...]
    output_schema: Any
    terms: ModelTerms
    key: str


class ModelVerdict(NamedTuple):
    """What a handler does about a model call: see `engine.Begun`. `offset` is that of its start."""

    verdict: str
    call_id: str = ""
    output: Any = None
    error: ErrorInfo | None = None
    offset: int = 0


class EndModelCall(Message, frozen=True, kw_only=True):
    """Record what came of a model call; answered when it is durable."""

    activation: str
    attempt: int
    terms: ModelTerms
    result: ModelCallSuccess | ModelCallFailure


class HandlerModels:
    """The model calls of one attempt."""

    def __init__(
        self,
        activation: str,
        attempt: int,
        workflow_id: str,
        node: str,
        directory: Directory,
        grants: tuple[Capabilities, ...],
        ask: Callable[[Message], Awaitable[Any]],
    ) -> None:
        self._activation, self._attempt = activation, attempt
        self._workflow_id, self._node = workflow_id, node
        self._directory = directory
        self._grants = grants
        self._ask = ask
        self._equal: Counter[str] = Counter()

    async def answer(
        self, messages: tuple[Said, ...], model: str | None, parameters: dict[str, Any], schema: Any
    ) -> ModelAnswer:
        """Ask a model; `schema` judges the answer. Raises ModelError."""
        ref, terms = await self._directory.resolve(model)
        if (denied := denied_call(self._grants, self._node, "models", ref.name)) is not None:
            raise ModelError(denied, uncharged=True)
        if parameters:
            ref = msgspec.structs.replace(ref, parameters={**ref.parameters, **parameters})
        spec = AgentSpec(name=self._node, system_prompt="", output_schema=schema)
        usage = Usage()
        for repaired in range(_MAX_REPAIRS + 1):
            said = await self._call(messages, ref, terms, schema)
            message = msgspec.convert(said["message"], Said)
            usage = add_usage(usage, msgspec.convert(said["usage"], Usage))
            found = ModelAnswer(
                text=message.content,
                model=said["response_model"],
                finish_reason=said["finish_reason"],
                usage=usage,
            )
            if schema is None:
                return found
            try:
                return msgspec.structs.replace(found, data=read_answer(spec, message.content))
            except BadAnswer as bad:
                error = ErrorInfo(
                    category="invalid_output",
                    code="schema_mismatch",
                    message=f"the answer of {ref.name} does not satisfy the type that was asked for: {bad}",
                    details={"errors": bad.errors},
                )
                if repaired == _MAX_REPAIRS:
                    raise ModelError(error, usage=usage) from None
                messages = (*messages, message, repair(error))
        raise AssertionError("unreachable")

    async def _call(
        self, messages: tuple[Said, ...], ref: ModelRef, terms: ModelTerms, schema: Any
    ) -> dict[str, Any]:
        """Make one call, or return its record."""
        same = f"{ref.name} {msgspec.json.encode([messages, ref.parameters, schema]).decode()}"
        self._equal[same] += 1
        begin = BeginModelCall(
            activation=self._activation,
            attempt=self._attempt,
            ref=ref,
            messages=messages,
            output_schema=schema,
            terms=terms,
            key=f"{same} {self._equal[same]}",
        )
        verdict: ModelVerdict = await self._ask(begin)
        if verdict.verdict == "done":
            return verdict.output
        if verdict.verdict == "exceeded":
            assert verdict.error is not None
            raise ModelError(verdict.error, uncharged=True)
        if verdict.verdict != "run":
            info = ErrorInfo(category="interrupted", code="handler_ended", message="the attempt is over")
            raise ModelError(info, uncharged=True)  # this handler is about to be cancelled
        call = CallModel(
            call_id=verdict.call_id,
            workflow_id=self._workflow_id,
            step_id=self._node,
            offset=verdict.offset,
            ref=ref,
            request=ModelRequest(
                model=ref.model, messages=messages, output_schema=schema, parameters=verdict.output
            ),
            id_seed=verdict.call_id,
            timeout=None,
        )
        result = await self._complete(call)
        await self._ask(
            EndModelCall(activation=self._activation, attempt=self._attempt, terms=terms, result=result)
        )
        if isinstance(result, ModelCallFailure):
            raise ModelError(result.error, retry_after=result.retry_after, usage=result.usage)
        reply = result.reply
        return {
            "message": msgspec.to_builtins(reply.message),
            "finish_reason": reply.provider_finish_reason or reply.finish_reason,
            "response_model": reply.response_model,
            "usage": msgspec.to_builtins(reply.usage),
        }

    async def _complete(self, call: CallModel) -> ModelCallSuccess | ModelCallFailure:
        try:
            return await self._directory.model(call.ref.provider).ask(Complete(call=call), timeout=math.inf)
        except ActorStopped:
            raise
        except Exception as error:
            return ModelCallFailure(
                call_id=call.call_id, error=lost_call("model", error, again=False), duration_ms=0
            )
