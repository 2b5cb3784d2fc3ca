"""Two versions of a graph: what differs, and whether a run of one can be forked to the other (page 002 §9).

A run goes on with the graph that it is pinned to, whatever becomes of its file. A fork may take another graph
if that has the same signature: the same steps, joined in the same way. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from agentflow.definition.ir import Node, Workflow, agent_of
from agentflow.definition.kinds import kind_of
from agentflow.definition.signature import conditions_of, edge_shape, node_shape, signature

__all__ = ["Difference", "compare", "unfit_results"]

_SHOWN = 60


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs, in words. `node`: the step it is about, None for the whole. `structural`: it
    changes the signature, so that no run of the old graph can be forked to the new one."""

    node: str | None
    message: str
    structural: bool


def compare(old: Workflow, new: Workflow) -> list[Difference]:
    """Return what differs from `old` to `new`; empty if they do the same. Structural differences come first,
    each group in the order of the steps. There is a structural one exactly if the signatures differ."""
    before = {node.id: node for node in old.nodes}
    after = {node.id: node for node in new.nodes}
    found = [_about(node, f'step "{i}" is gone', True) for i, node in before.items() if i not in after]
    found += [_about(node, f'step "{i}" is new', True) for i, node in after.items() if i not in before]
    for node_id, node in after.items():
        if node_id in before:
            found += _changes(before[node_id], node)
    found += _edges(old, new, {d.node for d in found if d.structural})
    whole = list(_whole(old, new))
    if not any(d.structural for d in (*found, *whole)) and signature(old) != signature(new):
        found.append(Difference(node=None, message="the edges are others", structural=True))
    found += whole
    return sorted(found, key=lambda d: not d.structural)


def unfit_results(workflow: Workflow, results: Mapping[str, Any]) -> list[Difference]:
    """Return the recorded results (by step) that the schemas of this graph do not allow: steps that read them
    would find what their author did not expect."""
    from agentflow.definition.schemas import validate

    found: list[Difference] = []
    for node in workflow.nodes:
        agent = agent_of(node)
        schema = agent.output_schema if agent is not None else None
        if schema is None or node.id not in results:
            continue
        issues = [issue for value in _values(node, results[node.id]) for issue in validate(schema, value)[:1]]
        if issues:
            at = f", at {issues[0].path}" if issues[0].path else ""
            message = f'the recorded result of "{node.id}" breaks its new schema: {issues[0].message}{at}'
            found.append(_about(node, message, True))
    return found


def _values(node: Node, result: Any) -> list[Any]:
    """Return what the schema of a step judges: its result, or those of its iterations that succeeded."""
    if node.for_each is None:
        return [result]
    return [v for v in cast("list[Any]", result) if v is not None] if isinstance(result, list) else []


def _about(node: Node, message: str, structural: bool) -> Difference:
    return Difference(node=node.id, message=message, structural=structural)


def _targets(node: Node) -> dict[str, str]:
    """Return the target of each port, by the label that it has if it chooses its way."""
    targets: dict[str, str] = node_shape(node)["targets"]
    return targets


def _changes(old: Node, new: Node) -> Iterator[Difference]:
    if kind_of(old) is not kind_of(new):
        yield _about(new, f'"{new.id}" is {_article(new)} now, it was {_article(old)}', True)
        return
    for name in (d for d in new.depends_on if d not in old.depends_on):
        yield _about(new, f'"{new.id}" depends on "{name}" as well', True)
    for name in (d for d in old.depends_on if d not in new.depends_on):
        yield _about(new, f'"{new.id}" no longer depends on "{name}"', True)
    yield from _expressions(old, new)
    was, now = _targets(old), _targets(new)
    for port in sorted({*was, *now}):
        if was.get(port) != now.get(port):
            text = f'"{new.id}" leads to {_quoted(now.get(port))}, it led to {_quoted(was.get(port))}'
            yield _about(new, text, True)
    if old.join != new.join and conditions_of(old) == conditions_of(new):
        yield _about(new, f'"{new.id}" waits by rule {new.join}, it was {old.join}', True)
    yield from _types(old, new)
    if node_shape(old) != node_shape(new) and not _differ(old, new, conditions_of, _targets, _types_of):
        yield _about(new, f'"{new.id}" joins in another way', True)
    for name in _details(old, new):
        yield _about(new, f'{name} of "{new.id}" changed', False)


_TYPE_WORDS = {"accepts": "takes", "emits": "sends", "answers": "takes as answers"}


def _types_of(node: Node) -> dict[str, Any]:
    """Return the types of the messages of a node, by what it does with them."""
    shape = node_shape(node)
    return {field: shape[field] for field in _TYPE_WORDS if field in shape}


def _types(old: Node, new: Node) -> Iterator[Difference]:
    was, now = _types_of(old), _types_of(new)
    for field, verb in _TYPE_WORDS.items():
        before, after = was.get(field, ()), now.get(field, ())
        if before != after:
            text = f'"{new.id}" {verb} {_tags(after)} now, it was {_tags(before)}'
            yield _about(new, text, True)


def _tags(tags: Sequence[str]) -> str:
    return " | ".join(tags) or "nothing"


