"""What `debounce` and `throttle` have in common: a key, and a window of steps or of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.node import NodeBase
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

__all__ = ["RateGateNode", "check_window"]


class RateGateNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True):
    """Lets the tokens of a key through, or not, by those that came within a window.

    The window is `window` seconds by the times of events, or `window_steps` steps of the path. With `scope:
    definition` all runs of the definition in the store share it.
    """

    key_path: str
    next: str | None = None
    window_steps: int | None = None
    window: float | None = None
    scope: Literal["run", "definition"] = "run"


def check_window(spec: RateGateNode, at: NodeReport, waits: str | None) -> None:
    """Check the key and the window; `waits` names the mode that arms timers, if the node has it."""
    at.path("key_path", spec.key_path)
    at.at_least_one(spec, "", "window_steps")
    if spec.window is not None:
        at.range("window", spec.window, above=0, most=MAX_SECONDS)
        if spec.window_steps is not None:
            at.conflict("window_steps", f'"{spec.id}" has a window of time', "keep window or window_steps")
        return
    if spec.window_steps is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither window nor window_steps', "window")
        return
    hint = "set window, in seconds"
    if waits is not None:
        at.conflict("window_steps", f'mode {waits} of "{spec.id}" waits for a time', hint)
    if spec.scope == "definition":
        at.conflict("window_steps", f'"{spec.id}" counts no steps of other runs', hint)
