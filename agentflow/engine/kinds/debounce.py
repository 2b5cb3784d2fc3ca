"""`debounce`: one token of a burst (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import DebounceNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_failed
from agentflow.engine.kinds.rate_gates import Arrival, RateGate, spec_of, window_of
from agentflow.engine.shared_store import Arrive, Claim, Operation, Touch, owner_of
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


def _is_trailing(node: Node) -> bool:
    spec = node.spec
    assert isinstance(spec, DebounceNode)
    return spec.mode == "trailing"


class Debounce(RateGate):
    """Suppresses a token whose key came less than a window ago or, trailing, one that a newer one follows.

    In a run, a newer arrival ends the wait of the one before it at once; over all runs of a definition, one
    finds out at the end of its window.
    """

    name = "debounce"
    timer = "debounce"

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once, or arm the timer of the quiet window."""
        key = self.key(state, activation)
        if isinstance(key, ErrorInfo):
            return step_failed(activation, key, now)
        node, arrival = activation.node, activation.local
        gate = self.known(state, activation, key)
        if not _is_trailing(node):
            seen = None if gate is None else gate.seen
            near = seen is not None and arrival.place - seen < window_of(node)
            return self._decide(state, activation, key, near, now)
        if arrival.key is None:
            return self.wait(activation, key, activation.started + window_of(node))
        if not arrival.is_due:
            return []
        newer = gate is not None and gate.latest is not activation
        return self._decide(state, activation, key, newer, now)

    def _decide(
        self, state: RunState, activation: Activation, key: str, is_suppressed: bool, now: int
    ) -> Decisions:
        output = {"key": key, "suppressed": is_suppressed}
        return self.decided(state, activation, "on_suppressed" if is_suppressed else "next", output, now)

    def waits(self, state: RunState, activation: Activation, key: str) -> None:
        """Fold that an arrival waits: it supersedes the one that waits already."""
        if spec_of(activation.node).scope == "definition":
            return
        gate = self.gate(state, activation, key)
        before, gate.latest = gate.latest, activation
        if before is not None and before.key in state.open:
            before.local.is_due = True
            state.changed[before.key] = before

    def closed(self, state: RunState, activation: Activation) -> None:
        """Forget an arrival that waits no more."""
        arrival: Arrival = activation.local
        gate = None if arrival.key is None else self.known(state, activation, arrival.key)
        if gate is not None and gate.latest is activation:
            gate.latest = None

    def remember(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep where the key came last."""
        if _is_trailing(activation.node) or spec_of(activation.node).scope == "definition":
            return
        gate, place = self.gate(state, activation, data.output["key"]), activation.local.place
        gate.seen = place if gate.seen is None else max(gate.seen, place)

    # -- of all runs of a definition ------------------------------------------------------------

    def operation(self, state: RunState, activation: Activation, arrival: Arrival) -> Operation:
        """Return the arrival, or at the end of its window the question whether it was the last."""
        owner = owner_of(state, activation)
        if not _is_trailing(activation.node):
            return Touch(owner, activation.started, window_of(activation.node))
        if arrival.key is not None:
            return Claim(owner)
        return Arrive(owner, activation.started, window_of(activation.node))

    def store_answered(self, state: RunState, activation: Activation, answer: Any, now: int) -> Decisions:
        """Decide by the answer, or arm the timer of the quiet window."""
        key = self.key(state, activation)
        assert isinstance(key, str)
        if _is_trailing(activation.node) and activation.local.key is None:
            return self.wait(activation, key, activation.started + window_of(activation.node))
        return self._decide(state, activation, key, bool(answer), now)


KIND = Debounce()
