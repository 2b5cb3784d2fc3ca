"""Keys of effects (page 003 §9)."""

from __future__ import annotations

from agentflow.engine.effect_keys import EffectKey, input_hash
from tests.unit.engine.handlers import Graph, graph, node


def key(request: object, ordinal: int = 0, **more: object) -> EffectKey:
    run = Graph(graph(node("a", **more), edges=[]), 1, handlers={})
    activation = run.state.activations["/a#0"]
    return EffectKey(activation.base_key, None, ordinal, input_hash(activation.node.spec, request))


def test_an_effect_is_named_by_its_activation_and_ordinal_and_the_hash_of_what_is_asked():
    assert key({"x": 1, "y": 2}) == key({"y": 2, "x": 1})
    assert key({"x": 1})[:3] == ("/a#0", None, 0)
    assert key({"x": 1}, 1).ordinal == 1
    assert key({"x": 1}).input_hash != key({"x": 2}).input_hash


def test_the_hash_changes_with_the_configuration_of_the_node():
    assert key({"x": 1}).input_hash != key({"x": 1}, accepts=("int",)).input_hash
