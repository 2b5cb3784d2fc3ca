"""What is wrong with the executors of a workflow, as data: the builder makes diagnostics of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Literal, NamedTuple

from agentflow.executors.annotations import classes_in, is_any, members_of, shown, type_keys
from agentflow.executors.executor import Executor
from agentflow.executors.payloads import Payloads, TypeTagClash, is_encodable

__all__ = ["Problem", "problems_of", "tag_clashes"]


class Problem(NamedTuple):
    """One problem; `node` is the id of the executor, "" if it is of the whole workflow."""

    code: str
    message: str
    hint: str | None = None
    node: str = ""
    severity: Literal["error", "warning"] = "error"


def problems_of(executor: Executor) -> list[Problem]:
    """Return what is wrong with one executor."""
    try:
        found = executor.handlers
    except (NameError, TypeError) as error:
        hint = "a handler is async (self, message: T, ctx: WorkflowContext[Out, WOut])"
        return [Problem("E_NO_HANDLER", f'the handlers of "{executor.id}": {error}', hint, executor.id)]
    problems: list[Problem] = []
    if not any(spec.kind == "message" for spec in found):
        hint = "mark an async method with @handler"
        problems.append(Problem("E_NO_HANDLER", f'"{executor.id}" has no handler', hint, executor.id))
    problems += _duplicates(executor)
    problems += _not_encodable(executor)
    for spec in found:
        if not spec.typed:
            message = f'{spec.name} of "{executor.id}" has no annotation and takes every message'
            hint = "annotate it with the type that it takes, or with Any"
            problems.append(Problem("W_UNTYPED_HANDLER", message, hint, executor.id, "warning"))
    try:
        executor.copy_for_run()
    except Exception as error:
        message = f'"{executor.id}" cannot be copied: {type(error).__name__}: {error}'
        hint = "pass its class or a factory, or name the field in Executor.shared"
        problems.append(Problem("E_EXECUTOR_NOT_COPYABLE", message, hint, executor.id))
    return problems


def _duplicates(executor: Executor) -> Iterator[Problem]:
    """Yield a problem for each type that two handlers take: one for each pair of handlers."""
    seen: dict[Any, str] = {}
    told: set[tuple[str, str]] = set()
    for spec in executor.handlers:
        answers = members_of(spec.answer) if spec.kind == "response" else (None,)
        for member, answer in product(members_of(spec.takes), answers):
            for key in product((spec.kind,), type_keys(member), type_keys(answer)):
                first = seen.setdefault(key, spec.name)
                if first != spec.name and (first, spec.name) not in told:
                    told.add((first, spec.name))
                    taken = shown(member) + ("" if answer is None else f" answered by {shown(answer)}")
                    message = f'{first} and {spec.name} of "{executor.id}" both take {taken}'
                    hint = "take one of them away, or narrow its type"
                    yield Problem("E_DUPLICATE_HANDLER", message, hint, executor.id)


def _not_encodable(executor: Executor) -> Iterator[Problem]:
    for spec in executor.handlers:
        for annotation in spec.annotations:
            for kind in classes_in(annotation):
                if not is_any(annotation) and not is_encodable(kind) and not _is_abstract(kind):
                    message = f'{spec.name} of "{executor.id}" names {kind.__name__}, which has no JSON form'
                    hint = "use a dataclass or a msgspec.Struct, or call agentflow.register_type"
                    yield Problem("E_NOT_ENCODABLE", message, hint, executor.id)


def _is_abstract(kind: type) -> bool:
    """Return whether values have another class: a collection's interface."""
    return kind.__module__ == "collections.abc"


def tag_clashes(executors: Iterable[Executor]) -> list[Problem]:
    """Return the classes of one name among all types of a workflow."""
    problems: list[Problem] = []
    known = Payloads()
    for executor in executors:
        for annotation in executor.annotations:
            try:
                known.add(annotation)
            except TypeTagClash as clash:
                hint = "give one of the classes another name"
                problems.append(Problem("E_TYPE_TAG_CLASH", str(clash), hint, executor.id))
    return list(dict.fromkeys(problems))
