"""Puts the request pipeline together from a configuration: settings, toolsets and their services."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentflow.config import Config, data_folder
from agentflow.pipeline.requests import Requests
from agentflow.pipeline.settings import PipelineSettings, default_workspace_root, settings_of
from agentflow.pipeline.template_store import TemplateStore
from agentflow.runtime.runtime import Runtime
from agentflow.tools import Service
from agentflow.tools.toolsets.registry import ToolsetRegistry

__all__ = ["Assembly", "assemble"]


class Assembly(NamedTuple):
    """What a configuration says of requests, before a Runtime is open."""

    settings: PipelineSettings
    registry: ToolsetRegistry
    folder: Path | None = None

    def services(self) -> list[Service]:
        """Return the services of the toolsets and the delegates that are programs, to register with the
        Runtime. Raises ConfigurationError."""
        delegates = self.settings.delegates
        if not delegates:
            return self.registry.services()
        from agentflow.tools.remote_delegates import remote_delegate

        programs = [remote_delegate(name, said, self.folder) for name, said in delegates.items()]
        return [*self.registry.services(), *programs]

    def requests(self, runtime: Runtime, local: Path | None = None) -> Requests:
        """Return the requests of a Runtime. `local`: the folder of templates beside the user's."""
        templates = TemplateStore(data_folder() / "templates", local)
        return Requests(runtime, self.settings, registry=self.registry, templates=templates)


def assemble(config: Config, services: Iterable[Service] = (), *, folder: Path | None = None) -> Assembly:
    """Return the pipeline of a configuration. `folder` may hold workspaces. Raises ConfigurationError."""
    settings = settings_of(config.pipeline)
    roots = settings.workspace_roots or (str(default_workspace_root()),)
    if folder is not None:
        roots = (*roots, str(folder))
    settings = msgspec.structs.replace(settings, workspace_roots=roots)
    registry = ToolsetRegistry(config.toolsets, settings.roots, services=services)
    return Assembly(settings, registry, folder)
