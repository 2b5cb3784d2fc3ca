"""The command `fork`: a new run that goes on from a point of another one (page 000 §8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from agentflow.engine import Graph
from agentflow.errors import CommandRefused, RunExists, RunNotFound
from agentflow.events.catalogue import ForkOrigin
from agentflow.runtime.binding import Bound
from agentflow.runtime.forks import fork_base
from agentflow.runtime.options import checked_labels
from agentflow.runtime.run_commands import RunCommands

if TYPE_CHECKING:
    from agentflow.runtime.run_handle import RunHandle

__all__ = ["ForkCommand"]


class ForkCommand(RunCommands):
    """All commands of a Runtime."""

    async def _prepare(self, workflow_id: str, bound: bool, *, trusted: bool = True) -> tuple[Graph, Bound]:
        """Return a stored run's graph, and what it was bound to when it began."""
        raise NotImplementedError

    def _run_id(self, wanted: str | None) -> str:
        """Return the id of a new run. Raises ConfigurationError if `wanted` is no id."""
        raise NotImplementedError

    async def fork(
        self,
        workflow_id: str,
        *,
        offset: int | None = None,
        from_step: str | None = None,
        from_failure: bool = False,
        as_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Begin a new run that goes on from a point of another: from an offset of its log (by default its
        end), or before a step, or before the steps that failed, and all that comes after them.

        Recorded results are kept and not repeated; the old log stays as it is. The fork is trusted if both
        the caller and the old run are. Raises RunNotFound,
        RunExists, CommandRefused (invalid_parameter, step_not_found, not_failed), DefinitionError.
        """
        if sum((offset is not None, from_step is not None, from_failure)) > 1:
            raise CommandRefused("give one of offset, from_step and from_failure", code="invalid_parameter")
        row = await self.log.run(workflow_id)
        if offset is not None and not 0 <= offset <= row.last_offset:
            message = f"{workflow_id} has offsets 0 to {row.last_offset}"
            raise CommandRefused(message, code="invalid_parameter", details={"last_offset": row.last_offset})
        upto = row.last_offset if offset is None else offset
        begin = await self._begin(workflow_id)
        plan, bound = await self._prepare(workflow_id, True, trusted=trusted)
        source = await self.fold(workflow_id, at=upto)
        base = await fork_base(
            self.log, source, plan, offset=upto, from_step=from_step, from_failure=from_failure
        )
        origin = ForkOrigin(workflow_id=workflow_id, offset=upto, from_step=from_step or UNSET)
        kept = begin.labels if labels is None else checked_labels(labels)
        started = msgspec.structs.replace(
            begin,
            forked_from=origin,
            by=by,
            labels=dict(kept),
            options=begin.options if trusted else {**begin.options, "trusted": False},
            idempotency_key=UNSET,
            body_hash=UNSET,
        )
        run_id = self._run_id(as_id)
        async with self._registry.exclusive(run_id):
            if as_id is not None and await self._taken(run_id):
                raise RunExists(f"{run_id} exists already")
            launch = await self._registry.begin(
                run_id, plan, bound, [started, base.saved], base=base.events, labels=dict(kept)
            )
        return self._handle(run_id, launch)

    async def _taken(self, run_id: str) -> bool:
        try:
            await self.log.run(run_id)
        except RunNotFound:
            return False
        return True
