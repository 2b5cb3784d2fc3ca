"""Imports the adapters of models before a binding resolves them on the event loop.

An adapter and what it stands on take up to 60 ms of CPU, once in a process. The event loop belongs to all
runs, so this happens in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from agentflow.aside import compute_aside
from agentflow.definition.ir import ModelRef
from agentflow.models import ModelResolutionError, Models

__all__ = ["import_adapters"]

_MAX_NAMES: Final = 1_000

Wanted = ModelRef | str | None


async def import_adapters(
    models: Models, wanted: Iterable[Wanted], resolve: Callable[[Wanted], ModelRef]
) -> None:
    """Import the adapter of each model that was not wanted before; what cannot be resolved is left out."""
    names = {name if isinstance(name, str) else name and name.name: name for name in wanted}
    new = [name for key, name in names.items() if key not in models.prepared]
    if not new:
        return

    def import_each() -> None:
        for name in new:
            try:
                models.import_adapter(resolve(name))
            except ModelResolutionError:  # the binding reports it with its place
                continue

    await compute_aside(import_each)
    if len(models.prepared) > _MAX_NAMES:  # documents choose the names
        models.prepared.clear()
    models.prepared.update(names)
