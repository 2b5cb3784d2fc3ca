"""Which handler of an executor takes what came, and with which values."""

from __future__ import annotations

from typing import Any

from agentflow.executors.annotations import is_any, shown, tags_of_annotation
from agentflow.executors.executor import Executor
from agentflow.executors.handlers import HandlerSpec, choose, choose_response
from agentflow.executors.payloads import Payloads, convert
from agentflow.runtime.handler_calls import Handle

__all__ = ["Unfit", "choose_handler"]


class Unfit(Exception):
    """No handler takes what came."""


def choose_handler(
    executor: Executor, message: Handle, payloads: Payloads, node: str
) -> tuple[HandlerSpec, tuple[Any, ...]]:
    """Return the handler of a message, a round or an answer, and its arguments. Raises Unfit."""
    if message.request_id is not None:
        return _answer_arguments(executor, message, payloads, node)
    if message.is_round:
        parts = zip(message.types, message.value, strict=True)
        value: Any = [payloads.decode(tag, item) for tag, item in parts]
    elif message.types:
        value = payloads.decode(message.types[0], message.value)
    else:
        return _untagged_arguments(executor, message.value, payloads, node)
    spec = choose(executor.handlers, value)
    if spec is None:
        raise Unfit(_nobody_takes(executor, node, " or ".join(dict.fromkeys(message.types)) or "list"))
    return spec, (value,)


def _untagged_arguments(
    executor: Executor, value: Any, payloads: Payloads, node: str
) -> tuple[HandlerSpec, tuple[Any, ...]]:
    """Choose for JSON that nothing names: a handler of JSON values, one whose type it converts to, Any."""
    plain = payloads.unpack(value)
    specs = [spec for spec in executor.handlers if spec.kind == "message"]
    spec = choose([s for s in specs if not is_any(s.takes)], plain)
    if spec is not None:
        return spec, (plain,)
    for spec in specs:
        if not is_any(spec.takes):
            try:
                return spec, (convert(value, spec.takes),)
            except (ValueError, TypeError):
                continue
    spec = choose(specs, plain)
    if spec is None:
        raise Unfit(_nobody_takes(executor, node, f"a JSON {type(value).__name__}"))
    return spec, (plain,)


def _nobody_takes(executor: Executor, node: str, what: str) -> str:
    takes = ", ".join(shown(s.takes) for s in executor.handlers if s.kind == "message")
    return f'no handler of "{node}" takes {what}; it takes {takes}'


def _answer_arguments(
    executor: Executor, message: Handle, payloads: Payloads, node: str
) -> tuple[HandlerSpec, tuple[Any, ...]]:
    request = payloads.unpack(message.request)
    wanted = set(message.types[0].split(" | ")) if message.types else set[str]()

    def fits(annotation: Any) -> bool:
        return is_any(annotation) or wanted <= set(tags_of_annotation(annotation))

    spec = choose_response(executor.handlers, request, fits)
    if spec is None:
        raise Unfit(f'no response handler of "{node}" takes the answer {" or ".join(sorted(wanted))}')
    if not is_any(spec.answer):
        return spec, (request, convert(message.value, spec.answer))
    tag = message.types[0] if message.types else "Any"
    return spec, (request, payloads.decode(tag, message.value))
