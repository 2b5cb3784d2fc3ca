"""ExecutorActor: one for each run and executor; handles one message at a time (page 002 §1).

It owns the run's copy of the executor. What a handler does at once (outputs, events, recorded calls) is asked
of the RunSupervisor, whose answer means that it is durable; everything else goes with the completion. A
handler that raises is an answer, never a failure of the actor.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from actors import Actor, ActorStopped, Ref, current_trace, on, tracing
from agentflow import known_secrets
from agentflow.definition.conversation import Message as Said
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.engine import Outgoing, Question
from agentflow.engine.judging import has_code
from agentflow.errors import HandlerMisuse, OutcomeUnknown
from agentflow.events.tracing import SpanContext, active
from agentflow.executors.annotations import is_any, name_of, tags_of_annotation
from agentflow.executors.callables import Callables
from agentflow.executors.calls import in_thread
from agentflow.executors.context import RecordedCall, Sent, Staged, Surroundings, WorkflowContext
from agentflow.executors.executor import Executor
from agentflow.executors.handlers import HandlerSpec, choose, choose_response
from agentflow.executors.model_answers import ModelAnswer
from agentflow.executors.payloads import Encoded, Payloads, convert
from agentflow.models import ModelError
from agentflow.runtime.agent_actor import Directory, lost_call
from agentflow.runtime.handler_models import HandlerModels
from agentflow.runtime.messages import Message
from agentflow.runtime.tool_actor import CallTool, ToolCallFailure, ToolCallSuccess
from agentflow.runtime.workflow_code import judged, judged_aside
from agentflow.tools import Tool, ToolError

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = [
    "AddEvent",
    "BeginCall",
    "CallVerdict",
    "EndCall",
    "ExecutorActor",
    "Handle",
    "HandlerDone",
    "HandlerFailed",
    "YieldOutput",
]

JUDGEMENT_LIMIT_S = 5.0
"""How long the predicates and selections on the edges of a node may take for the messages of one handler."""
STATE_KEY = "$state"
"""The private key under which the snapshot of an executor is kept."""


class Handle(Message, frozen=True, kw_only=True):
    """Handle this message. `types` has the type tags: one, or of a round one for each element.

    `request_id` is set for an answer, `request` is what was asked.
    """

    activation: str
    attempt: int
    value: Any
    types: tuple[str, ...]
    is_round: bool
    request_id: str | None
    request: Any
    sources: tuple[str, ...]
    missing: tuple[str, ...]
    superstep: int | None
    private: dict[str, Any]
    request_ids: Any


class HandlerDone(Message, frozen=True, kw_only=True):
    """The handler returned."""

    activation: str
    attempt: int
    messages: tuple[Outgoing, ...]
    """With the results of the code on the edges that may take them, as of version `judged_at` of the shared
    state."""
    judged_at: int
    private: dict[str, Any]
    shared: tuple[tuple[str, Any], ...]
    requests: tuple[Question, ...]


class HandlerFailed(Message, frozen=True, kw_only=True):
    """The handler raised."""

    activation: str
    attempt: int
    error: ErrorInfo


class YieldOutput(Message, frozen=True, kw_only=True):
    """Write an output, the `index`th of its attempt; answered when it is durable."""

    activation: str
    attempt: int
    index: int
    payload: Encoded


class AddEvent(Message, frozen=True, kw_only=True):
    """Write an event of the user's own; answered when it is durable."""

    activation: str
    attempt: int
    name: str
    data: Any


class BeginCall(Message, frozen=True, kw_only=True):
    """Ask whether to make a recorded call; answered with a CallVerdict when its start is durable."""

    activation: str
    attempt: int
    name: str
    parameters: Any
    side_effect: Any
    idempotent: bool
    service: str | None = None
    key: str | None = None


class CallVerdict(NamedTuple):
    """What a handler does about a recorded call: see `engine.Begun`."""

    verdict: str
    call_id: str = ""
    idempotency_key: str = ""
    output: Any = None
    trace: SpanContext | None = None
    """The span of the call."""


