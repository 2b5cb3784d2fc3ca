"""The fixed graph of the stages, and what marks its nodes."""

from __future__ import annotations

import msgspec
import pytest

from agentflow.definition.ir import canonical_json, decode_ir
from agentflow.definition.loader import definition_of, load_value
from agentflow.errors import DefinitionError
from agentflow.pipeline.graph import pipeline_definition, pipeline_graph


def test_the_graph_of_a_request_is_a_definition_of_its_own_format():
    graph = pipeline_graph({})
    found = pipeline_definition(graph)
    assert (found.format, found.name) == ("pipeline", "request")
    assert decode_ir(canonical_json(graph)) == graph
    assert [node.id for node in graph.nodes][1:-1] == [
        "normalize",
        "plan",
        "review",
        "execute",
        "verify",
        "write",
    ]


def test_no_document_can_mark_its_nodes_as_stages():
    graph = pipeline_graph({})
    with pytest.raises(DefinitionError, match="is reserved"):
        definition_of(graph)
    document = msgspec.json.decode(canonical_json(graph))
    with pytest.raises(DefinitionError):
        load_value(document, format="ir/v0")
