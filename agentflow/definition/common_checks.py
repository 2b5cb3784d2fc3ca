"""Checks that the step document and the agent list share: schemas, services, braces of templates."""

from __future__ import annotations

import re
from typing import Any, cast

from agentflow.definition.expressions import escape_braces
from agentflow.definition.ir import AgentExample, ServiceSpec
from agentflow.definition.report import Report, shown
from agentflow.definition.schema_checks import schema_problems
from agentflow.definition.source_tree import Positions
from agentflow.definition.structure import Found
from agentflow.definition.urls import address_problem, path_problem

__all__ = [
    "check_embedded_schema",
    "checked_schema",
    "compile_services",
    "escaped",
    "examples_of",
    "service_names",
    "warn_undeclared",
]


def check_embedded_schema(found: Found, code: str, prefix: str, report: Report) -> dict[str, Any] | bool:
    """Return the schema in `found`, or True if it is none; problems are reported under `code`, each at its
    place."""
    return checked_schema(found.value, found, code, prefix, report)


def checked_schema(
    schema: dict[str, Any] | bool, home: Found, code: str, prefix: str, report: Report
) -> dict[str, Any] | bool:
    """Return what `check_embedded_schema` does, for a schema whose members stand in `home`."""
    problems = schema_problems(schema)
    if not problems:
        return schema
    positions = Positions(home.node)
    for problem in problems:
        place = positions.at(problem.path)
        message = prefix + shown(problem.message, 200)
        hint = problem.hint or _schema_hint(problem.path, problem.message)
        report.error(problem.code or code, message, place, home.pointer + problem.path, hint)
    return True


_TYPE_WORDS = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "double": "number",
    "str": "string",
    "text": "string",
    "list": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}


def _schema_hint(path: str, message: str) -> str | None:
    """Return what helps with the slips that schemas have most often."""
    key = path.rpartition("/")[2]
    found = re.match(r'"(\w+)" is not a JSON Schema type', message)
    if found is not None:
        meant = _TYPE_WORDS.get(found[1].lower())
        return f'did you mean "{meant}"?' if meant else None
    if key == "required":
        return 'list the required names beside "properties": required: [a, b]'
    if key == "properties":
        return "write each property as a key: name: {type: string}"
    if re.match(r'"-?[0-9.]+" is not (?:a number|an integer)\b', message):
        return "write the number without quotes"
    return None


def service_names(document: Found) -> list[str] | None:
    """Return the services that the document declares, right or wrong; None if it declares none at all."""
    services = document.get("services")
    return [name for name in services.json() if not name.startswith("x-")] if services is not None else None


def warn_undeclared(found: Found, declared: list[str] | None, report: Report) -> None:
    """Report W_SERVICE_UNDECLARED for a service name that the given `services` do not have."""
    if declared is not None and found.value not in declared:
        report.warning(
            "W_SERVICE_UNDECLARED",
            f'"{shown(found.value)}" is not declared here',
            found.place,
            found.pointer,
            report.did_you_mean(found.value, declared),
        )


def compile_services(document: Found, report: Report) -> dict[str, ServiceSpec]:
    """Return the declared services; a type or option that cannot be run is refused."""
    services = document.get("services")
    if services is None:
        return {}
    return {name: _service(found, report) for name, found in services.items()}


def _service(found: Found, report: Report) -> ServiceSpec:
    kind = found.get("type")
    _check_transport(found, report)
    functions: dict[str, dict[str, Any]] = {}
    declared = found.get("functions") if kind is not None else None
    for name, function in declared.items() if declared else ():
        for key in ("input_schema", "output_schema"):
            schema = function.get(key)
            if schema is not None:
                check_embedded_schema(schema, "E_INPUT_SCHEMA", f'function "{shown(name)}": ', report)
        path = function.get("path")
        if path is not None and (wrong := path_problem(path.value)) is not None:
            report.error("E_VALUE", f'path "{shown(path.value)}" {wrong}', path.place, path.pointer)
        functions[name] = {
            key: option.json() if key == "query" else option.value for key, option in function.items()
        }
    include = found.get("include")
    own = ["type", "timeout", "max_concurrency", "include", "functions", "send_context"]
    if not found.plain("search", False):
        own.append("search")  # the default, which options leave out
    return ServiceSpec(
        type=kind.value if kind else "",
        timeout=found.plain("timeout", 60.0),
        max_concurrency=found.plain("max_concurrency", 8),
        include=tuple(item.value for item in include.value) if include else None,
        functions=functions,
        send_context=found.plain("send_context", True),
        options={key: option.json() for key, option in found.items() if key not in own},
    )


def _check_transport(found: Found, report: Report) -> None:
    transport = found.plain("transport")
    needed = {"stdio": "command", "streamable_http": "url"}.get(transport or "")
    if needed is not None and not found.has(needed):
        report.error(
            "E_REQUIRED", f'service with transport {transport} has no "{needed}"', found.key, found.pointer
        )
    for key in ("url", "base_url", "document"):
        address = found.get(key)
        if address is None or (key == "document" and "://" not in address.value):
            continue
        if (wrong := address_problem(address.value)) is not None:
            # Not the address itself: it may have a password in it.
            hint = "write https://HOST/PATH" if "://" not in address.value else None
            report.error("E_VALUE", f"{key} {wrong}", address.place, address.pointer, hint)


def examples_of(agent: Found) -> tuple[AgentExample, ...]:
    """Return the examples of an agent, as they stand: they are no templates."""
    found = agent.get("examples")
    pairs = (
        [(one.get("input"), one.get("output")) for one in cast("list[Found]", found.value)] if found else []
    )
    return tuple(AgentExample(input=a.json(), output=b.json()) for a, b in pairs if a and b)


def escaped(value: Any) -> Any:
    """Return a template of the document as a template of the graph, in which `{{` opens an expression too."""
    if isinstance(value, str):
        return escape_braces(value)
    if isinstance(value, list):
        return [escaped(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
