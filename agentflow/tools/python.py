"""Python functions as tools: the marker, the schema from annotations, the import of a document's module.

A schema is made of the parameters' annotations: a model's arguments are checked against it and then
converted to the annotated types, so a function gets what it declares.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast, get_type_hints, overload

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec
from agentflow.tools.tool import Service, SideEffect, Tool

__all__ = ["function", "load_python_service", "make_tool"]

_MARK = "__agentflow_function__"
F = TypeVar("F", bound=Callable[..., Any])


class _Marked(msgspec.Struct, frozen=True, kw_only=True):
    """What `@function` was told."""

    name: str | None = None
    description: str | None = None
    side_effect: SideEffect | None = None
    idempotent: bool | None = None
    timeout: float | None = None
    sensitive: bool = False


@overload
def function(f: F, /) -> F: ...
@overload
def function(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: SideEffect | None = None,
    idempotent: bool | None = None,
    timeout: float | None = None,
    sensitive: bool = False,
) -> Callable[[F], F]: ...
def function(f: Any = None, /, **options: Any) -> Any:
    """Mark a function, sync or async, as one that a `python` service offers (page 001 §1.4).

    `side_effect`: none, read, write, external (the default: unknown is unsafe) or irreversible.
    `idempotent`: a repeated call with the same `ctx.idempotency_key` has its effect once (default: true for
    none and read). `timeout` in seconds. `sensitive`: its output is kept out of spans.
    """

    def mark(target: Any) -> Any:
        setattr(target, _MARK, _Marked(**options))
        return target

    return mark if f is None else mark(f)


def make_tool(service: str, f: Callable[..., Any], spec: ServiceSpec | None = None) -> Tool:
    """The tool of a function. Raises TypeError when its parameters cannot be described."""
    marked: _Marked = getattr(f, _MARK, _Marked())
    name = marked.name or getattr(f, "__name__", "function")
    said: dict[str, Any] = (spec.functions.get(name) or {}) if spec is not None else {}
    arguments, accepts_ctx = _arguments(f, name)
    declared: SideEffect | None = said.get("side_effect") or marked.side_effect
    side_effect: SideEffect = declared or "external"
    idempotent = said.get("idempotent", marked.idempotent)
    default_timeout = spec.timeout if spec is not None else 60.0
    return Tool(
        service=service,
        function=name,
        description=said.get("description") or marked.description or inspect.getdoc(f) or "",
        input_schema=_schema(arguments),
        call=f,
        is_async=inspect.iscoroutinefunction(f),
        accepts_ctx=accepts_ctx,
        arguments=arguments,
        side_effect=side_effect,
        idempotent=side_effect in ("none", "read") if idempotent is None else idempotent,
        timeout=float(said.get("timeout") or marked.timeout or default_timeout),
        sensitive=marked.sensitive,
        private=bool(said.get("private", False)),
        declared=declared is not None,
    )


def _arguments(f: Callable[..., Any], name: str) -> tuple[type[Any], bool]:
    """A Struct with one field for each parameter but `ctx`."""
    hints = get_type_hints(f, include_extras=True)
    fields: list[Any] = []
    accepts_ctx = False
    for parameter in inspect.signature(f).parameters.values():
        if parameter.name == "ctx":
            accepts_ctx = True
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: parameter {parameter} cannot be given by name")
        annotation = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            default = parameter.default
            mutable = isinstance(default, list | dict | set)
            value = (
                msgspec.field(default_factory=functools.partial(type(cast(Any, default)), default))
                if mutable
                else default
            )
            fields.append((parameter.name, annotation, value))
    struct = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return struct, accepts_ctx


def _schema(arguments: type[Any]) -> dict[str, Any]:
    (root,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = components.pop(arguments.__name__, root)
    schema: dict[str, Any] = {k: v for k, v in own.items() if k != "title"}
    schema.setdefault("properties", {})
    if components:
        schema["$defs"] = components
    return schema


def load_python_service(
    name: str, spec: ServiceSpec, folder: Path | None
) -> tuple[Service | None, list[Diagnostic]]:
    """Import the module of a declared service and collect its functions: those that are marked, and those
    that `include` names. The module is looked up in `folder` first, then on `sys.path`.

    Runs the module's code. Problems are diagnostics of phase B without a position; nothing is raised.
    """
    module_name = str(spec.options.get("module", ""))
    try:
        module = _import(module_name, folder)
    except Exception as error:  # the module's own code may raise anything
        reason = f"{type(error).__name__}: {error}"
        hint = None
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            where = f"in {folder} or " if folder is not None else ""
            hint = f"put {module_name}.py beside the document"
            reason = f'no module "{module_name}" {where}on the import path'
        return None, [_problem("E_SERVICE_UNAVAILABLE", f'service "{name}": {reason}', hint)]
    return _collect(name, spec, module)


def _collect(name: str, spec: ServiceSpec, module: ModuleType) -> tuple[Service | None, list[Diagnostic]]:
    problems: list[Diagnostic] = []
    wanted = dict.fromkeys(spec.include or ())
    tools: dict[str, Tool] = {}
    members = vars(module)
    for key in wanted:
        if not callable(members.get(key)):
            message = f'service "{name}": module has no function "{key}" (named in include)'
            problems.append(_problem("E_SERVICE_UNAVAILABLE", message, None))
    for key, value in members.items():
        own = getattr(value, "__module__", None) == module.__name__
        if not callable(value) or not (key in wanted or (own and hasattr(value, _MARK))):
            continue
        if wanted and key not in wanted:
            continue
        try:
            tool = make_tool(name, value, spec)
        except (TypeError, NameError) as error:
            problems.append(_problem("E_TOOL_SCHEMA", f'function "{key}" of service "{name}": {error}', None))
            continue
        tools[tool.function] = tool
    if not tools and not problems:
        message = f'service "{name}" offers no function'
        problems.append(_problem("E_SERVICE_UNAVAILABLE", message, "mark one with @agentflow.function"))
    return (None, problems) if problems else (Service(name, spec, tools), [])


def _import(module: str, folder: Path | None) -> ModuleType:
    """A module beside the document gets a name of its own, so that two folders may both have a `tools`."""
    if folder is not None:
        path = (folder / Path(*module.split("."))).with_suffix(".py")
        if path.is_file():
            return _import_file(path.resolve(), folder)
    return importlib.import_module(module)


def _import_file(path: Path, folder: Path) -> ModuleType:
    stamp = path.stat().st_mtime_ns
    key = hashlib.sha256(f"{path}:{stamp}".encode()).hexdigest()[:12]
    name = f"agentflow_services.{path.stem}_{key}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    beside = str(folder.resolve())
    added = beside not in sys.path
    if added:  # so that the module can import its neighbours
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        if added:
            sys.path.remove(beside)
    return module


def _problem(code: str, message: str, hint: str | None) -> Diagnostic:
    return Diagnostic(code=code, severity="error", message=message, hint=hint)
