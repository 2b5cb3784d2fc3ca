"""Diagnostics of documents that are Python values have a place too: their JSON pointer (daily use 11)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition import check_text, load_value
from agentflow.definition.report import Fatal, Report
from agentflow.definition.source import read_node
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import to_value
from agentflow.errors import DefinitionError
from tests.conformance.test_mistakes import MISTAKES, Mistake


def value_of(text: str) -> Any:
    """The plain value of a document; None if its text alone is wrong."""
    report = Report()
    try:
        node = read_node(Source(text, "yaml"), report)
    except Fatal:
        return None
    return None if report.has_errors else to_value(node)


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if value_of(m.document) is not None], ids=str)
def test_a_mistake_in_a_value_has_the_path_that_it_has_in_a_text(mistake: Mistake):
    try:
        found = load_value(value_of(mistake.document)).warnings
    except DefinitionError as error:
        found = error.diagnostics
    in_text = [d for d in check_text(mistake.document, media="yaml") if d.code != "W_YAML_AMBIGUOUS"]
    assert [(d.code, d.path) for d in found] == [(d.code, d.path) for d in in_text]
    assert all(d.line is None and d.path is not None for d in found)


def test_the_path_is_printed_where_there_is_no_line():
    with pytest.raises(DefinitionError) as caught:
        load_value({"version": "1.0", "workflow": {"steps": [{"type": "loop", "id": "a", "agent": 1}]}})
    assert [diagnostic.render().splitlines()[0] for diagnostic in caught.value.diagnostics] == [
        "error E_TYPE: agent must be an object, not a number (at /workflow/steps/0/agent)",
        'error E_VALUE: type "loop" is not allowed (at /workflow/steps/0/type)',
    ]
