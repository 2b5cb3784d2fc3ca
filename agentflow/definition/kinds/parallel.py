"""`parallel`: one concurrent child path for each branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget"})
STRUCTURAL = frozenset({"next", "on_error", "branches"})


class ParallelNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="parallel"):
    """Opens a child path for each branch, at most `max_in_flight` at once, and goes on when all have ended.

    If `next` is a merge, that merge decides when the group closes. With `on_branch_error: fail` the first
    failure cancels the others and fails the node; with `collect` the slot of the branch is null.
    """

    branches: tuple[str, ...]
    next: str | None = None
    max_in_flight: int = 8
    on_branch_error: Literal["fail", "collect"] = "fail"


Spec = ParallelNode


def ports(spec: ParallelNode) -> tuple[tuple[str, str], ...]:
    """Return the branches in declared order, and the way on."""
    branches = ((f"branches/{i}", branch) for i, branch in enumerate(spec.branches))
    return *branches, *(() if spec.next is None else (("next", spec.next),))


def label(spec: ParallelNode, port: str) -> str | None:
    """Return `branch` or `join`."""
    return "join" if port == "next" else "branch"


def opens(spec: ParallelNode) -> tuple[str, ...]:
    """Return the ports at which child paths begin."""
    return tuple(f"branches/{i}" for i in range(len(spec.branches)))


def check(spec: ParallelNode, at: NodeReport) -> None:
    """Check that there are branches, each once."""
    if not spec.branches:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has no branches', "branches", "name a node for each branch")
    for i, branch in enumerate(spec.branches):
        if branch in spec.branches[:i]:
            message = f'"{branch}" is a branch of "{spec.id}" already'
            at.error("E_DUPLICATE_BRANCH", message, f"branches/{i}", "remove one of the two")
    at.at_least_one(spec, "", "max_in_flight")
