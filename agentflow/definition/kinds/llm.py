"""`llm`: one question to a model, with calls of functions and a checked answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from agentflow.definition.node import (
    AgentSpec,
    Binds,
    FunctionRef,
    ModelRef,
    NodeBase,
    ToolDeclaration,
    next_port,
)

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "rounded"
POLICY_OPTION = "llm_node_policy"
TAKES = frozenset({"approval", "budget", "calls", "dependency", "policy"})

_CHOICES = ("auto", "none", "required")


class LlmNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="llm", dict=True):
    """Sends `system`, the messages at `messages_path` and `prompt`; the templates always give text.

    `model` is `provider:model` or an alias. The answer is text, or with `output_schema` a value of it, after
    2 repair turns at most. `tools` are `service.function`, or declare a registered function with the schema
    that the model sees; at most `max_tool_roundtrips` turns may call them. A failed call fails the node if
    `tool_errors` is `fail`; otherwise the model reads the error. `heal` reads an answer that is nearly JSON.
    Without `send_schema` only the prompt describes it. `stream` shows the answer while it is written, with
    `stream_json_as_text` as lines `key: value` when its object closes.
    """

    model: str
    prompt: str
    append_prompt_as_user: bool = True
    next: str | None = None
    system: str | None = None
    messages_path: str | None = None
    output_schema: dict[str, Any] | bool | None = None
    send_schema: bool = True
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    stream_json_as_text: bool = False
    heal: bool = False
    tools: tuple[str | ToolDeclaration, ...] = ()
    tool_errors: Literal["return", "fail"] = "return"
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    max_tool_roundtrips: int = 1

    @cached_property
    def agent(self) -> AgentSpec:
        """The same as an agent, whose turns it shares."""
        provider, colon, name = self.model.partition(":")
        named = (("temperature", self.temperature), ("top_p", self.top_p), ("max_tokens", self.max_tokens))
        parameters: dict[str, Any] = {key: value for key, value in named if value is not None}
        if self.tool_choice is not None:
            parameters["tool_choice"] = self.tool_choice
        functions = (_name(tool).rpartition(".") for tool in self.tools)
        return AgentSpec(
            name=self.id,
            system_prompt=self.system or "",
            model=ModelRef(
                provider=provider if colon else "", model=name if colon else self.model, parameters=parameters
            ),
            output_schema=self.output_schema,
            send_schema=self.send_schema,
            functions=tuple(FunctionRef(service, function) for service, _, function in functions),
            max_turns=self.max_tool_roundtrips + 1,
        )


Spec = LlmNode
ports = next_port


def binds(spec: LlmNode) -> Binds:
    """Return its model and functions; their fields are the node's own."""
    declared = tuple((i, tool) for i, tool in enumerate(spec.tools) if isinstance(tool, ToolDeclaration))
    return Binds(agent=spec.agent, agent_field="", declared=declared)


def adapted(spec: LlmNode, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model, and whether it heals and streams, as the run says."""
    changed: dict[str, Any] = {}
    if options.get("model") is not None:
        changed["model"] = options["model"]
    if options.get("healing") and spec.output_schema is not None:
        changed["heal"] = True
    if options.get("workflow_streaming"):
        changed["stream"] = True
    if options.get("node_llm_streaming") is False:
        changed |= {"stream": False, "stream_json_as_text": False}
    return changed


def _name(tool: str | ToolDeclaration) -> str:
    return tool.name if isinstance(tool, ToolDeclaration) else tool


def check(spec: LlmNode, at: NodeReport) -> None:
    """Check templates, limits, schema and functions."""
    at.not_blank("model", spec.model)
    if spec.append_prompt_as_user:
        at.not_blank("prompt", spec.prompt)
    elif spec.messages_path is None:
        message = f'"{spec.id}" sends neither a prompt nor messages'
        at.error("E_CONFLICTING_FIELDS", message, "append_prompt_as_user", "add messages_path")
    at.template("prompt", spec.prompt)
    at.template("system", spec.system)
    if spec.messages_path is not None:
        at.path("messages_path", spec.messages_path)
    if spec.output_schema is not None:
        at.schema("output_schema", spec.output_schema)
    at.at_least_one(spec, "", "max_tokens")
    at.range("max_tool_roundtrips", spec.max_tool_roundtrips, least=0, code="E_INVALID_TOOL_ROUNDTRIPS")
    for field in ("temperature", "top_p"):
        value = getattr(spec, field)
        if value is not None:
            at.range(field, value, least=0)
    _check_tools(spec, at)
    if spec.stream and spec.heal:
        message = f'"{spec.id}" heals its answer, so that streaming is off'
        at.warning("W_STREAM_HEAL_CONFLICT", message, "stream", "keep stream or heal")
    if spec.stream_json_as_text and not spec.stream:
        message = f'"{spec.id}" does not stream: stream_json_as_text has no effect'
        at.warning("W_IGNORED_FIELD", message, "stream_json_as_text", "write stream: true")
    if spec.tool_errors != "return" and not spec.tools:
        at.warning("W_IGNORED_FIELD", f'"{spec.id}" has no tools', "tool_errors", "remove it")


def _check_tools(spec: LlmNode, at: NodeReport) -> None:
    seen: set[str] = set()
    for i, tool in enumerate(spec.tools):
        name, field = _name(tool), f"tools/{i}"
        service, dot, function = name.rpartition(".")
        is_declared = isinstance(tool, ToolDeclaration)
        if not function.strip() or not (service.strip() or (is_declared and not dot)):
            rule = "has no name" if is_declared else "is not written as service.function"
            at.error("E_EMPTY_TOOL_NAME", f'tool "{name}" {rule}', field)
        elif name in seen:
            at.error("E_DUPLICATE_TOOL_NAME", f'"{spec.id}" names the tool {name} twice', field)
        seen.add(name)
        if isinstance(tool, ToolDeclaration):
            _check_schemas(tool, field, at)
    choice = spec.tool_choice
    if choice is None:
        return
    if not spec.tools:
        at.conflict("tool_choice", f'"{spec.id}" has no tools', "name some, or leave tool_choice out")
    if not isinstance(choice, dict):
        return
    function: Any = choice.get("function")
    name: Any = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        hint = f'write one of {", ".join(_CHOICES)}, or {{"type": "function", "function": {{"name": …}}}}'
        at.error("E_INVALID_TOOL_CHOICE", "tool_choice names no function", "tool_choice", hint)
    elif not any(name in (tool, tool.rpartition(".")[2]) for tool in map(_name, spec.tools)):
        at.error("E_UNKNOWN_TOOL_CHOICE", f'"{name}" is not one of the tools', "tool_choice/function/name")


def _check_schemas(tool: ToolDeclaration, field: str, at: NodeReport) -> None:
    if tool.input_schema is None:
        message = f'tool "{tool.name}" has no input_schema'
        at.error("E_MISSING_TOOL_SCHEMA", message, field, "write its JSON Schema")
    for key in ("input_schema", "output_schema"):
        schema = getattr(tool, key)
        if schema is not None:
            at.schema(f"{field}/{key}", schema, "E_INVALID_TOOL_SCHEMA")