class EndCall(Message, frozen=True, kw_only=True):
    """Record what came of a call; answered when it is durable."""

    activation: str
    attempt: int
    call_id: str
    duration_ms: int
    output: Any = None
    error: ErrorInfo | None = None
    executed: bool = True
    unknown: bool = False


class Place(NamedTuple):
    """What an ExecutorActor knows of the graph: its node, and the code of the run."""

    workflow_id: str
    node: str
    make: Callable[[], Executor]
    payloads: Payloads
    targets: frozenset[str]
    reducers: Mapping[str, Any]
    shared: Callable[[str], Mapping[str, Any]]
    """The shared state that an activation reads, by its key."""
    committed: Callable[[], tuple[int, Mapping[str, Any]]]
    """The version and the values of the shared state now."""
    graph_node: Node
    code: Callables
    directory: Directory


class _Unfit(Exception):
    """No handler takes what came."""


class ExecutorActor(Actor, mailbox=1_000, handler_timeout=None):
    """The copy of one executor for one run. Killed, it cancels the handler at work and waits for its end."""

    def __init__(self, supervisor: Ref[Any], place: Place) -> None:
        self._supervisor = supervisor
        self._place = place
        self._executor: Executor | None = None
        self._saved: bytes | None = None

    @on(Handle)
    async def handle(self, message: Handle) -> None:
        key, attempt = message.activation, message.attempt
        try:
            staged = await self._attempt(message)
            version, messages = await self._judged(staged.messages)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failed(message, error)  # raised by the handler itself
        except (KeyboardInterrupt, ActorStopped):
            raise
        except BaseException as error:
            self._failed(message, error)
        else:
            done = HandlerDone(
                activation=key,
                attempt=attempt,
                messages=messages,
                judged_at=version,
                private=staged.private,
                shared=tuple(staged.shared),
                requests=tuple(Question(**asked._asdict()) for asked in staged.requests),
            )
            self._supervisor.tell(done)

    async def _judged(self, sent: list[Sent]) -> tuple[int, tuple[Outgoing, ...]]:
        """Return the messages with the results of predicates and selections, which run in a worker thread."""
        place = self._place
        version, shared = place.committed()
        node = place.graph_node
        if sent and has_code(node):
            return version, await judged_aside(node, sent, place.code, shared, JUDGEMENT_LIMIT_S)
        return version, tuple(judged(node, one, place.code, shared) for one in sent)

    def _failed(self, message: Handle, error: BaseException) -> None:
        self._executor = None  # the next attempt begins with the state that was kept
        info = known_secrets.hide_error(_error_of(self._place.node, error))
        failed = HandlerFailed(activation=message.activation, attempt=message.attempt, error=info)
        self._supervisor.tell(failed)

    async def _attempt(self, message: Handle) -> Staged:
        executor = await self._copy(message)
        spec, arguments = _arguments(executor, message, self._place)
        context = self._context(message, executor, spec)
        if spec.accepts_ctx:
            arguments = (*arguments, context)
        if spec.method:
            arguments = (executor, *arguments)
        try:
            with active(current_trace()):
                if spec.is_async:
                    result = await spec.function(*arguments)
                else:
                    result = await in_thread(spec.function, *arguments)
            if result is not None:
                context._stage(result)  # pyright: ignore[reportPrivateUsage]
        finally:
            staged = context._close()  # pyright: ignore[reportPrivateUsage]
        await self._save(executor, staged)
        return staged

    # -- the copy of the run, and its state ----------------------------------------------------------

    async def _copy(self, message: Handle) -> Executor:
        """Return the run's copy; a new one takes up the state that was kept."""
        if self._executor is not None:
            return self._executor
        executor = self._place.make()
        kept = message.private.get(STATE_KEY, UNSET)
        self._saved = None
        if kept is not UNSET:
            self._saved = _bytes(kept)
            value = self._place.payloads.unpack(kept)
            restore = getattr(executor, "restore_state", None)
            if restore is not None:
                found = restore(value)
                if inspect.isawaitable(found):
                    await found
            else:
                executor.state = value  # type: ignore[attr-defined]
        elif (snapshot := await _snapshot(executor)) is not UNSET:
            self._saved = _bytes(self._place.payloads.keep(snapshot))
        self._executor = executor
        return executor

    async def _save(self, executor: Executor, staged: Staged) -> None:
        """Stage the state of the executor if its bytes have changed."""
        value = await _snapshot(executor)
        if value is UNSET:
            return
        kept = self._place.payloads.keep(value)
        found = _bytes(kept)
        if found != self._saved:
            self._saved = found
            staged.private[STATE_KEY] = kept

    def _context(self, message: Handle, executor: Executor, spec: HandlerSpec) -> WorkflowContext[Any, Any]:
        place, span = self._place, current_trace()
        around = Surroundings(
            workflow_id=place.workflow_id,
            activation=message.activation,
            attempt=message.attempt,
            superstep=message.superstep,
            sources=message.sources,
            missing=message.missing,
            private=message.private,
            shared=place.shared(message.activation),
            targets=place.targets,
            reducers=place.reducers,
            traceparent=span.traceparent if isinstance(span, SpanContext) else None,
        )
        port = _Port(self._supervisor, message, place)
        return WorkflowContext(around, port, spec, executor.handlers, place.payloads, place.node)


