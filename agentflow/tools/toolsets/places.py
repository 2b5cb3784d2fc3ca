"""In which directory the functions of a toolset work for a call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agentflow.definition.toolsets import StepContext
from agentflow.tools.tool import ToolContext, ToolError
from agentflow.tools.toolsets.workspace import Workspace

__all__ = ["Places"]


class Places:
    """The directories below which workspaces lie. The first one holds those of runs that name none."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)

    def of(self, ctx: ToolContext) -> Workspace:
        """Return the workspace of the run that makes a call.

        That of a step of a plan was chosen with its request; any other run has the directory of its id. The
        `context` of a document chooses none: it would be a door into the files of other runs.
        Raises ToolError if the directory lies below no root.
        """
        context = ctx.context
        chosen = context.workspace if isinstance(context, StepContext) else None
        roots = [root.resolve() for root in self._roots]
        path = roots[0] / ctx.workflow_id if chosen is None else Path(os.path.abspath(chosen))
        # One that has become a link since the run began is refused, also if it leads below a root.
        if path.resolve() == path and any(path == root or root in path.parents for root in roots):
            return Workspace(path)
        message = "the workspace of the run lies below no folder of pipeline.workspace_roots"
        raise ToolError.of("policy", "workspace_denied", message, executed=False)
