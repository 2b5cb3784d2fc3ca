"""`merge`: joins the branches of a parallel node, or outputs of one path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.node import NodeBase, Policy
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})
CLOSES_GROUPS = True
STRUCTURAL = frozenset({"next", "on_error", "sources", "rule", "quorum", "on_timeout"})


class MergeNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="merge"):
    """Goes on when its sources have finished as `rule` says (`policy` on the wire).

    `first`: with the first value; `all`: with an array in the order of `sources`; `quorum`: with the first
    `quorum` to finish. The rest is cancelled, or with `drain` ends unread. `timeout` counts from the opening
    of the group: → `on_timeout`, or the node fails with `merge_timeout`. `on_branch_error` None: that of the
    parallel node, under rule `all`; `first` and `quorum` bear failures until they cannot succeed.
    """

    policy: Policy | None = msgspec.field(name="call_policy", default=None)
    sources: tuple[str, ...]
    rule: Literal["first", "all", "quorum"] = msgspec.field(name="policy")
    quorum: int | None = None
    next: str | None = None
    timeout: float | None = None
    on_timeout: str | None = None
    rest: Literal["cancel", "drain"] = "cancel"
    on_branch_error: Literal["fail", "collect"] | None = None


Spec = MergeNode


def ports(spec: MergeNode) -> tuple[tuple[str, str], ...]:
    """Return the way on and the way at the time-out."""
    pairs = (("next", spec.next), ("on_timeout", spec.on_timeout))
    return tuple((port, target) for port, target in pairs if target is not None)


def references(spec: MergeNode) -> tuple[tuple[str, str], ...]:
    """Return the nodes whose outputs it reads; these are no edges, and are drawn as `source`."""
    return tuple((f"sources/{i}", source) for i, source in enumerate(spec.sources))


def gathers(spec: MergeNode) -> bool:
    """Return whether it goes on only when all its sources have finished."""
    return spec.rule == "all" and spec.on_timeout is None


def structure(spec: MergeNode) -> dict[str, Any]:
    """Return its sources and when it goes on."""
    return {"sources": list(spec.sources), "rule": spec.rule, "quorum": spec.quorum}


def check(spec: MergeNode, at: NodeReport) -> None:
    """Check the sources, the quorum, and that no field is without effect."""
    if not spec.sources:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has no sources', "sources", "name the nodes that it joins")
    for i, source in enumerate(spec.sources):
        if source in spec.sources[:i]:
            message = f'"{source}" is a source of "{spec.id}" already'
            at.error("E_DUPLICATE_BRANCH", message, f"sources/{i}", "remove one of the two")
    if spec.rule != "quorum":
        if spec.quorum is not None:
            at.conflict("quorum", f'"{spec.id}" has policy {spec.rule}', 'set policy to "quorum"')
        if spec.rule == "all" and spec.rest == "drain":
            at.conflict("rest", f'"{spec.id}" waits for all', "leave it out")
    elif spec.quorum is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has policy quorum, and no quorum', "quorum")
    elif spec.sources:
        at.range("quorum", spec.quorum, least=1, most=len(spec.sources))
    if spec.timeout is not None:
        at.range("timeout", spec.timeout, above=0, most=MAX_SECONDS)
    elif spec.on_timeout is not None:
        at.conflict("on_timeout", f'"{spec.id}" has no timeout', "add timeout, or leave on_timeout out")