class _Port:
    """What a context asks of the RunSupervisor; each answer means that it is in the log."""

    def __init__(self, supervisor: Ref[Any], message: Handle, place: Place) -> None:
        self._supervisor = supervisor
        self._place = place
        self._equal_calls: Counter[str] = Counter()
        self._key = message.activation
        self._attempt = message.attempt
        self._request_ids = message.request_ids
        self._outputs = 0
        self._models = HandlerModels(
            self._key, self._attempt, place.workflow_id, place.node, place.directory, self._ask
        )

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
                message=f"{call.name} raised {type(error).__name__}: {error}",
            )
            await self._end(verdict.call_id, began, error=known_secrets.hide_error(info))
            raise
        await self._end(verdict.call_id, began, output=output)
        return output

    async def tool(self, name: str, arguments: Any) -> Any:
        service, _, function = name.rpartition(".")
        tool = self._place.directory.function(service, function)
        if tool is None:
            message = f"there is no function {name}; write service.function of a service of this Runtime"
            raise ToolError.of("policy", "tool_not_found", message, executed=False)
        if issues := validate(tool.input_schema, arguments):
            message = f"the arguments of {name} do not satisfy its schema: {issues[0].message}"
            raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False)
        same = f"{name} {_bytes(arguments).decode()}"
        self._equal_calls[same] += 1
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
            workflow_id=self._place.workflow_id,
            step_id=self._place.node,
            iteration=None,
            attempt=self._attempt,
            idempotency_key=verdict.idempotency_key,
            timeout=tool.timeout,
        )
        try:
            with tracing(verdict.trace):
                return await self._place.directory.tool(tool.service).ask(call, timeout=math.inf)
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
    """Raise if a call must not be made, because its outcome was lost, or because it is under way."""
    if verdict.verdict == "unknown":
        hint = "say idempotent=True if a repetition is harmless"
        raise OutcomeUnknown(f"{name} may have been made, its result is lost", hint=hint)
    if verdict.verdict == "open":
        raise RuntimeError(f"{name} is under way in this attempt; give each call a key of its own")


async def _snapshot(executor: Executor) -> Any:
    """Return the state that an executor keeps over restarts; UNSET if it keeps none."""
    snapshot = getattr(executor, "snapshot_state", None)
    if snapshot is not None:
        found = snapshot()
        return await found if inspect.isawaitable(found) else found
    return getattr(executor, "state", UNSET)


