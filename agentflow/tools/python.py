"""Python functions as tools: the marker, and the service that a module is.

A schema is made of the parameters' annotations: a model's arguments are checked against it and then
converted to the annotated types, so a function gets what it declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args, overload

import msgspec

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import ServiceSpec
from agentflow.tools.modules import import_service_module
from agentflow.tools.signature import describe
from agentflow.tools.tool import Service, SideEffect, Tool

__all__ = ["function", "load_python_service", "make_tool"]

_MARK = "__agentflow_function__"
_MAX_REASON = 300
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
    none and read). `timeout` in seconds. `sensitive`: its output is kept out of spans. Raises TypeError or
    ValueError for an option that is none of these.
    """
    side_effect, timeout = options.get("side_effect"), options.get("timeout")
    if side_effect is not None and side_effect not in get_args(SideEffect):
        raise ValueError(f'side_effect "{side_effect}" is not one of {", ".join(get_args(SideEffect))}')
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout {timeout} is not a number of seconds above 0")
    marked = _Marked(**options)

    def mark(target: Any) -> Any:
        if not callable(target):
            raise TypeError(
                f"@function marks functions, not {type(target).__name__}; write its options by name"
            )
        setattr(target, _MARK, marked)
        return target

    return mark if f is None else mark(f)


def make_tool(service: str, f: Callable[..., Any], spec: ServiceSpec | None = None) -> Tool:
    """The tool of a function. What `spec` says about it wins over the marker, the marker over the code.

    Raises TypeError, ValueError or NameError when its parameters cannot be described.
    """
    marked = _marked(f) or _Marked()
    name = marked.name or getattr(f, "__name__", None) or type(f).__name__
    said: dict[str, Any] = (spec.functions.get(name) or {}) if spec is not None else {}
    signature = describe(f)
    declared: SideEffect | None = said.get("side_effect") or marked.side_effect
    side_effect: SideEffect = declared or "external"
    idempotent: bool | None = said.get("idempotent", marked.idempotent)
    default_timeout = spec.timeout if spec is not None else 60.0
    return Tool(
        service=service,
        function=name,
        description=said.get("description") or marked.description or inspect.getdoc(f) or "",
        input_schema=signature.schema,
        call=f,
        is_async=inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(getattr(f, "__call__", None)),  # noqa: B004
        accepts_ctx=signature.accepts_ctx,
        arguments=signature.arguments,
        side_effect=side_effect,
        idempotent=side_effect in ("none", "read") if idempotent is None else idempotent,
        timeout=float(said.get("timeout") or marked.timeout or default_timeout),
        sensitive=marked.sensitive,
        private=bool(said.get("private", False)),
        declared=declared is not None,
    )


def _marked(f: Any) -> _Marked | None:
    found = getattr(f, _MARK, None)
    return found if isinstance(found, _Marked) else None


def load_python_service(
    name: str, spec: ServiceSpec, folder: Path | None
) -> tuple[Service | None, list[Diagnostic]]:
    """Import the module of a declared service and collect its functions: those that are marked, and those
    that `include` names. The module is looked up in `folder` first, then on `sys.path`.

    Runs the module's code. Problems are diagnostics of phase B without a position, and then there is no
    service; nothing is raised.
    """
    module_name = str(spec.options.get("module", ""))
    try:
        module = import_service_module(module_name, folder)
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        return None, [_unavailable(name, *_reason(error, module_name))]
    problems: list[Diagnostic] = []
    tools: dict[str, Tool] = {}
    for key, f in _functions(module, spec, name, problems):
        try:
            tool = make_tool(name, f, spec)
        except (TypeError, ValueError, NameError) as error:
            message = f'function "{key}" of service "{name}": {_short(str(error))}'
            problems.append(_problem("E_TOOL_SCHEMA", message))
            continue
        if tool.function in tools:
            message = f'service "{name}" has two functions "{tool.function}"'
            problems.append(_problem("E_TOOL_DUPLICATE", message, "give one of them another name"))
        tools[tool.function] = tool
    if problems:
        return None, problems
    if not tools:
        return None, [_unavailable(name, "it offers no function", "mark one with @agentflow.function")]
    known = list(tools)
    for key in spec.functions:
        if key not in tools:
            hint = did_you_mean(key, known)
            problems.append(_problem("E_UNKNOWN_FUNCTION", f'"{name}" has no "{key}"', hint))
    return (None, problems) if problems else (Service(name, spec, tools), [])


def _functions(
    module: ModuleType, spec: ServiceSpec, service: str, problems: list[Diagnostic]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the module itself that are marked, in its order, and those that are included.

    A marked function that was imported from elsewhere is that module's, unless it is included by name.
    """
    wanted = dict.fromkeys(spec.include or ())
    given: set[int] = set()
    for key, value in vars(module).items():
        if not callable(value) or id(value) in given:
            continue
        marked = _marked(value)
        names = {key, marked.name if marked is not None and marked.name else key}
        home = str(getattr(value, "__module__", ""))
        own = home == module.__name__ or home.startswith(module.__name__ + ".")
        if wanted.keys().isdisjoint(names) and not (own and marked is not None):
            continue
        for name in names:
            wanted.pop(name, None)
        given.add(id(value))
        yield key, value
    callables = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    for key in wanted:
        reason = f'its module has no function "{key}", named in include'
        problems.append(_unavailable(service, reason, did_you_mean(key, callables)))


def _reason(error: BaseException, module: str) -> tuple[str, str | None]:
    """Why an import failed, and what helps. A module's own missing import is not the missing module."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(missing + ".")):
        hint = f"put {module.replace('.', '/')}.py beside the document, or install it"
        return f'there is no module "{module}" beside the document or on the import path', hint
    return _short(f"{type(error).__name__}: {error}"), None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 1] + "…"


def _unavailable(service: str, reason: str, hint: str | None = None) -> Diagnostic:
    return _problem("E_SERVICE_UNAVAILABLE", f'service "{service}": {reason}', hint)


def _problem(code: str, message: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, severity="error", message=message, hint=hint)
