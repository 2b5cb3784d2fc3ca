"""What the runtime looks at before a step of a plan: files, services, the delegate (page 004 §5, §8, §9).

Whether a foreign delegate is there is asked once after each start, resume, execute and decision, within 2 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from agentflow.engine import Looked, Probe
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.file_snapshots import snapshot_files
from agentflow.tools.delegates import is_there

__all__ = ["StepProbes"]

PING_TIMEOUT_S: Final = 2.0


class StepProbes:
    """The probes of one run. `known`: the mode of execution that its start found."""

    def __init__(self, workflow_id: str, directory: Directory, known: Mapping[str, Any] | None) -> None:
        self._workflow_id = workflow_id
        self._directory = directory
        self._pinged: asyncio.Future[bool] | None = None
        self._known: bool | None = None if known is None else bool(known["stage3_available"])

    def forget_mode(self) -> None:
        """Ask the delegate again before the next step."""
        self._pinged, self._known = None, None

    async def look(self, probe: Probe) -> Looked:
        """Return what there is; a file that cannot be read is none."""
        files: dict[str, Any] = {}
        if probe.workspace is not None:
            files = await asyncio.to_thread(snapshot_files, probe.workspace, probe.names)
        down = tuple(name for name in probe.services if self._is_down(name))
        return Looked(
            files, down, probe.delegate is not None and await self._is_delegate_there(probe.delegate)
        )

    def _is_down(self, name: str) -> bool:
        service = self._directory.service(name)
        return service is None or not service.is_available()

    async def _is_delegate_there(self, name: str) -> bool:
        if self._known is not None:
            return self._known
        if self._pinged is None:
            service = self._directory.service(name)
            self._pinged = asyncio.ensure_future(is_there(service, self._workflow_id, PING_TIMEOUT_S))
        return await asyncio.shield(self._pinged)
