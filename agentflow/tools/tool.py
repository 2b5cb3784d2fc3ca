"""A tool: one function that an agent may call, with what the runtime must know about calling it.

Identity is (service, function); `name` is what a model sees (page 001 §5.6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.errors import AgentflowError
from agentflow.logs import get_logger

__all__ = [
    "CallReport",
    "CallSignals",
    "PythonTool",
    "SideEffect",
    "Tool",
    "ToolContext",
    "ToolError",
    "settled",
    "tool_name",
]

SideEffect = Literal["none", "read", "write", "external", "irreversible"]

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64


def tool_name(service: str, function: str) -> str:
    """Return `service__function` in the characters that providers allow; a long one ends in a hash of all of
    it."""
    name = _OUTSIDE.sub("_", f"{service}__{function}" if service else function)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class CallReport(NamedTuple):
    """A call that a delegate has made by itself."""

    name: str
    parameters: Any
    output: Any
    side_effect: SideEffect
    error: str | None


class CallSignals:
    """What passes between a call and whoever makes it while it is under way. `deadline` in microseconds of
    the wall clock; `show` is given each value of progress with its number, counted from 0."""

    __slots__ = ("cancelled", "deadline", "show", "shown", "usage")

    def __init__(self, deadline: int | None = None, show: Callable[[int, Any], None] | None = None) -> None:
        self.cancelled = False
        self.deadline = deadline
        self.show = show
        self.shown = 0
        self.usage: Usage | msgspec.UnsetType = msgspec.UNSET  # of the run that the call began


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a function may ask about its call, by a parameter named `ctx`.

    `context` is the agent's `context` of page 001, never seen by a model. `idempotency_key` is the same for
    all attempts of one call: a function that stores it with its effect can make that effect once.
    `traceparent` is the W3C trace context of the call, None when the run is not traced, and `tracestate` what
    the caller that began the trace sent beside it.
    """

    context: Any
    workflow_id: str
    step_id: str
    iteration: int | None
    call_id: str
    idempotency_key: str
    attempt: int
    traceparent: str | None = None
    tracestate: str | None = None
    signals: CallSignals = msgspec.field(default_factory=CallSignals)
    recorder: Callable[[CallReport], Awaitable[str | None]] | None = None

    async def record_tool_call(
        self,
        name: str,
        parameters: Any,
        output: Any = None,
        *,
        side_effect: SideEffect = "external",
        error: str | None = None,
    ) -> str:
        """Record a call that this delegate has made; return the id of the record, which is durable then.

        The record is the evidence of mail and messages (page 004 §9): `output` is what the called function
        returned, such as {message_id}. `parameters` and `output` are JSON values. `error`: the call failed.
        Raises ToolError (`not_recordable`) if the step is over, or its work is no delegate's.
        """
        recorded = None
        if self.recorder is not None:
            recorded = await self.recorder(CallReport(name, parameters, output, side_effect, error))
        if recorded is None:
            message = f"{name} was not recorded: only a delegate records calls, while its step is open"
            raise ToolError.of("tool", "not_recordable", message)
        return recorded

    @property
    def deadline(self) -> datetime | None:
        """When the call is given up, in UTC; None where it has no limit of its own."""
        at = self.signals.deadline
        return None if at is None else datetime.fromtimestamp(at / 1e6, UTC)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the call was cancelled or took too long.

        An asynchronous function is cancelled by itself. One that runs in a thread cannot be stopped from
        outside: it should look here between two pieces of work, and return.
        """
        return self.signals.cancelled

    def progress(self, value: Any) -> None:
        """Show readers of the run's stream how far the call is: any JSON up to 64 KiB. May be called in any
        thread; does not block.

        It is not stored, so nothing may depend on it. The progress of a sensitive function is not shown.
        Raises ValueError for what is no JSON, or larger.
        """
        signals = self.signals
        if signals.show is not None:
            signals.show(signals.shown, value)
            signals.shown += 1

    @property
    def logger(self) -> Any:
        """A structlog logger over the standard `agentflow.function`, which names run, step and call."""
        return get_logger("agentflow.function").bind(
            workflow_id=self.workflow_id, step_id=self.step_id, call_id=self.call_id
        )


class ToolError(AgentflowError):
    """The function could not be called, or it failed; `.info` says how.

    `executed` False: nothing was begun. `unknown`: it may have had its effect all the same. `retry_after`:
    seconds that the service asked to wait.
    """

    code = "tool_execution_failed"

    def __init__(
        self,
        info: ErrorInfo,
        *,
        executed: bool = True,
        unknown: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(info.message)
        self.info = info
        self.executed = executed
        self.unknown = unknown
        self.retry_after = retry_after

    @classmethod
    def of(
        cls,
        category: Category,
        code: str,
        message: str,
        *,
        executed: bool = True,
        unknown: bool = False,
        retry_after: float | None = None,
        **more: Any,
    ) -> ToolError:
        """Return the error of these members of an ErrorInfo; `retryable` follows from the category."""
        retryable = category in ("transient", "timeout", "rate_limited")
        info = ErrorInfo(category=category, code=code, message=message, retryable=retryable, **more)
        return cls(info, executed=executed, unknown=unknown, retry_after=retry_after)


# Equal by identity: a schema cannot be hashed, and two services never share a tool.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Tool:
    """A function of a service. `timeout` in seconds, `max_output_bytes` of JSON.

    An undeclared side effect counts as external: unknown is unsafe. `declared` tells the two apart.
    `approval`: its document wants a person to agree to each call. `private`: offered only where it is named.
    """

    service: str
    function: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    side_effect: SideEffect = "external"
    idempotent: bool = False
    timeout: float = 60.0
    sensitive: bool = False
    private: bool = False
    approval: bool = False
    declared: bool = False
    max_output_bytes: int = 4 << 20
    name: str = field(init=False)
    schema_hash: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", tool_name(self.service, self.function))
        digest = hashlib.sha256(canonical_json(self.input_schema)).hexdigest()
        object.__setattr__(self, "schema_hash", f"sha256:{digest}")

    @property
    def self_checked(self) -> bool:
        """True if the call itself checks its arguments by the schema."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PythonTool(Tool):
    """A Python function. `arguments` is the Struct that its arguments are converted to. `is_async`: it is
    called on the event loop, else in a thread."""

    call: Callable[..., Any]
    is_async: bool
    accepts_ctx: bool
    arguments: type[Any]
    scalars: dict[str, type[Any]] | None = field(init=False)
    """Types of the arguments if all are required, and scalars that need no conversion; else None."""

    def __post_init__(self) -> None:
        Tool.__post_init__(self)
        object.__setattr__(self, "scalars", _scalars(self.arguments))

    @property
    def self_checked(self) -> bool:
        return True


def _scalars(arguments: type[Any]) -> dict[str, type[Any]] | None:
    fields = msgspec.structs.fields(arguments)
    plain = all(f.required and f.encode_name == f.name and f.type in (bool, int, str) for f in fields)
    return {f.name: f.type for f in fields} if plain else None


def settled(
    spec: ServiceSpec | None,
    function: str,
    *,
    side_effect: SideEffect | None = None,
    idempotent: bool | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Return the options of a Tool: what the document says about the function wins over what the function,
    its server or its description says of itself (the arguments; None = says nothing)."""
    said: Mapping[str, Any] = (spec.functions.get(function) or {}) if spec is not None else {}
    declared: SideEffect | None = said.get("side_effect") or side_effect
    effect: SideEffect = declared or "external"
    repeatable: bool | None = said.get("idempotent", idempotent)
    default_timeout = spec.timeout if spec is not None else 60.0
    return {
        "description": said.get("description") or description or "",
        "side_effect": effect,
        "idempotent": effect in ("none", "read") if repeatable is None else repeatable,
        "timeout": float(said.get("timeout") or timeout or default_timeout),
        "private": bool(said.get("private", False)),
        "approval": bool(said.get("approval", False)),
        "declared": declared is not None,
    }
