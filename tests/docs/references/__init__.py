"""Generates the reference pages from the code they describe: `python -m tests.docs.references` writes them.

A test compares the committed pages with what is generated, so that they cannot differ from the product.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.docs.references.api import make_api
from tests.docs.references.codes import make_codes
from tests.docs.references.commands import make_commands
from tests.docs.references.configuration import make_configuration
from tests.docs.references.events import make_event_types
from tests.docs.references.expressions import make_expressions
from tests.docs.references.keys import make_keys

__all__ = ["REFERENCES"]

REFERENCES: dict[str, Callable[[], str]] = {
    "keys": make_keys,
    "expressions": make_expressions,
    "configuration": make_configuration,
    "codes": make_codes,
    "event-types": make_event_types,
    "commands": make_commands,
    "api": make_api,
}
"""Topic to the function that makes the text of its page."""
