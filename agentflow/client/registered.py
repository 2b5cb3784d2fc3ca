"""RegisteredDefinition: what a client submits in place of a document that the daemon has."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RegisteredDefinition"]


class RegisteredDefinition(NamedTuple):
    """A definition that was sent to `POST /definitions`, or a workflow of `agentflow serve --load`."""

    name: str
    version: str | None = None
    """None: the newest one."""

    @property
    def reference(self) -> dict[str, str]:
        """Return `definition_ref` of a request."""
        return {"name": self.name} if self.version is None else {"name": self.name, "version": self.version}