def _bytes(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


# -- which handler, with which values ---------------------------------------------------------------


def _arguments(executor: Executor, message: Handle, place: Place) -> tuple[HandlerSpec, tuple[Any, ...]]:
    if message.request_id is not None:
        return _answer_arguments(executor, message, place)
    payloads = place.payloads
    if message.is_round:
        parts = zip(message.types, message.value, strict=True)
        value: Any = [payloads.decode(tag, item) for tag, item in parts]
    elif message.types:
        value = payloads.decode(message.types[0], message.value)
    else:
        return _untagged_arguments(executor, message.value, place)
    spec = choose(executor.handlers, value)
    if spec is None:
        raise _Unfit(_nobody_takes(executor, place, " or ".join(dict.fromkeys(message.types)) or "list"))
    return spec, (value,)


def _untagged_arguments(executor: Executor, value: Any, place: Place) -> tuple[HandlerSpec, tuple[Any, ...]]:
    """Choose for JSON that nothing names: a handler of JSON values, one whose type it converts to, Any."""
    plain = place.payloads.unpack(value)
    specs = [spec for spec in executor.handlers if spec.kind == "message"]
    spec = choose([s for s in specs if not is_any(s.takes)], plain)
    if spec is not None:
        return spec, (plain,)
    for spec in specs:
        if not is_any(spec.takes):
            try:
                return spec, (convert(value, spec.takes),)
            except (ValueError, TypeError):
                continue
    spec = choose(specs, plain)
    if spec is None:
        raise _Unfit(_nobody_takes(executor, place, f"a JSON {type(value).__name__}"))
    return spec, (plain,)


def _nobody_takes(executor: Executor, place: Place, what: str) -> str:
    takes = ", ".join(name_of(s.takes) for s in executor.handlers if s.kind == "message")
    return f'no handler of "{place.node}" takes {what}; it takes {takes}'


def _answer_arguments(
    executor: Executor, message: Handle, place: Place
) -> tuple[HandlerSpec, tuple[Any, ...]]:
    request = place.payloads.unpack(message.request)
    wanted = set(message.types[0].split(" | ")) if message.types else set[str]()

    def fits(annotation: Any) -> bool:
        return is_any(annotation) or wanted <= set(tags_of_annotation(annotation))

    spec = choose_response(executor.handlers, request, fits)
    if spec is None:
        raise _Unfit(f'no response handler of "{place.node}" takes the answer {" or ".join(sorted(wanted))}')
    if not is_any(spec.answer):
        return spec, (request, convert(message.value, spec.answer))
    tag = message.types[0] if message.types else "Any"
    return spec, (request, place.payloads.decode(tag, message.value))


def _error_of(node: str, error: BaseException) -> ErrorInfo:
    if isinstance(error, HandlerMisuse):
        details = {**error.details, **({"hint": error.hint} if error.hint else {})}
        return ErrorInfo(category="invalid_input", code=error.code, message=str(error), details=details)
    if isinstance(error, OutcomeUnknown):
        return ErrorInfo(category="tool", code=error.code, message=f"{node}: {error}")
    kind = type(error).__name__
    if isinstance(error, ToolError):
        details = {"type": kind}
        message = f"{node}: {error.info.message}"
        return ErrorInfo(
            category="tool", code="executor_failed", message=message, details=details, cause=error.info
        )
    if isinstance(error, ModelError):
        return _model_error(node, error.info)
    if isinstance(error, _Unfit):
        return ErrorInfo(category="invalid_input", code="executor_failed", message=str(error))
    return ErrorInfo(
        category="agent",
        code="executor_failed",
        message=f"{node} raised {kind}: {error}",
        details={"type": kind},
    )


def _model_error(node: str, info: ErrorInfo) -> ErrorInfo:
    """Return the failure of a handler that let that of a model call pass; a budget keeps its code."""
    if info.category == "budget":
        return msgspec.structs.replace(info, message=f"{node}: {info.message}")
    return ErrorInfo(
        category=info.category,
        code="executor_failed",
        message=f"{node}: {info.message}",
        details={"type": "ModelError"},
        cause=info,
    )
