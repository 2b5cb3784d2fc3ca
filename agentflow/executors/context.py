"""WorkflowContext: what a handler may do beside returning (page 002 §3).

Messages, writes and requests are staged here and become real with the completion of the activation; what has
to be in the log at once (outputs, events, recorded calls) goes through a Port, which the runtime gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Never, Protocol, Union, cast

import msgspec
from msgspec import UNSET
from typing_extensions import TypeVar

from agentflow.definition.conversation import Message
from agentflow.errors import (
    ConfigurationError,
    MessageTypeUndeclared,
    NoResponseHandler,
    UnknownTarget,
)
from agentflow.executors.annotations import name_of, shown, tags_of_annotation
from agentflow.executors.model_answers import ModelAnswer
from agentflow.executors.payloads import Encoded, Payloads, convert, has_empty_list, schema_of, tags_of
from agentflow.units import seconds_of

if TYPE_CHECKING:
    from agentflow.executors.handlers import HandlerSpec

__all__ = [
    "Asked",
    "Port",
    "RecordedCall",
    "Sent",
    "SideEffect",
    "Staged",
    "Unfolded",
    "WorkflowContext",
    "seconds",
]

Out = TypeVar("Out", contravariant=True, default=Never)
WOut = TypeVar("WOut", contravariant=True, default=Never)
R = TypeVar("R")

SideEffect = Literal["none", "read", "write", "external", "irreversible"]


class Sent(NamedTuple):
    """A message that waits for the completion of its activation."""

    payload: Encoded
    target: str | None


class Asked(NamedTuple):
    """A request that waits for the completion of its activation. `timeout` is in seconds."""

    request: Any
    response_type: str
    response_schema: Any
    timeout: float | None
    on_timeout: Any


class Unfolded(NamedTuple):
    """Updates of a shared key with a reducer, in order, and its value before them; None: it had none."""

    key: str
    before: Any
    updates: list[Any]


class Staged:
    """What an attempt did that its completion makes real. Values are encoded."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self.private: dict[str, Any] = {}
        self.shared: list[tuple[str, Any]] = []
        self.requests: list[Asked] = []
        self.unfolded: list[Unfolded] = []
        """The updates that no read has folded."""


class RecordedCall(NamedTuple):
    """A call whose result is recorded: a later attempt gets the record. `run` makes it."""

    name: str
    parameters: Any
    run: Callable[[], Awaitable[Any]]
    side_effect: SideEffect
    idempotent: bool


class Port(Protocol):
    """What the runtime does for a handler while it runs. Each call returns when it is in the log."""

    async def output(self, payload: Encoded) -> None: ...

    async def event(self, name: str, data: Any) -> None: ...

    async def record(self, call: RecordedCall) -> Any: ...

    async def tool(self, name: str, arguments: Any) -> Any: ...

    async def model(
        self, messages: tuple[Message, ...], model: str | None, parameters: dict[str, Any], schema: Any
    ) -> ModelAnswer: ...

    def request_id(self, ordinal: int) -> str: ...


class SpanOfHandler(Protocol):
    """The span that a handler works in."""

    @property
    def traceparent(self) -> str: ...


