"""The scenes of the golden logs, by subject; importing this package registers all of them."""

from tests.golden.scenes import (
    agents,
    data_kinds,
    documents,
    graphs,
    handlers,
    kinds,
    limits,
    messages,
    people,
    processes,
)

__all__ = [
    "agents",
    "data_kinds",
    "documents",
    "graphs",
    "handlers",
    "kinds",
    "limits",
    "messages",
    "people",
    "processes",
]
