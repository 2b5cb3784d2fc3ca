"""A tool: one function that an agent may call, with what the runtime must know about calling it.

Identity is (service, function); `name` is what a model sees (page 001 §5.6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.errors import AgentflowError

__all__ = ["Service", "SideEffect", "Tool", "ToolContext", "ToolError", "tool_name"]

SideEffect = Literal["none", "read", "write", "external", "irreversible"]

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64


def tool_name(service: str, function: str) -> str:
    """`service__function` in the characters that providers allow; a long one ends in a hash of all of it."""
    name = _OUTSIDE.sub("_", f"{service}__{function}" if service else function)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a function may ask about its call, by a parameter named `ctx`.

    `context` is the agent's `context` of page 001, never seen by a model. `idempotency_key` is the same for
    all attempts of one call: a function that stores it with its effect can make that effect once.
    """

    context: Any
    workflow_id: str
    step_id: str
    iteration: int | None
    call_id: str
    idempotency_key: str
    attempt: int


class ToolError(AgentflowError):
    """The function could not be called, or it failed; `.info` says how."""

    code = "tool_execution_failed"

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function of a service. `timeout` in seconds, `max_output_bytes` of JSON.

    An undeclared side effect counts as external: unknown is unsafe. `declared` tells the two apart.
    """

    service: str
    function: str
    description: str
    input_schema: dict[str, Any]
    call: Callable[..., Any]
    is_async: bool
    accepts_ctx: bool
    arguments: type[Any]
    output_schema: dict[str, Any] | None = None
    side_effect: SideEffect = "external"
    idempotent: bool = False
    timeout: float = 60.0
    sensitive: bool = False
    private: bool = False
    declared: bool = False
    max_output_bytes: int = 1 << 20
    name: str = field(init=False)
    schema_hash: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", tool_name(self.service, self.function))
        digest = hashlib.sha256(canonical_json(self.input_schema)).hexdigest()
        object.__setattr__(self, "schema_hash", f"sha256:{digest}")


@dataclass(frozen=True, slots=True)
class Service:
    """Functions under one name, called by one actor with at most `spec.max_concurrency` at once."""

    name: str
    spec: ServiceSpec
    tools: dict[str, Tool]

    @staticmethod
    def of(name: str, *functions: Callable[..., Any], max_concurrency: int = 8) -> Service:
        """A service of Python functions, for registering with a Runtime. Raises TypeError for a function
        whose parameters cannot be described by a JSON Schema."""
        from agentflow.tools.python import make_tool

        tools = [make_tool(name, f) for f in functions]
        spec = ServiceSpec(type="python", max_concurrency=max_concurrency)
        return Service(name, spec, {t.function: t for t in tools})
