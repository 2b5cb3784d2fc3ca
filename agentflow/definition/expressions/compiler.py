"""From a tree to nested closures: no generated code, nothing looked up by name at run time but members.

Each closure takes the `Run` of one evaluation. A Fault is caught by the closure of the operator, call or
path that broke the rule, which alone knows the offset, and becomes an EvaluationError.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, Final

from agentflow.definition.expressions.errors import EvaluationError, Fault
from agentflow.definition.expressions.functions import FUNCTIONS
from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Lit,
    Logic,
    Node,
    Not,
    Path,
)
from agentflow.definition.expressions.paths import compile_path
from agentflow.definition.expressions.run import Evaluate, Run, Step, located
from agentflow.definition.expressions.signatures import STATUS_FUNCTIONS
from agentflow.definition.expressions.values import equal, kind, order, truth

__all__ = ["compile_node"]


_ORDERS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}


def compile_node(node: Node, source: str) -> Evaluate:
    """Return the closure of a tree. `source` goes into the errors.

    The functions below look up `_COMPILERS` themselves, and in loops: this function and comprehensions
    would each take one more frame of the stack for every level of nesting.
    """
    return _COMPILERS[type(node)](node, source)


def _literal(node: Lit, source: str) -> Evaluate:
    value = node.value
    return lambda run: value


def _not(node: Not, source: str) -> Evaluate:
    operand = _COMPILERS[type(node.operand)](node.operand, source)
    return lambda run: not truth(operand(run))


def _path(node: Path, source: str) -> Evaluate:
    return compile_path(node, source, compile_node)


# --- operators


def _logic(node: Logic, source: str) -> Evaluate:
    first: list[Evaluate] = []
    for operand in node.operands:
        first.append(_COMPILERS[type(operand)](operand, source))  # noqa: PERF401
    last = first.pop()
    stops_at = node.operator == "||"

    def logic(run: Run) -> Any:
        for operand in first:
            value = operand(run)
            decided = value if value is True or value is False else truth(value)
            if decided is stops_at:
                return value
        return last(run)

    return logic


def _compare(node: Compare, source: str) -> Evaluate:
    left = _COMPILERS[type(node.first)](node.first, source)
    steps: list[Step] = []
    for operator, right, offset in node.rest:
        operand = _COMPILERS[type(right)](right, source)
        steps.append(_step(operator, operand, offset, source))
    if len(steps) == 1:
        operator, right, _ = node.rest[0]
        return _comparison(left, operator, right, steps[0])

    # A long chain must not nest closures: its steps run one after the other.
    def chain(run: Run) -> Any:
        value = left(run)
        for step in steps:
            value = step(value, run)
        return value

    return chain


def _comparison(left: Evaluate, operator: str, right: Node, step: Step) -> Evaluate:
    """Return the closure of a comparison. Most have a literal on the right, which needs no general order."""
    if isinstance(right, Lit):
        literal = right.value
        if operator[0] in "=!":
            return _literal_equality(left, literal, operator[0] == "=")
        if type(literal) is int or type(literal) is float:
            test = _ORDERS[operator]

            def relation(run: Run) -> bool:
                value = left(run)
                if type(value) is int or type(value) is float:
                    return test(value, literal)
                return step(value, run)

            return relation
    return lambda run: step(left(run), run)


def _literal_equality(left: Evaluate, literal: Any, wanted: bool) -> Evaluate:
    if literal is None or isinstance(literal, bool):
        return lambda run: (left(run) is literal) is wanted
    if isinstance(literal, str):
        return lambda run: (left(run) == literal) is wanted

    def equality(run: Run) -> bool:
        value = left(run)
        # 1 == True in Python, not here.
        return (value == literal and value is not True and value is not False) is wanted

    return equality


def _step(operator: str, operand: Evaluate, offset: int, source: str) -> Step:
    """Return the comparison of any two values by this operator."""
    if operator[0] in "=!":
        wanted = operator[0] == "="

        def equality(left: Any, run: Run) -> bool:
            right = operand(run)
            try:
                return equal(left, right, run) is wanted
            except Fault as fault:
                raise located(fault, offset, source) from None

        return equality

    def relation(left: Any, run: Run) -> bool:
        right = operand(run)
        try:
            return order(operator, left, right)
        except Fault as fault:
            raise located(fault, offset, source) from None

    return relation


# --- calls


def _call(node: Call, source: str) -> Evaluate:
    if node.name in STATUS_FUNCTIONS:
        return _status(node, source)
    arguments: list[Evaluate] = []
    for argument in node.arguments:
        arguments.append(_COMPILERS[type(argument)](argument, source))  # noqa: PERF401
    if node.name == "case":
        return _case(arguments, [argument.offset for argument in node.arguments], source)
    function, offset = FUNCTIONS[node.name], node.offset

    def call(run: Run) -> Any:
        values: list[Any] = []
        for argument in arguments:
            values.append(argument(run))  # noqa: PERF401
        try:
            return function(run, *values)
        except Fault as fault:
            raise located(fault, offset, source) from None

    return call


def _status(node: Call, source: str) -> Evaluate:
    name, offset = node.name, node.offset
    if name == "always":
        return lambda run: True

    def status(run: Run) -> bool:
        view = run.status
        if view is None:
            raise EvaluationError("type", f"{name}() needs the status of a step", offset, source)
        if name == "success":
            return view.success()
        return view.failure() if name == "failure" else view.cancelled()

    return status


def _case(arguments: list[Evaluate], offsets: list[int], source: str) -> Evaluate:
    *pairs, default = arguments
    branches = list(zip(pairs[::2], pairs[1::2], offsets[::2], strict=False))

    def case(run: Run) -> Any:
        for condition, value, offset in branches:
            decided = condition(run)
            if decided is True:
                return value(run)
            if decided is not False:
                message = f"case takes booleans as conditions, got {kind(decided)}"
                raise EvaluationError("type", message, offset, source)
        return default(run)

    return case


_COMPILERS: Final[dict[type, Callable[[Any, str], Evaluate]]] = {
    Lit: _literal,
    Path: _path,
    Compare: _compare,
    Logic: _logic,
    Not: _not,
    Call: _call,
}
