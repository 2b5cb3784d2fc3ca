"""`human_in_the_loop`: a person decides, chooses, writes, or fills in a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.node import NodeBase
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "rounded"
TAKES = frozenset[str]()
STRUCTURAL = frozenset({"next", "on_error", "on_approve", "on_reject", "on_timeout", "input_type"})

_LABELS = {"on_approve": "approve", "on_reject": "reject", "on_timeout": "timeout"}
_PORTS = ("on_approve", "on_reject", "next", "on_timeout")


class HumanNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="human_in_the_loop"):
    """Asks a person and waits, for as long as `timeout` seconds if that is set.

    `approval` leads to `on_approve` or `on_reject`, and does not ask if the value at `decision_path` decides.
    The other types lead to `next`: `choice` takes the value of one of `options`, `text` a string, `form` what
    satisfies `form_schema`. `prompt` and `form_prefill` are templates.
    """

    input_type: Literal["approval", "choice", "text", "form"] = "approval"
    on_approve: str | None = None
    on_reject: str | None = None
    next: str | None = None
    decision_path: str | None = None
    response_path: str | None = None
    prompt: str | None = None
    options: tuple[Any, ...] = ()
    form_schema: dict[str, Any] | bool | None = None
    form_prefill: Any = msgspec.UNSET
    timeout: float | None = None
    on_timeout: str | None = None
    assignees: tuple[str, ...] = ()


Spec = HumanNode


def option_values(options: tuple[Any, ...]) -> list[Any]:
    """Return the values of options; one is a value, or an object with `value` and a label for it."""
    return [one["value"] if isinstance(one, dict) and "value" in one else one for one in options]


def ports(spec: HumanNode) -> tuple[tuple[str, str], ...]:
    """Return the ways on."""
    return tuple((port, getattr(spec, port)) for port in _PORTS if getattr(spec, port) is not None)


def label(spec: HumanNode, port: str) -> str | None:
    """Return `approve`, `reject` or `timeout`."""
    return _LABELS.get(port)


def routing(spec: HumanNode) -> dict[str, str]:
    """Return the path of the value that decides without a person."""
    return {} if spec.decision_path is None else {"decision": spec.decision_path}


def bounded(spec: HumanNode) -> tuple[str, ...]:
    """Return the ways that a person takes."""
    return tuple(port for port, _ in ports(spec) if port != "on_timeout")


def check(spec: HumanNode, at: NodeReport) -> None:
    """Check that the fields of its input type are there, and no others."""
    at.template("prompt", spec.prompt)
    at.template("form_prefill", spec.form_prefill)
    for field in ("decision_path", "response_path"):
        if getattr(spec, field) is not None:
            at.path(field, getattr(spec, field))
    if spec.timeout is not None:
        at.range("timeout", spec.timeout, above=0, most=MAX_SECONDS)
    elif spec.on_timeout is not None:
        at.conflict("on_timeout", f'"{spec.id}" has no timeout', "add timeout")
    if at.is_written("input_type"):  # of a wrong one nothing follows
        _check_ways(spec, at)
        _check_answers(spec, at)


def _check_ways(spec: HumanNode, at: NodeReport) -> None:
    if spec.input_type == "approval":
        others = ("next",)
        for field in ("on_approve", "on_reject"):
            if getattr(spec, field) is None:
                message = f'"{spec.id}" has no {field}'
                at.error("E_EMPTY_FIELD", message, field, "input_type approval leads there")
    else:
        others = ("on_approve", "on_reject", "decision_path", "response_path")
    for field in others:
        if getattr(spec, field) is not None:
            at.conflict(field, f'input_type of "{spec.id}" is {spec.input_type}', f"leave {field} out")


def _check_answers(spec: HumanNode, at: NodeReport) -> None:
    if spec.input_type == "choice":
        if not spec.options:
            at.error("E_MISSING_CHOICE_OPTIONS", f'"{spec.id}" offers no options', "options")
    elif spec.options:
        at.conflict("options", f'input_type of "{spec.id}" is {spec.input_type}', 'write "choice"')
    if spec.input_type == "form":
        if spec.form_schema is None:
            at.error("E_MISSING_FORM_SCHEMA", f'"{spec.id}" has no form_schema', "form_schema")
        else:
            at.schema("form_schema", spec.form_schema, "E_INVALID_FORM_SCHEMA")
    else:
        for field in ("form_schema", "form_prefill"):
            if getattr(spec, field) not in (None, msgspec.UNSET):
                at.conflict(field, f'input_type of "{spec.id}" is {spec.input_type}', 'write "form"')
