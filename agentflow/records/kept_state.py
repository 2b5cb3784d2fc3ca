"""What the executors of a run keep, projected from its log: private values by node, shared ones by key.

Shared writes are committed at the completion of an activation, or at the barrier of its superstep, by the
reducers of their keys (page 002 §7), as the engine does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from agentflow.definition.ir import Workflow
from agentflow.definition.reducers import REDUCERS
from agentflow.events import catalogue as ev

__all__ = ["KeptState"]


class KeptState:
    """The private and the shared state of one run, up to the last event that it was given."""

    def __init__(self, workflow: Workflow) -> None:
        declared = workflow.shared
        self._reducers = {key: spec.reducer for key, spec in declared.items() if spec.reducer is not None}
        self._is_stepping = False
        self._pending: list[ev.WorkflowStepCompleted] = []
        self.private: dict[str, dict[str, Any]] = {}
        self.shared: dict[str, Any] = {
            key: spec.default for key, spec in declared.items() if spec.default is not None
        }
        self.unfolded: set[str] = set()
        """Keys whose values are not known here, because their reducers are not registered in this process."""

    def take(self, data: Any) -> None:
        """Fold the next event; an event without writes changes nothing."""
        if isinstance(data, ev.WorkflowStepCompleted):
            if data.state is UNSET:
                return
            if data.state.private:
                self.private.setdefault(data.step_id, {}).update(data.state.private)
            if data.state.shared:
                self._pending.append(data)
                if not self._is_stepping:
                    self._commit()
        elif isinstance(data, ev.SuperstepStarted):
            self._is_stepping = True
        elif isinstance(data, ev.SuperstepCompleted):
            self._is_stepping = False
            self._commit()

    def edit(self, edits: Mapping[str, Any]) -> None:
        """Apply what a fork, or a run with `state_from`, begins with."""
        self.shared.update(edits.get("shared", {}))
        self.unfolded.difference_update(edits.get("shared", {}))
        for node_id, values in edits.get("state", {}).items():
            self.private.setdefault(node_id, {}).update(values)

    def _commit(self) -> None:
        found = sorted(self._pending, key=lambda data: (data.step_id, data.path, data.visit))
        self._pending = []
        for data in found:
            assert data.state is not UNSET
            for write in data.state.shared:
                self._write(write.key, write.value)

    def _write(self, key: str, update: Any) -> None:
        name = self._reducers.get(key)
        if name is not None and (name not in REDUCERS or key in self.unfolded):
            self.unfolded.add(key)
            self.shared.pop(key, None)
            return
        try:
            self.shared[key] = update if name is None else REDUCERS[name](self.shared.get(key), update)
        except Exception:  # the run fails with reducer_failed, and the value stays
            return
