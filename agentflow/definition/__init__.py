"""What a workflow is: documents, their diagnostics, and the canonical graph that they compile to.

    load_file, load_text, load_value   document -> Definition, or DefinitionError with every diagnostic
    check_file, check_text             document -> diagnostics
    check_inputs                       the inputs of one run -> values with defaults, diagnostics
    to_mermaid                         graph -> text of a drawing

Nothing here runs a workflow, calls a service, or does I/O beyond reading the named document. The loader is
imported when one of its names is first used: who needs the vocabulary alone does not pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.definition.loader import (
        Definition,
        check_file,
        check_inputs,
        check_text,
        load_file,
        load_text,
        load_value,
    )
    from agentflow.definition.mermaid import to_mermaid

__all__ = [
    "Definition",
    "Diagnostic",
    "check_file",
    "check_inputs",
    "check_text",
    "load_file",
    "load_text",
    "load_value",
    "to_mermaid",
]

_HOMES = {"Diagnostic": "diagnostics", "to_mermaid": "mermaid"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'loader')}"), name)
    globals()[name] = value
    return value
