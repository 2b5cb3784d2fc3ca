"""Reducers of the shared state: how writes of one key are folded (page 002 §7).

    .add_shared("history", list[float], reducer=reducers.append)

A reducer is a pure function of the value and the update, which changes neither. `value` is None before the
first write of a key without a default. The built-in ones are attributes of this module; `register` gives a
function of your own a name, before the workflow is built, in each process that runs it.
"""

from __future__ import annotations

from typing import Any

from agentflow.definition.reducers import REDUCERS, register

__all__ = ["add", "append", "extend", "last", "max", "merge", "min", "register", "union"]

append = REDUCERS["append"]
extend = REDUCERS["extend"]
add = REDUCERS["add"]
max = REDUCERS["max"]
min = REDUCERS["min"]
union = REDUCERS["union"]
merge = REDUCERS["merge"]
last = REDUCERS["last"]


def name_of(reducer: Any) -> str | None:
    """Return the name of a registered reducer, or of a name itself; None if it is not registered."""
    if isinstance(reducer, str):
        return reducer if reducer in REDUCERS else None
    return next((name for name, known in REDUCERS.items() if known is reducer), None)
