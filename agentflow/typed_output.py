"""Typed outputs: the output of a run as a value of the caller's own type, checked.

Takes what msgspec converts from JSON (Struct, dataclass, TypedDict, NamedTuple, `list[Model]` …) and, at any
depth, classes with pydantic's `model_validate`. Imports no such library itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from agentflow.errors import ConfigurationError, InvalidOutput

if TYPE_CHECKING:
    from agentflow.records.runs import RunResult

__all__ = ["check_output_type", "problem_of_model", "typed_result"]

T = TypeVar("T")

_MAX_MESSAGE = 300
"""Characters of a library's explanation that an error shows."""


class _Mismatch(Exception):
    """A model's own validation failed; carries path and rule, without the value."""


def check_output_type(output_type: Any) -> None:
    """Raise ConfigurationError if no JSON value can be converted to `output_type`."""
    hint = "use a msgspec.Struct, a dataclass, a TypedDict, a pydantic model, or a list or dict of them"
    try:
        unusable = _unusable(output_type)
    except (TypeError, NameError) as error:
        problem = f"output_type {_name(output_type)} cannot be made from JSON: {error}"
        raise ConfigurationError(problem[:_MAX_MESSAGE], hint=hint) from None
    if unusable is not None:
        inner = "" if unusable is output_type else f", because {_name(unusable)} cannot"
        raise ConfigurationError(
            f"output_type {_name(output_type)} cannot be made from JSON{inner}", hint=hint
        )


def typed_result(result: RunResult[Any], output_type: type[T] | None) -> RunResult[T]:
    """Return the result with its output converted to `output_type`; as it is if the run is not completed.

    Raises InvalidOutput if the output does not fit; the error carries the result as it was.
    """
    if output_type is None or result.state != "completed":
        return result
    try:
        value = msgspec.convert(result.output, output_type, dec_hook=_convert_model)
    except (msgspec.ValidationError, _Mismatch) as error:
        problem = str(error)
        if isinstance(error, msgspec.ValidationError):
            from agentflow.definition.type_errors import explain

            problem = explain(error, output_type).sentence("the output")
        problem = problem[:_MAX_MESSAGE]
        message = f"the output of {result.workflow_id} does not fit {_name(output_type)}: {problem}"
        raise InvalidOutput(message, result=result) from None
    return cast("RunResult[T]", msgspec.structs.replace(result, output=value))


def _unusable(output_type: Any) -> Any:
    """Return the first class within a type that nothing converts to; None if there is none."""
    import msgspec.inspect as inspect  # 4 ms, for typed outputs alone

    open_infos: list[Any] = [inspect.type_info(output_type)]
    seen = set[int]()
    while open_infos:
        info = open_infos.pop()
        if isinstance(info, tuple | list):
            open_infos += cast("list[Any]", info)
        elif isinstance(info, inspect.CustomType):
            if not callable(getattr(info.cls, "model_validate", None)):
                return info.cls
        elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
            seen.add(id(info))
            open_infos += [getattr(info, name) for name in info.__struct_fields__]
    return None


def _convert_model(kind: Any, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if not callable(validate):
        raise TypeError(f"{_name(kind)} has no model_validate")
    try:
        return validate(value)
    except ValueError as error:  # pydantic's ValidationError is one
        raise _Mismatch(problem_of_model(error, "the output")) from None


def problem_of_model(error: ValueError, whole: str) -> str:
    """Return where and why a model refused its value, without the value. `whole`: what the value is called.

    Of pydantic's errors only place and name of the rule are told; the words of a validator of the model's own
    are the user's.
    """
    found = getattr(error, "errors", None)
    if not callable(found):
        return str(error)
    problems: list[str] = []
    for problem in cast("list[dict[str, Any]]", found()):
        steps = problem.get("loc", ())
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in steps).lstrip(".") or whole
        rule, raised = problem.get("type", "unknown"), problem.get("ctx", {}).get("error")
        if isinstance(raised, Exception):
            problems.append(f"{place}: {raised}")
        else:
            problems.append(f"{place} is missing" if rule == "missing" else f"{place} breaks the rule {rule}")
    return "; ".join(problems)


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
