"""The port of a handler's context: outputs, events and recorded calls, each in the log before it is answered.

A call of a function or a model is made here, between its recorded start and its recorded end.
"""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from actors import Ref, tracing
from agentflow import known_secrets
from agentflow.definition.conversation import Message as Said
from agentflow.definition.failure import ErrorInfo, describe_exception
from agentflow.definition.ir import Capabilities
from agentflow.definition.schemas import validate
from agentflow.engine.grants import denied_call
from agentflow.errors import OutcomeUnknown
from agentflow.events.tracing import active
from agentflow.executors.context import RecordedCall
from agentflow.executors.model_answers import ModelAnswer
from agentflow.executors.payloads import Encoded
from agentflow.runtime.agent_actor import Directory, lost_call
from agentflow.runtime.handler_calls import AddEvent, BeginCall, CallVerdict, EndCall, Handle, YieldOutput
from agentflow.runtime.handler_models import HandlerModels
from agentflow.runtime.messages import Message
from agentflow.runtime.tool_actor import CallTool, ToolCallFailure, ToolCallSuccess
from agentflow.tools import Tool, ToolError

__all__ = ["HandlerPort"]


class HandlerPort:
    """What a context asks of the RunSupervisor; each answer means that it is in the log."""

    def __init__(
        self,
        supervisor: Ref[Any],
        message: Handle,
        workflow_id: str,
        node: str,
        directory: Directory,
        grants: tuple[Capabilities, ...] = (),
    ) -> None:
        self._grants = grants
        self._supervisor = supervisor
        self._workflow_id = workflow_id
        self._node = node
        self._directory = directory
        self._equal_calls: dict[str, int] = {}
        self._key = message.activation
        self._attempt = message.attempt
        self._request_ids = message.request_ids
        self._outputs = 0
        self._models: HandlerModels | None = None

    async def output(self, payload: Encoded) -> None:
        index, self._outputs = self._outputs, self._outputs + 1
        key, attempt = self._key, self._attempt
        await self._ask(YieldOutput(activation=key, attempt=attempt, index=index, payload=payload))

    async def event(self, name: str, data: Any) -> None:
        await self._ask(AddEvent(activation=self._key, attempt=self._attempt, name=name, data=data))

    async def record(self, call: RecordedCall) -> Any:
        verdict: CallVerdict = await self._ask(
            BeginCall(
                activation=self._key,
                attempt=self._attempt,
                name=call.name,
                parameters=call.parameters,
                side_effect=call.side_effect,
                idempotent=call.idempotent,
            )
        )
        if verdict.verdict == "done":
            return verdict.output
        _check(verdict, call.name)
        if verdict.verdict != "run":
            return None  # the attempt is over: this handler is about to be cancelled
        began = time.perf_counter()
        try:
            with active(verdict.trace):
                output = await call.run()
        except Exception as error:
            info = ErrorInfo(
                category="tool",
                code="tool_execution_failed",
                message=f"{call.name} raised {describe_exception(error)}",
            )
            await self._end(verdict.call_id, began, error=known_secrets.hide_error(info))
            raise
        await self._end(verdict.call_id, began, output=output)
        return output

    async def tool(self, name: str, arguments: Any) -> Any:
        service, _, function = name.rpartition(".")
        tool = self._directory.function(service, function)
        if tool is None:
            message = f"there is no function {name}; write service.function of a service of this Runtime"
            raise ToolError.of("policy", "tool_not_found", message, executed=False)
        if (denied := denied_call(self._grants, self._node, "tools", name)) is not None:
            raise ToolError(denied, executed=False)
        if issues := validate(tool.input_schema, arguments):
            message = f"the arguments of {name} do not satisfy its schema: {issues[0].message}"
            raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False)
        same = f"{name} {msgspec.json.encode(arguments, order='deterministic').decode()}"
        self._equal_calls[same] = self._equal_calls.get(same, 0) + 1
        begin = BeginCall(
            activation=self._key,
            attempt=self._attempt,
            name=tool.name,
            parameters=arguments,
            side_effect=tool.side_effect,
            idempotent=tool.idempotent,
            service=service,
            key=f"{same} {self._equal_calls[same]}",
        )
        verdict: CallVerdict = await self._ask(begin)
        if verdict.verdict == "done":
            return verdict.output
        _check(verdict, name)
        if verdict.verdict != "run":
            return None
        began = time.perf_counter()
        result = await self._call(tool, verdict, arguments)
        if isinstance(result, ToolCallSuccess):
            await self._end(verdict.call_id, began, output=result.output)
            return result.output
        failed = {"error": result.error, "executed": result.executed, "unknown": result.unknown}
        await self._end(verdict.call_id, began, **failed)
        raise ToolError(result.error, executed=result.executed, unknown=result.unknown)

    async def model(
        self, messages: tuple[Said, ...], model: str | None, parameters: dict[str, Any], schema: Any
    ) -> ModelAnswer:
        if self._models is None:
            self._models = HandlerModels(
                self._key,
                self._attempt,
                self._workflow_id,
                self._node,
                self._directory,
                self._grants,
                self._ask,
            )
        return await self._models.answer(messages, model, parameters, schema)

    async def _call(
        self, tool: Tool, verdict: CallVerdict, arguments: Any
    ) -> ToolCallSuccess | ToolCallFailure:
        call = CallTool(
            call_id=verdict.call_id,
            service=tool.service,
            function=tool.function,
            parameters=arguments,
            context=None,
            workflow_id=self._workflow_id,
            step_id=self._node,
            iteration=None,
            attempt=self._attempt,
            idempotency_key=verdict.idempotency_key,
            timeout=tool.timeout,
        )
        try:
            with tracing(verdict.trace):
                return await self._directory.tool(tool.service).ask(call, timeout=math.inf)
        except Exception as error:
            info = lost_call("tool", error)
            return ToolCallFailure(call_id=verdict.call_id, error=info, duration_ms=0, unknown=True)

    async def _end(self, call_id: str, began: float, **result: Any) -> None:
        spent = round((time.perf_counter() - began) * 1000)
        end = EndCall(
            activation=self._key, attempt=self._attempt, call_id=call_id, duration_ms=spent, **result
        )
        await self._ask(end)

    def request_id(self, ordinal: int) -> str:
        return self._request_ids(ordinal)

    async def _ask(self, message: Message) -> Any:
        return await self._supervisor.ask(message, timeout=math.inf)


def _check(verdict: CallVerdict, name: str) -> None:
    """Raise if a call must not be made: no budget, outcome lost, or under way already."""
    if verdict.error is not None:
        raise ToolError(verdict.error, executed=False)
    if verdict.verdict == "unknown":
        hint = "say idempotent=True if a repetition is harmless"
        raise OutcomeUnknown(f"{name} may have been made, its result is lost", hint=hint)
    if verdict.verdict == "open":
        raise RuntimeError(f"{name} is under way in this attempt; give each call a key of its own")
