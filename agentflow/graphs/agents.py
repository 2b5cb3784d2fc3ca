"""Agents as Python values, and what they exchange with other nodes (page 002 §11, §16)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.ir import AgentSpec, FunctionRef
from agentflow.definition.node import ModelRef
from agentflow.errors import ConfigurationError

__all__ = ["Agent", "AgentExecutor", "AgentResponse", "Message", "slug"]

_OUTSIDE = re.compile(r"[^a-z0-9_-]+")


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation. `name` is who said it, `data` what stands behind the text."""

    role: Literal["user", "assistant", "system"]
    text: str
    name: str | None = None
    data: Any = None


class AgentResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent answered. `data` is its output if it has a schema; `requests` are what it asks people."""

    messages: list[Message] = []
    text: str = ""
    data: Any = None
    requests: list[Any] = []
    usage: Usage | None = None
    workflow_id: str | None = None


class Agent:
    """An agent: a prompt, a model, tools and the schema of its answer (page 000 §3).

    `model` is `provider:model` or an alias, None the default of the Runtime; `tools` are `service.function`.
    `examples` are (input, answer) pairs that the prompt shows. Raises ConfigurationError for what is no such.
    """

    def __init__(
        self,
        name: str,
        system_prompt: str,
        *,
        description: str = "",
        model: str | ModelRef | None = None,
        tools: Sequence[str] = (),
        output_schema: Mapping[str, Any] | None = None,
        examples: Sequence[tuple[str, str]] = (),
    ) -> None:
        if not name.strip() or not system_prompt.strip():
            raise ConfigurationError("an agent needs a name and a system_prompt")
        self.name = name
        self.system_prompt = system_prompt
        self.description = description
        self.model = model
        self.tools = tuple(_function(tool, name) for tool in tools)
        self.output_schema = None if output_schema is None else dict(output_schema)
        self.examples = tuple(examples)
        self.handoffs: dict[str, str] = {}

    def with_name(self, name: str) -> Agent:
        """Return an equal agent of another name."""
        made = copy.copy(self)
        made.name = name
        return made

    def with_output_schema(self, schema: Mapping[str, Any] | None) -> Agent:
        """Return an equal agent that answers by this schema; None: with text."""
        made = copy.copy(self)
        made.output_schema = None if schema is None else dict(schema)
        return made

    def with_handoffs(self, handoffs: Mapping[str, str]) -> Agent:
        """Return an equal agent that may hand over to these nodes, each with what it is good for."""
        made = copy.copy(self)
        made.handoffs = dict(handoffs)
        return made

    def spec(self) -> AgentSpec:
        """Return the agent of the IR."""
        from agentflow.definition.expressions import escape_braces

        shown = "".join(f"\n\nInput: {given}\nAnswer: {wanted}" for given, wanted in self.examples)
        prompt = self.system_prompt + (f"\n\nExamples:{shown}" if shown else "")
        return AgentSpec(
            name=self.name,
            system_prompt=escape_braces(prompt),
            model=self.model,
            output_schema=self.output_schema,
            functions=self.tools,
            exchanges="messages",
            handoffs=self.handoffs,
        )

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"


class AgentExecutor:
    """An agent as a node; without `id`, the slug of its name."""

    def __init__(self, agent: Agent, id: str | None = None) -> None:
        self.agent = agent
        self.id = id or slug(agent.name)


def slug(name: str) -> str:
    """Return a name as a step id: lower case, other characters than letters, digits, `_` and `-` as `_`."""
    found = _OUTSIDE.sub("_", name.strip().lower()).strip("_")
    return found if found[:1].isalpha() else f"n_{found}".rstrip("_")


def _function(tool: Any, agent: str) -> FunctionRef:
    if not isinstance(tool, str):
        shown = getattr(tool, "__name__", None) or type(tool).__name__
        raise ConfigurationError(
            f'a tool of agent "{agent}" must be text as service.function, not {shown}',
            hint=f'give Runtime(services=[Service.of("own", {shown})]) and name it as "own.{shown}"'
            if callable(tool)
            else None,
        )
    service, dot, function = tool.partition(".")
    if not dot or not service or not function:
        raise ConfigurationError(f'tool "{tool}" of agent "{agent}" is not service.function')
    return FunctionRef(service, function)