class Surroundings(Protocol):
    """What an attempt begins with. `private` and `shared` hold packed values, `targets` the nodes that an
    edge of this one reaches."""

    @property
    def workflow_id(self) -> str: ...

    @property
    def activation(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def superstep(self) -> int | None: ...

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def missing(self) -> tuple[str, ...]: ...

    @property
    def private(self) -> Mapping[str, Any]: ...

    @property
    def shared(self) -> Mapping[str, Any]: ...

    @property
    def targets(self) -> Collection[str]: ...

    @property
    def reducers(self) -> Mapping[str, Callable[[Any, Any], Any]]: ...

    @property
    def span(self) -> SpanOfHandler | None: ...

    @property
    def port(self) -> Port: ...

    def check_read(self, key: str) -> None:
        """Raise ScopeAccessDenied for a key of the shared state that the node may not read."""
        ...


class WorkflowContext(Generic[Out, WOut]):
    """What a handler may do: send values of `Out`, give out values of `WOut`; without them it may do neither.

    It ends with its handler: a task that goes on may not use it.
    """

    def __init__(
        self,
        around: Surroundings,
        handler: HandlerSpec,
        handlers: tuple[HandlerSpec, ...],
        payloads: Payloads,
        node: str,
    ) -> None:
        self._around = around
        self._handler = handler
        self._handlers = handlers
        self._payloads = payloads
        self._node = node
        self._staged = Staged()
        self._shared: dict[str, Any] = {}
        self._updates: dict[str, list[Any]] = {}
        self._open = True

    # -- messages and outputs ----------------------------------------------------------------------

    async def send_message(self, data: Out, target_id: str | None = None) -> None:
        """Send a value along the edges of this node when the handler has completed; `target_id`: along those
        to one node only.

        Raises MessageTypeUndeclared, UnknownTarget or MessageNotEncodable.
        """
        self._check_open("send_message")
        self._stage(data, target_id)

    def _stage(self, data: Any, target_id: str | None = None) -> None:
        self._check_declared(self._handler.sends, data, "sends", "WorkflowContext[Out]")
        if target_id is not None and target_id not in self._around.targets:
            reached = sorted(self._around.targets)
            raise UnknownTarget(
                f'no edge leads from "{self._node}" to "{target_id}"',
                hint=f"send to one of: {', '.join(reached)}" if reached else "add an edge to it",
                details={"target": target_id, "valid_targets": reached},
            )
        payload = self._encoded(data, self._handler.sends)
        self._staged.messages.append(Sent(payload, target_id))

    async def yield_output(self, data: WOut) -> None:
        """Give a value out as an output of the run; it is in the log on return.

        Raises MessageTypeUndeclared or MessageNotEncodable.
        """
        self._check_open("yield_output")
        self._check_declared(self._handler.yields, data, "gives out", "WorkflowContext[Out, WOut]")
        await self._around.port.output(self._encoded(data, self._handler.yields))

    def _encoded(self, data: Any, declared: tuple[Any, ...]) -> Encoded:
        if type(data) is list and has_empty_list(cast("list[Any]", data)):
            return self._payloads.encode(data, _union(declared))  # it does not say itself what it is of
        return self._payloads.encode(data)

    async def add_event(self, name: str, data: Any = None) -> None:
        """Write the event `custom.<name>`; it is in the log on return. Raises MessageNotEncodable."""
        self._check_open("add_event")
        if not name or name.strip() != name:
            raise ValueError(f"the name of an event must not be empty or begin or end with a space: {name!r}")
        await self._around.port.event(name, self._payloads.keep(data))

    def _check_declared(self, declared: tuple[Any, ...], data: Any, verb: str, where: str) -> None:
        if data.__class__ in declared:
            return
        from agentflow.executors.handlers import declares

        if declares(declared, data):
            return
        tag, names = tags_of(data)[0], [shown(annotation) for annotation in declared]
        stated = ", ".join(names) or "nothing"
        raise MessageTypeUndeclared(
            f'{self._handler.name} of "{self._node}" {verb} a {tag}, and declares {stated}',
            hint=f"add {tag} to its {where}",
            details={"type": tag, "declared": names, "handler": self._handler.name, "node": self._node},
        )

    # -- state -------------------------------------------------------------------------------------

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return a value that this executor kept, as a new object; `default` without one."""
        found = self._staged.private.get(key, UNSET)
        if found is UNSET:
            found = self._around.private.get(key, UNSET)
        return default if found is UNSET else self._payloads.unpack(found)

    def set_state(self, key: str, value: Any) -> None:
        """Keep a value for later activations of this executor in this run. Raises MessageNotEncodable."""
        self._check_open("set_state")
        self._staged.private[_text(key)] = self._payloads.keep(value)

    def get_shared_state(self, key: str, default: Any = None) -> Any:
        """Return a value of the shared state as a new object: as committed when the activation began, with
        the writes of this attempt. Raises ScopeAccessDenied for a key that the node may not read."""
        self._around.check_read(key)
        if key in self._updates:
            for update in self._updates.pop(key):
                before = self._shared.get(key, self._around.shared.get(key))
                self._shared[key] = self._around.reducers[key](before, update)
        found = self._shared.get(key, UNSET)
        if found is UNSET:
            found = self._around.shared.get(key, UNSET)
        return default if found is UNSET else self._payloads.unpack(found)

    def set_shared_state(self, key: str, value: Any) -> None:
        """Write a value of the shared state; others see it once it is committed. With a reducer the value is
        an update. Raises MessageNotEncodable."""
        self._check_open("set_shared_state")
        kept = self._payloads.keep(value)
        self._staged.shared.append((_text(key), kept))
        if key in self._around.reducers:
            self._updates.setdefault(key, []).append(kept)
        else:
            self._shared[key] = kept

    # -- requests and recorded calls ---------------------------------------------------------------

    async def request_info(
        self,
        data: Any,
        response_type: Any,
        *,
        timeout: float | str | None = None,
        on_timeout: Any = UNSET,
    ) -> str:
        """Ask a person or another system; the answer goes to the response handler of both types.

        Returns the id of the request, which opens when the handler has completed.

        `timeout`: seconds, or "48h"; then `on_timeout` is the answer, without one the node fails. Raises
        NoResponseHandler or MessageNotEncodable.
        """
        from agentflow.executors.handlers import choose_response

        self._check_open("request_info")
        wanted = set(tags_of_annotation(response_type))
        answered = choose_response(
            self._handlers, data, lambda annotation: wanted <= _accepted_tags(annotation)
        )
        if answered is None:
            request, answer = tags_of(data)[0], name_of(response_type)
            raise NoResponseHandler(
                f'"{self._node}" has no response handler of a {request} answered by {answer}',
                hint=f"add @response_handler async (self, request: {request}, answer: {answer}, ctx)",
                details={"request": request, "answer": answer, "node": self._node},
            )
        limit = None if timeout is None else seconds(timeout, "timeout")
        kept = UNSET
        if on_timeout is not UNSET:
            kept = self._payloads.encode(on_timeout, response_type).value
        asked = Asked(
            self._payloads.keep(data), name_of(response_type), schema_of(response_type), limit, kept
        )
        self._staged.requests.append(asked)
        return self._around.port.request_id(len(self._staged.requests) - 1)

    async def run_once(
        self,
        key: str,
        fn: Callable[..., R | Awaitable[R]],
        *args: Any,
        side_effect: SideEffect = "external",
        idempotent: bool | None = None,
    ) -> R:
        """Call a function and record its result under `key`: a later attempt or a restart gets the record.

        Plain functions run in a thread. A call whose result was lost is repeated only if `side_effect` is
        none or read, or it is `idempotent`. Else the run waits until a person says `retry`, `done` with its
        output, or `fail`; the handler may begin again meanwhile. What the function raises is raised here, and
        the next attempt calls it again. Raises OutcomeUnknown if the person says `fail`, or with the run
        option `on_unknown: fail`, and ToolError (`budget_exceeded`) if the call does not fit a budget that
        says `on_exceeded: fail`.
        """
        self._check_open("run_once")
        from agentflow.executors.calls import caller_of

        call = RecordedCall(
            name=f"once: {_text(key)}",
            parameters=[self._payloads.keep(argument) for argument in args],
            run=caller_of(fn, args, self._payloads),
            side_effect=side_effect,
            idempotent=side_effect in ("none", "read") if idempotent is None else idempotent,
        )
        return self._payloads.unpack(await self._around.port.record(call))

    async def call_tool(self, name: str, args: Mapping[str, Any] | None = None) -> Any:
        """Call a function of a service, `service.function`; recorded like `run_once`: an equal call of a
        later attempt gets the record, and a person is asked about one that was lost. Raises ToolError or
        OutcomeUnknown."""
        self._check_open("call_tool")
        return await self._around.port.tool(name, self._payloads.keep(dict(args or {})))

    async def call_model(
        self,
        prompt: str | Sequence[Any],
        *,
        model: str | None = None,
        system: str | None = None,
        output_type: Any = None,
        **parameters: Any,
    ) -> ModelAnswer:
        """Ask a model and return its answer; recorded like `run_once`: an equal call of a later attempt gets
        the recorded answer, and one that failed is made again.

        `prompt`: a text, or messages with `role` and `text` (Message). `model`: `provider:model` or an alias,
        None the default of the Runtime. With `output_type` the answer is JSON of that type, whose value is
        `data`; a wrong one is asked for again, twice. `parameters` go to the model: temperature, max_tokens.
        The budget of the run bounds the call: one that does not fit waits while the run is paused or a person
        is asked, by `on_exceeded`; the handler may begin again meanwhile. Recorded functions are bounded by
        `max_tool_calls` alike.

        Raises ModelError, whose `info` says why (`budget_exceeded` with `on_exceeded: fail`, or if the person
        refuses), and ModelResolutionError.
        """
        self._check_open("call_model")
        schema = None if output_type is None else schema_of(output_type)
        messages = _conversation(prompt, system)
        answer = await self._around.port.model(messages, model, parameters, schema)
        if output_type is None:
            return answer
        return msgspec.structs.replace(answer, data=convert(answer.data, output_type))

    # -- read only ---------------------------------------------------------------------------------

    @property
    def source_executor_ids(self) -> list[str]:
        """Ids of the nodes that sent what is handled, in declared order; empty for the run's input."""
        return list(self._around.sources)

    @property
    def missing_source_ids(self) -> list[str]:
        """Ids of the sources that a fan-in round lacks, because they cannot arrive any more."""
        return list(self._around.missing)

    @property
    def activation(self) -> str:
        """Key of the activation, as `/assess#2`."""
        return self._around.activation

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._around.attempt

    @property
    def superstep(self) -> int | None:
        """Number of the superstep; None under policy eager."""
        return self._around.superstep

    @property
    def workflow_id(self) -> str:
        """Id of the run."""
        return self._around.workflow_id

    @property
    def traceparent(self) -> str | None:
        """W3C traceparent of the span of this attempt, for calls to other services."""
        span = self._around.span
        return None if span is None else span.traceparent

    def _check_open(self, method: str) -> None:
        if not self._open:
            raise RuntimeError(f'{method} was called after {self._handler.name} of "{self._node}" had ended')

    def _close(self) -> Staged:
        self._open = False
        for key, updates in self._updates.items():
            before = self._shared.get(key, self._around.shared.get(key))
            self._staged.unfolded.append(Unfolded(key, before, updates))
        return self._staged


def seconds(value: float | str, name: str) -> float:
    """Return a duration in seconds; text as "48h". Raises ConfigurationError naming the option."""
    found = seconds_of(value) if isinstance(value, str) else float(value)
    if found is None or not found > 0:
        raise ConfigurationError(
            f"{name} {value!r} is not a duration above 0", hint='write 90, "90s" or "48h"'
        )
    return found


def _conversation(prompt: str | Sequence[Any], system: str | None) -> tuple[Message, ...]:
    """Return a prompt as the messages of a model call. Raises TypeError for what is none."""
    found: list[Message] = [] if system is None else [Message(role="system", content=system)]
    if isinstance(prompt, str):
        return (*found, Message(role="user", content=prompt))
    for one in prompt:
        role, text = getattr(one, "role", None), getattr(one, "text", getattr(one, "content", None))
        if role not in ("system", "user", "assistant") or not isinstance(text, str):
            raise TypeError(f"a prompt is a text or messages with role and text, not {type(one).__name__}")
        found.append(Message(role=role, content=text))
    if not found:
        raise TypeError("a prompt needs a message")
    return tuple(found)


def _text(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"a key is a text that is not empty, not {key!r}")
    return key


def _accepted_tags(annotation: Any) -> set[str]:
    return set(tags_of_annotation(annotation))


def _union(annotations: tuple[Any, ...]) -> Any:
    return Union[annotations] if annotations else Never  # noqa: UP007
