"""What the definition of a run says of its calls, for their spans: events name steps and services only.

A definition is stored once by its hash, so that the spans of any past run can be made with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from agentflow.definition.bound_nodes import bound_nodes
from agentflow.definition.graph import ServiceSpec
from agentflow.definition.ir import Workflow, decode_ir
from agentflow.telemetry import conventions as c

__all__ = ["NO_FACTS", "Describe", "Facts", "facts_of"]

Describe = Callable[[str, str], str | None]
"""Returns the description of a function that a process knows, by its service and the name that models see."""

_PORTS: Final = {"http": 80, "https": 443}


class Facts:
    """Facts of one definition."""

    __slots__ = ("_described", "_json_steps", "_services", "_steps")

    def __init__(self, workflow: Workflow | None = None) -> None:
        nodes = () if workflow is None else tuple(bound_nodes(workflow))
        agents = {node.id: node.agent for node in nodes if node.agent is not None}
        self._steps = frozenset(agents)
        self._json_steps = frozenset(
            name for name, agent in agents.items() if agent.output_schema is not None
        )
        services = {} if workflow is None else workflow.services
        self._services = {name: _service(spec) for name, spec in services.items()}
        self._described: dict[tuple[str, str], str] = {
            (name, function): said["description"]
            for name, spec in services.items()
            for function, said in spec.functions.items()
            if said.get("description")
        }

    def model_call(self, step_id: str) -> dict[str, Any]:
        """Return the attributes of a model's call of a step."""
        if step_id not in self._steps:
            return {}
        return {c.OUTPUT_TYPE: "json" if step_id in self._json_steps else "text"}

    def tool_call(self, service: str | None, name: str, describe: Describe | None) -> dict[str, Any]:
        """Return the attributes of the call of a function, by the name that a model sees."""
        found = dict(self._services.get(service or "", {}))
        if not service:
            return found
        about = self._described.get((service, name.removeprefix(f"{service}__")))
        if about is None and describe is not None:
            about = describe(service, name)
        if about:
            found[c.TOOL_DESCRIPTION] = about
        return found


NO_FACTS: Final = Facts()


def facts_of(definition: bytes | None) -> Facts:
    """Return the facts of a stored definition; none if it is not there, or of another release."""
    if definition is None:
        return NO_FACTS
    try:
        return Facts(decode_ir(definition))
    except Exception:  # a definition of another release: spans go without
        return NO_FACTS


def _service(spec: ServiceSpec) -> Mapping[str, Any]:
    options = spec.options
    if spec.type == "mcp":
        is_process = options.get("transport") == "stdio"
        found: dict[str, Any] = {
            c.MCP_METHOD: "tools/call",
            c.NETWORK_TRANSPORT: "pipe" if is_process else "tcp",
        }
        if not is_process:
            found[c.NETWORK_PROTOCOL] = "http"
        return found | c.server_attributes(_address(options.get("url")))
    if spec.type in ("http", "openapi"):
        return c.server_attributes(_address(options.get("base_url")))
    return {}


def _address(url: object) -> str | None:
    """Return host and port of a URL; None without one."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return None if host is None or port is None else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
