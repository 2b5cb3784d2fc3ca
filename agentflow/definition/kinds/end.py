"""`end`: where a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "oval"
IS_END = True


class EndNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """The end. With `drain`, live paths are awaited. `output` is a template; without it the output is
    the payload that arrived, or for a dependency graph `{leaf step: result or null}`.

    With `status: failed` the run fails. `error` says why, as a template of a text, or of an object with
    `message` and, if given, `code` and `details`.
    """

    output: Any = msgspec.UNSET
    status: Literal["completed", "failed"] = "completed"
    error: Any = None
    drain: bool = False


Spec = EndNode


def ports(spec: EndNode) -> tuple[tuple[str, str], ...]:
    """Return nothing: no node comes after an end."""
    return ()


def check(spec: EndNode, at: NodeReport) -> None:
    """Check the templates of the output and of the error."""
    at.template("output", spec.output)
    if spec.error is None:
        return
    if spec.status != "failed":
        at.conflict("error", f'"{spec.id}" completes the run', 'set status to "failed"')
    error = cast("object", spec.error)
    if not isinstance(error, str | dict):
        at.error("E_TYPE", "error of an end is neither a text nor an object", "error")
        return
    for key in cast("dict[str, object]", error) if isinstance(error, dict) else ():
        if key not in ("code", "message", "details"):
            at.error("E_UNKNOWN_KEY", f'"{key}" is no key of an error', f"error/{key}")
    at.template("error", spec.error)
