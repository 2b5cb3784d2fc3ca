"""Global values: what a node writes at its end, and how the writes of child paths meet (page 003 §3, §12)."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from agentflow.definition.expressions import EvaluationError, Expression, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.frames import ABSENT, Frame
from agentflow.engine.templates import expression_error, path_expression

if TYPE_CHECKING:
    from agentflow.definition.ir import NodeBase
    from agentflow.engine.activation import Activation
    from agentflow.engine.path import Path
    from agentflow.engine.state import RunState
    from agentflow.events.catalogue import StateWrites

__all__ = [
    "GlobalWrite",
    "GlobalWrites",
    "Written",
    "compile_writes",
    "fold_writes",
    "joined_writes",
    "written",
]


class GlobalWrite(NamedTuple):
    """One write: `operand` is the value set, the element appended, the number added or the members merged."""

    op: str
    operand: Any


class Written(NamedTuple):
    """What an end writes, as its event has it: values by key, and elements that arrays gain."""

    values: dict[str, Any]
    appended: dict[str, list[Any]]


class GlobalWrites(NamedTuple):
    """What a node writes: (key, operation, path of the operand or None, number), sets before updates."""

    operands: tuple[Expression | None, ...]
    keys: tuple[str, ...]
    ops: tuple[str, ...]
    amounts: tuple[int | float, ...]
    updates_from: int


def compile_writes(spec: NodeBase) -> GlobalWrites | None:
    """Return what a node writes; None if it writes nothing."""
    if not spec.set_globals and not spec.update_globals:
        return None
    updates = spec.update_globals.values()
    sources = [*spec.set_globals.values(), *(u.source for u in updates)]
    return GlobalWrites(
        operands=tuple(None if source is None else path_expression(source) for source in sources),
        keys=(*spec.set_globals, *spec.update_globals),
        ops=(*("set" for _ in spec.set_globals), *(u.op for u in updates)),
        amounts=(*(0 for _ in spec.set_globals), *(u.by for u in updates)),
        updates_from=len(spec.set_globals),
    )


def written(
    state: RunState, activation: Activation, output: Any, joined: Written | None
) -> Written | ErrorInfo:
    """Return what the end of an activation with this output writes, or why it cannot be made.

    `set_globals` sees the output, and each of its paths the keys before it; then each update works on the
    values before all updates. All of it comes on top of what child paths have written (`joined`). An element
    that is appended is written alone, so that a log grows with the elements and not with the array.
    """
    writes = activation.node.writes
    assert writes is not None
    node = activation.node
    scope = state.scope(activation)
    view: dict[str, Any] = {"output": output, "status": "succeeded", "error": None}
    if node.kind.shows_more:
        view |= node.kind.view(activation, activation.path.node(node))
    scope["nodes"] = {**scope["nodes"], node.name: {**(scope["nodes"].get(node.name) or {}), **view}}
    found: dict[str, Any] = {}
    before: dict[str, Any] = {}
    values, appended = ({}, {}) if joined is None else (dict(joined.values), dict(joined.appended))
    for i, (key, op, expression) in enumerate(zip(writes.keys, writes.ops, writes.operands, strict=True)):
        field = "/set_globals/" if i < writes.updates_from else "/update_globals/"
        if i == writes.updates_from:
            before = dict(found)
        operand: Any = writes.amounts[i]
        if expression is not None:
            try:
                operand = expression.evaluate(scope)
            except EvaluationError as error:
                return expression_error(error, field + key)
        old = before[key] if key in before else activation.path.frame.get("globals", key)
        value = _applied(GlobalWrite(op, operand), old)
        if value is ABSENT:
            return _refused(key, op, old, operand)
        found[key] = value
        if i < writes.updates_from and "globals" in scope:
            scope["globals"] = {**scope["globals"], key: value}
        if op == "append" and key not in before and key not in values and key not in appended:
            appended[key] = [operand]
        else:
            values[key] = value
            appended.pop(key, None)
    return Written(values, appended)


def _applied(write: GlobalWrite, old: Any) -> Any:
    """Return the value after a write; ABSENT if the operands do not fit it."""
    op, operand = write
    if old is ABSENT:
        old = None
    if op == "set":
        return operand
    if op == "append":
        if old is not None and not isinstance(old, list):
            return ABSENT
        return [*cast("list[Any]", old or []), operand]
    if op == "increment":
        return _sum(0 if old is None else old, operand)
    if (old is not None and not isinstance(old, dict)) or not isinstance(operand, dict):
        return ABSENT
    return {**cast("dict[str, Any]", old or {}), **cast("dict[str, Any]", operand)}


def _sum(old: Any, operand: Any) -> Any:
    """Return the sum of two numbers; ABSENT if one is none, or if JSON cannot write the sum."""
    if not _is_number(old) or not _is_number(operand):
        return ABSENT
    try:
        total = old + operand
    except OverflowError:  # a float and an integer beyond all floats
        return ABSENT
    return total if isinstance(total, int) or isfinite(total) else ABSENT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_WANTED = {"append": "an array", "increment": "numbers with a finite sum", "merge": "objects"}


def _refused(key: str, op: str, old: Any, operand: Any) -> ErrorInfo:
    shown = [json_type_of(value) for value in (None if old is ABSENT else old, operand)]
    message = f"{op} of the global value {key} needs {_WANTED[op]}, and got {shown[0]} and {shown[1]}"
    details = {"key": key, "op": op}
    return ErrorInfo(category="invalid_input", code="invalid_global_value", message=message, details=details)


def fold_writes(activation: Activation, data: StateWrites) -> None:
    """Fold the global values that the end of an activation wrote. A child path also keeps how it came to
    them, which decides whether its writes agree with those of its siblings."""
    path, writes = activation.path, activation.node.writes
    kept = writes if path.opener is not None else None
    for key, value in data.globals.items():
        if kept is not None and key in kept.keys:
            path.writes.setdefault(key, []).extend(_steps_to(path.frame, key, value, kept))
        path.frame.set("globals", key, value)
    for key, elements in data.appended.items():
        if kept is not None and key in kept.keys:
            path.writes.setdefault(key, []).extend(GlobalWrite("append", element) for element in elements)
        old = path.frame.get("globals", key)
        path.frame.set("globals", key, [*([] if old is ABSENT or old is None else old), *elements])


def _steps_to(frame: Frame, key: str, value: Any, writes: GlobalWrites) -> list[GlobalWrite]:
    """Return the operations by which a node came to this value."""
    ops = [op for k, op in zip(writes.keys, writes.ops, strict=True) if k == key]
    if len(ops) > 1 or ops[0] == "set":
        return [GlobalWrite("set", value)]
    old = frame.get("globals", key)
    if ops[0] == "append":  # in logs of versions that wrote the whole array
        return [GlobalWrite("append", value[-1])]
    if ops[0] == "increment":
        return [GlobalWrite("increment", value - (0 if old is ABSENT or old is None else old))]
    known = cast("dict[str, Any]", {} if old is ABSENT or old is None else old)
    changed = {k: v for k, v in value.items() if k not in known or known[k] != v}
    return [GlobalWrite("merge", changed)]


def joined_writes(path: Path, children: Iterable[Path]) -> tuple[Written, str | None]:
    """Return what the join of these child paths writes on their parent, in their order, and the first key on
    which they conflict: two set it to different values, or one sets what another updates."""
    by_key: dict[str, list[list[GlobalWrite]]] = {}
    for child in children:
        for key, writes in child.writes.items():
            by_key.setdefault(key, []).append(writes)
    found: dict[str, Any] = {}
    appended: dict[str, list[Any]] = {}
    nothing = Written({}, {})
    for key, sides in by_key.items():
        if len(sides) > 1 and any(w.op == "set" for side in sides for w in side):
            ends = [_end_of(path, key, side) for side in sides]
            if any(w.op != "set" for side in sides for w in side) and any(e != ends[0] for e in ends):
                return nothing, key
            if any(end != ends[0] for end in ends):
                return nothing, key
            found[key] = ends[0]
            continue
        value = path.frame.get("globals", key)
        for write in (w for side in sides for w in side):
            value = _applied(write, value)
            if value is ABSENT:
                return nothing, key
        if all(w.op == "append" for side in sides for w in side):
            appended[key] = [w.operand for side in sides for w in side]
        else:
            found[key] = value
    return Written(found, appended), None


def _end_of(path: Path, key: str, writes: list[GlobalWrite]) -> Any:
    value = path.frame.get("globals", key)
    for write in writes:
        value = _applied(write, value)
    return value
