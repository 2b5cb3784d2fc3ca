"""The work of a run as the read model follows it: its steps, their activations and items, and their keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import NodeBase, Options, Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.pipeline_nodes import DELEGATE
from agentflow.definition.policy import NO_RETRY
from agentflow.events import catalogue as ev
from agentflow.records.runs import FoldedStep

__all__ = ["Call", "Step", "Work", "group_of", "items_of", "key_of", "nodes_of", "timer_of"]

_KEPT_ITEMS = ("succeeded", "skipped")


class Work(msgspec.Struct, eq=False):
    """An activation of a step, or one iteration of it (`item` is its element)."""

    key: str
    step: Step
    index: int | None = None
    item: Any = None
    state: str = "pending"
    has_agent: bool = False
    asked_at: int | None = None  # µs; since then its agent wants a model call
    left: dict[str, int] = {}  # what was left of its time limits when it began to wait (µs)
    delegated: str = ""  # its first call, which is that of its delegate if it has a foreign one
    tool_calls: set[str] = set()  # ids that are counted, of this round of its agent


class Step:
    """A step of the graph, and where it stands."""

    def __init__(self, node: NodeBase, options: Options, *, has_error_edge: bool = False) -> None:
        self.node = node
        kind = kind_of(node)
        self.takes_slot = kind.takes_slot(node)
        self.at_once = kind.at_once(node, options)  # items at work; None: no limit of its own
        self.has_handler = kind.is_handled  # its work begins with workflow.step_started
        self.absorbs = has_error_edge or (self.has_handler and node.on_error == "skip")
        policy = node.policy
        self.retry = (policy.retry if policy else None) or kind.retry or NO_RETRY
        self.bills_calls = bool(node.metadata) and DELEGATE in node.metadata
        self.is_map = bool(node.for_each) or kind.spreads(node)
        self.state = "pending"
        self.attempt = 0  # of the latest activation; 0 before the first
        self.visits = 0
        self.output: Any = None
        self.error: ErrorInfo | None = None
        self.items: dict[int, Work] | None = None  # by index; None before a for_each has begun
        self.held = 0  # visits that failed, and of which a person decides what follows

    def shown(self) -> FoldedStep:
        """Return the step as people see it."""
        items: dict[str, int] | None = None
        if self.items is not None:
            items = {}
            for item in self.items.values():
                items[item.state] = items.get(item.state, 0) + 1
        return FoldedStep(
            state=self.state,
            attempt=self.attempt,
            visits=self.visits,
            output=self.output,
            error=None if self.error is None else msgspec.to_builtins(self.error),
            items=items,
        )


class Call(NamedTuple):
    """A call without a recorded end; of a model with what is reserved for it."""

    kind: str
    tokens: int = 0
    cost: float | None = None


def key_of(data: Any) -> str:
    """Return what names a piece of work inside its run: `/step#visit`, for an iteration `/step#visit[i]`."""
    return data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"


def timer_of(data: ev.TimerScheduled | ev.TimerFired | ev.TimerCancelled) -> str:
    """Return what names a timer of a run; that of a join belongs to no activation."""
    return data.timer_id if data.activation is UNSET else f"timer {data.timer_id} {key_of(data)}"


def group_of(work: Work) -> tuple[str, int | None]:
    """Return what bounds the items of a step on one path, and how many may be at work; "" for no item."""
    return ("", None) if work.index is None else (work.key.rpartition("#")[0], work.step.at_once)


def items_of(step: Step, data: ev.WorkflowStepStarted, key: str) -> dict[int, Work]:
    """Return the items of a for_each that begins; one that is tried again keeps what was done."""
    before = step.items or {} if data.attempt > 1 else {}
    found: dict[int, Work] = {}
    for index, item in enumerate(data.input):
        earlier = before.get(index)
        is_kept = earlier is not None and earlier.state in _KEPT_ITEMS and earlier.item == item
        found[index] = (
            earlier if earlier is not None and is_kept else Work(f"{key}[{index}]", step, index, item)
        )
    return found


def nodes_of(workflow: Workflow, prefix: str = "") -> list[tuple[str, NodeBase, bool]]:
    """Return the nodes of a graph by the ids of their events, those of its inline graphs behind its own.

    With each: whether an error edge leaves it.
    """
    nodes = sorted(workflow.nodes, key=lambda node: (node.index, node.id))
    routed = {edge.source for edge in workflow.edges if edge.kind == "error"}
    steps = [node for node in nodes if not kind_of(node).is_border]
    borders = [node for node in nodes if kind_of(node).is_border]
    found = [(prefix + node.id, node, node.id in routed) for node in [*steps, *borders]]
    for node in steps:
        inner = kind_of(node).inner(node)
        if inner is not None:
            found += nodes_of(inner, f"{prefix}{node.id}/")
    return found
