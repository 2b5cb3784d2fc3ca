"""Generated graph documents, right and nearly right: each is refused with diagnostics, or runs to its end."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator

from agentflow.definition import Diagnostic, load_text
from agentflow.definition.editor_schema import graph_schema
from agentflow.definition.ir import Workflow, canonical_json
from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.ir_words import WORDS
from agentflow.definition.kinds import KINDS
from agentflow.docs.codes import DIAGNOSTICS
from agentflow.errors import DefinitionError
from tests.unit.engine.kinds.random_graphs import random_graph
from tests.unit.engine.kinds.worded_graphs import WordedFate, extend

_WORDS = [
    "end",
    "__end",
    "input.items",
    "input.n",
    "nodes.tool1.output",
    "$.input",
    "x",
    " ",
    "",
    "${{ item }}",
]
_VALUES: list[Any] = [None, True, 0, -1, 1, 2.5, "1s", [], {}, ["a"], {"a": 1}]


def document_of(seed: int) -> dict[str, Any]:
    """Return the JSON of a random graph of all kinds; of two in three, with up to three changes."""
    rng = random.Random(seed)
    value = msgspec.json.decode(canonical_json(random_graph(rng)))
    if seed % 3:
        extend(value, rng)
    value.setdefault("options", {})["max_steps"] = min(value.get("options", {}).get("max_steps", 60), 60)
    for _ in range(rng.choice([0, 0, 1, 2, 3])):
        change(value, rng)
    return value


def change(value: dict[str, Any], rng: random.Random) -> None:
    """Change one place of the document: a word, a value, a key, an element."""
    holders = list(inside(value))
    holder = rng.choice(holders)
    if isinstance(holder, list):
        if not holder:
            return
        index = rng.randrange(len(holder))
        move = rng.randrange(4)
        if move == 0:
            del holder[index]
        elif move == 1:
            holder.append(copy.deepcopy(holder[index]))
        elif move == 2:
            holder[index] = copy.deepcopy(rng.choice(_VALUES))
        else:
            holder.reverse()
        return
    if not holder:
        return
    key = rng.choice(list(holder))
    move = rng.randrange(5)
    if move == 0:
        del holder[key]
    elif move == 1:
        holder[key] = copy.deepcopy(rng.choice(_VALUES))
    elif move == 2:
        holder[key[:-1] or "k"] = holder.pop(key)
    elif isinstance(holder[key], str):
        holder[key] = rng.choice([*_WORDS, *(n["id"] for n in nodes_of(value))])


def nodes_of(value: Any) -> list[dict[str, Any]]:
    found = value.get("nodes")
    listed: list[Any] = found if isinstance(found, list) else []
    return [n for n in listed if isinstance(n, dict) and isinstance(n.get("id"), str)]


def inside(value: Any) -> list[Any]:
    """Return all arrays and objects in a value, itself first."""
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in inside(item))]
    if isinstance(value, list):
        return [value, *(found for item in value for found in inside(item))]
    return []


def verdict(seed: int) -> str:
    """Load a generated document, and run it if it is accepted; return `refused` or how the run ended."""
    value = document_of(seed)
    text = json.dumps(value) if seed % 2 else yaml.safe_dump(value, sort_keys=False)
    refused: list[Diagnostic] = []
    definition = None
    try:
        definition = load_text(text, media="json" if seed % 2 else "yaml")
    except DefinitionError as error:
        refused = error.diagnostics
    if definition is None:
        assert all(d.code in DIAGNOSTICS and d.line for d in refused), refused
        assert any(d.severity == "error" for d in refused)
        return "refused"
    assert isinstance(definition.workflow, Workflow)
    if isinstance(value.get("options"), dict):  # its normal form is its own, and is that of any layout
        again = load_text(canonical_json(definition.workflow).decode())
        assert again.ir_hash == definition.ir_hash
    driver = WordedFate(seed, definition.workflow).run()
    assert driver.state.status in ("completed", "failed", "cancelled")
    return driver.state.status


def verdicts(seeds: range) -> tuple[dict[str, int], dict[int, str]]:
    """Return how many documents have each verdict, and what went wrong with which seed."""
    counts: dict[str, int] = {}
    wrong: dict[int, str] = {}
    for seed in seeds:
        try:
            found = verdict(seed)
        except Exception as error:
            wrong[seed] = repr(error)[:300]
        else:
            counts[found] = counts.get(found, 0) + 1
    return counts, wrong


def test_generated_documents_are_refused_with_diagnostics_or_run_to_their_end():
    """300 seeds."""
    counts, wrong = verdicts(range(300))
    assert not wrong, f"{len(wrong)} of 300 seeds fail; {next(iter(wrong.items()))}"
    assert counts["refused"] > 50
    assert counts["completed"] > 50


def test_generated_documents_have_all_kinds():
    seen: set[str] = set()
    for seed in range(300):
        seen |= {
            str(one["type"]) for one in inside(document_of(seed)) if isinstance(one, dict) and "type" in one
        }
    assert seen >= KINDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_generated_documents_are_refused_or_run(part: int):
    """10,000 seeds."""
    _, wrong = verdicts(range(1_000 + part * 1_000, 2_000 + part * 1_000))
    assert not wrong, f"{len(wrong)} of 1,000 seeds fail; {next(iter(wrong.items()))}"


def test_the_schema_of_editors_takes_every_document_that_the_loader_takes():
    validator = Draft202012Validator(msgspec.json.decode(graph_schema()))
    taken = 0
    for seed in range(80):
        value = document_of(seed)
        try:
            load_text(json.dumps(value))
        except DefinitionError:
            continue
        taken += 1
        assert list(validator.iter_errors(value)) == [], seed
    assert taken > 20
    assert not validator.is_valid({"name": "w", "nodes": [{"id": "a", "type": "tool", "nxt": "b"}]})


def test_the_keys_of_graph_documents_are_described():
    shape = ir_document()
    node: Any = shape.fields["nodes"].kind
    fields = {key for variant in node.of.variants.values() for key in variant}
    assert sorted((fields | set(shape.fields)) - set(WORDS)) == ["$schema", "format"]
