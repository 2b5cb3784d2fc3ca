"""Generated graphs in node-graph YAML: refused where the graph is, else each runs to its end (§12)."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
import yaml

from agentflow.definition import Diagnostic, load_text
from agentflow.definition.ir import canonical_json
from agentflow.docs.codes import DIAGNOSTICS
from agentflow.errors import DefinitionError
from tests.unit.definition.test_generated_documents import change
from tests.unit.engine.kinds.random_graphs import random_graph
from tests.unit.engine.kinds.worded_graphs import WordedFate, extend

_ALIASES = {
    "parallel": {"branches": "nodes"},
    "filter": {"expression": "condition"},
    "map": {"items_path": "source"},
}


def graph_of(seed: int) -> dict[str, Any]:
    """Return a random graph document without `edges[]`, which node YAML has not."""
    rng = random.Random(seed)
    value = msgspec.json.decode(canonical_json(random_graph(rng)))
    if seed % 3:
        extend(value, rng)
    value.setdefault("options", {})["max_steps"] = 60
    value.pop("edges", None)
    for node in value["nodes"]:
        if node["type"] == "switch":
            node["type"] = "if"
        if node.get("max_tool_roundtrips") == 0:
            node["max_tool_roundtrips"] = 1
    return value


def node_yaml_of(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the same graph as node YAML: here and there by an alias, an edge or the config of a node."""
    document: dict[str, Any] = {"id": value["name"], "nodes": [], "edges": [], "options": value["options"]}
    for node in value["nodes"]:
        fields = {key: one for key, one in node.items() if key not in ("id", "type", "index", "name")}
        if node["type"] == "start":
            document["entry_node"] = fields["next"]
            continue
        kind, config = node["type"], dict[str, Any]()
        for key in ("set_globals", "update_globals"):
            if key in fields and rng.random() < 0.5:
                config[key] = fields.pop(key)
        if kind == "end":
            fields = fields.get("output")
        else:
            kind = _written(kind, fields, config, rng)
            if "next" in fields and rng.random() < 0.6:
                document["edges"].append({"from": node["id"], "to": fields.pop("next")})
        made = {"id": node["id"], "node_type": {kind: fields}}
        document["nodes"].append({**made, **({"config": config} if config else {})})
    return document


def _written(kind: str, fields: dict[str, Any], config: dict[str, Any], rng: random.Random) -> str:
    if kind == "llm" and rng.random() < 0.7:
        for key, other in {
            "prompt": "prompt",
            "system": "node_system_prompt",
            "output_schema": "schema",
        }.items():
            if key in fields and rng.random() < 0.5:
                config[other] = fields.pop(key)
        fields["provider"], fields["model"] = fields["model"].split(":", 1)
        return "llm_call"
    if kind == "router" and rng.random() < 0.7:
        routes = fields.pop("routes")
        fields["branches"] = [{"condition": one["when"], "target": one["next"]} for one in routes]
        return "switch"
    if kind == "human_in_the_loop" and fields.get("input_type", "approval") != "approval":
        if "timeout" in fields:
            fields["timeout_seconds"] = fields.pop("timeout")
        return "human_input"
    for key, alias in _ALIASES.get(kind, {}).items():
        if rng.random() < 0.5:
            fields[alias] = fields.pop(key)
    return kind


def errors_of(text: str) -> list[str]:
    found: list[Diagnostic] = []
    try:
        load_text(text)
    except DefinitionError as error:
        found = error.diagnostics
    assert all(d.code in DIAGNOSTICS and d.line for d in found), found
    return sorted({d.code for d in found if d.severity == "error"})


def must_be_refused_or_run(seed: int) -> bool:
    """Load a document; compare with its graph if it was not changed, and run it if it is accepted."""
    rng = random.Random(seed + 1)
    value = graph_of(seed)
    document = node_yaml_of(value, rng)
    is_changed = rng.random() < 0.3
    for _ in range(rng.randint(1, 3) if is_changed else 0):
        change(document, rng)
    text = yaml.safe_dump(document, sort_keys=False) if seed % 2 else json.dumps(document)
    errors = errors_of(text)
    if not is_changed:
        assert bool(errors) == bool(errors_of(json.dumps(value))), errors
    if errors:
        return False
    driver = WordedFate(seed, load_text(text).workflow).run()  # type: ignore[arg-type]
    assert driver.state.status in ("completed", "failed", "cancelled")
    return True


def test_a_graph_in_node_yaml_is_refused_as_the_graph_is_or_runs():
    assert sum(must_be_refused_or_run(seed) for seed in range(120)) > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_graphs_in_node_yaml_are_refused_or_run(part: int):
    for seed in range(1_000 + part * 300, 1_300 + part * 300):
        must_be_refused_or_run(seed)