def _differ(old: Node, new: Node, *parts: Callable[[Node], Any]) -> bool:
    """Return True if a part of the signature that is told for itself differs."""
    told = old.join != new.join or {*old.depends_on} != {*new.depends_on}
    return told or any(part(old) != part(new) for part in parts)


def _expressions(old: Node, new: Node) -> Iterator[Difference]:
    was, now = conditions_of(old), conditions_of(new)
    for name in {**was, **now}:
        if was.get(name) == now.get(name):
            continue
        if name not in was:
            text = f'"{new.id}" has {name} now: {_short(now[name])}'
        elif name not in now:
            text = f'"{new.id}" no longer has {name}: {_short(was[name])}'
        else:
            text = f'{name} of "{new.id}" is {_short(now[name])}, it was {_short(was[name])}'
        yield _about(new, text, True)


_NODE_DETAILS = {
    "policy": "retry or timeout",
    "max_parallel": "max_parallel",
    "required": "required",
    "approval": "approval",
    "cache": "cache",
    "budget": "budget",
    "input": "input",
    "output": "output",
    "tool": "the tool",
}
_TOLD_ELSEWHERE = {"id", "name", "index", "metadata", "depends_on", "join", "guard", "for_each", "agent"}
_AGENT_DETAILS = {
    "system_prompt": "the system prompt",
    "model": "the model",
    "fallback": "the fallback models",
    "output_schema": "the result schema",
    "functions": "the functions",
    "context": "context",
    "tags": "tags",
    "max_turns": "max_turns",
    "max_tool_calls": "max_tool_calls",
    "parallel_tool_calls": "parallel_tool_calls",
    "examples": "the examples",
    "accept_truncated": "accept_truncated",
}


def _details(old: Node, new: Node) -> Iterator[str]:
    for key, words in _NODE_DETAILS.items():
        if getattr(old, key, None) != getattr(new, key, None):
            yield words
    told = {*_NODE_DETAILS, *_TOLD_ELSEWHERE, *kind_of(new).structural}
    yield from (k for k in new.__struct_fields__ if k not in told and getattr(old, k) != getattr(new, k))
    before, after = agent_of(old), agent_of(new)
    if before is not None and after is not None:
        for key, words in _AGENT_DETAILS.items():
            if getattr(before, key) != getattr(after, key):
                yield words


def _edges(old: Workflow, new: Workflow, told: set[str | None]) -> Iterator[Difference]:
    """Yield the edges that come or go, but for those that follow from a difference that is told already."""
    ends = {n.id for w in (old, new) for n in w.nodes if kind_of(n).is_border}
    was, now = _edges_of(old), _edges_of(new)
    for pair in [*now, *(p for p in was if p not in now)]:
        if was.get(pair) == now.get(pair) or told & {*pair} or (told and ends & {*pair}):
            continue
        message = f'the edge from "{pair[0]}" to "{pair[1]}" {_verb(was.get(pair), now.get(pair))}'
        yield Difference(node=pair[1], message=message, structural=True)


def _verb(was: list[Any] | None, now: list[Any] | None) -> str:
    if now is None:
        return "is gone"
    if was is None:
        return "is new"
    kinds, before = [edge[0] for edge in now], [edge[0] for edge in was]
    if kinds != before:
        return f"is {', '.join(kinds)} now, it was {', '.join(before)}"
    parts = [set(_parts(a).items()) ^ set(_parts(b).items()) for a, b in zip(was, now, strict=True)]
    fields = sorted({name for part in parts for name, _ in part})
    return f"has another {' and '.join(fields)}" if fields else "is of another kind"


def _parts(shape: list[Any]) -> dict[str, str]:
    """Return what an edge says beside its kind and ends, as texts."""
    more: dict[str, Any] = shape[3] if len(shape) > 3 else {}
    return {name: repr(value) for name, value in more.items() if name != "kind"}


def _edges_of(workflow: Workflow) -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for edge in workflow.edges:
        found.setdefault((edge.source, edge.target), []).append(edge_shape(edge))
    return found


def _whole(old: Workflow, new: Workflow) -> Iterator[Difference]:
    for key in dict.fromkeys([*old.shared, *new.shared]):
        was, now = (w.shared[key].reducer if key in w.shared else None for w in (old, new))
        if was != now:
            words = f'the shared key "{key}" has {_reducer(now)} now, it had {_reducer(was)}'
            yield Difference(node=None, message=words, structural=True)
    parts = {
        "inputs": "the declared inputs",
        "outputs": "the outputs",
        "services": "the services",
        "models": "the models",
        "options": "the limits of the run",
        "globals": "the global values",
        "shared": "the shared state",
    }
    for key, words in parts.items():
        if getattr(old, key) != getattr(new, key):
            yield Difference(node=None, message=f"{words} changed", structural=False)


def _reducer(name: str | None) -> str:
    return "no reducer" if name is None else f'the reducer "{name}"'


def _article(node: Node) -> str:
    kind = kind_of(node).name
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} node"


def _quoted(name: str | None) -> str:
    return "nothing" if name is None else f'"{name}"'


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
