"""From the checked values of a graph document to the JSON of the graph in normal form (page 003 §2).

Strings are trimmed, expressions lose their braces and a leading `$.`, kinds their other names; durations are
seconds; policies are merged; nodes are sorted by id. Payloads and prompts stay as they are.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentflow.definition.common_checks import compile_services
from agentflow.definition.expressions import unwrapped
from agentflow.definition.graph_origin import GraphOrigin
from agentflow.definition.input_checks import compile_inputs
from agentflow.definition.ir_vocabulary import (
    AGENT,
    ALIASES,
    MODEL,
    POLICY,
    ir_document,
    is_default,
    is_expression,
)
from agentflow.definition.kinds import KINDS
from agentflow.definition.policies import (
    Models,
    compiled_approval,
    compiled_budget,
    compiled_cache,
    merged_policy,
)
from agentflow.definition.report import Report, shown
from agentflow.definition.shapes import ArrayOf, Enum, Field, Json, Kind, Map, OneOf, Shape, Text
from agentflow.definition.source import node_of_value
from agentflow.definition.source_tree import Array, Object, child_pointer, json_type, to_value
from agentflow.definition.structure import Found, check_structure, fields_of
from agentflow.definition.vocabulary_values import APPROVAL, BUDGET, CACHE

__all__ = ["GraphLowering"]

_VERSION = "v0"
_EXPRESSION_SCOPE_BYTES = 131_072
_STAND_IN = "executor"
_WIRE = msgspec.to_builtins


class GraphLowering:
    """Lowers one document with all the graphs inside it; problems go to the report."""

    def __init__(self, report: Report, origin: GraphOrigin) -> None:
        self._report = report
        self._origin = origin
        self._models = Models(None, report, normal=True)
        self._graphs: frozenset[str] = frozenset()
        """Names of graphs that the nodes may name."""

    def graph(self, found: Found, base: str) -> dict[str, Any]:
        """Return the JSON of a graph that will stand at the pointer `base` of the whole."""
        origin = self._origin
        origin.enter(base, found)
        outer, self._models = self._models, Models(found.get("models"), self._report, normal=True)
        named = found.get("graphs")
        around, self._graphs = self._graphs, self._graphs.union(named.value if named is not None else ())
        wire: dict[str, Any] = {"version": _VERSION, "name": self._name(found, base)}
        self._check_version(found)
        wire["nodes"] = self._nodes(found, base)
        shape = ir_document().fields
        for key, member in found.items():
            if key in shape and key not in _OWN_KEYS:
                wire[key] = self._value(member, shape[key].kind, key, child_pointer(base, key))
        if not base.endswith("/inline"):  # which has the options of the graph around it
            wire.setdefault("options", {}).setdefault("max_expression_scope_bytes", _EXPRESSION_SCOPE_BYTES)
        if not wire.get("options"):
            wire.pop("options", None)
        if found.get("services") is not None:
            wire["services"] = _WIRE(compile_services(found, self._report))
        if found.get("models") is not None:
            wire["models"] = _WIRE(self._models.table())
        if found.get("inputs") is not None:
            wire["inputs"] = _WIRE(compile_inputs(found, self._report))
        self._models, self._graphs = outer, around
        return wire

    def _name(self, found: Found, base: str) -> str:
        name = found.get("name")
        if name is not None:
            self._origin.enter(f"{base}/name", name)
            return name.value.strip()
        if found.has("name"):
            self._origin.refused.add(f"{base}/name")
        return ""

    def _check_version(self, found: Found) -> None:
        version = found.get("version")
        if version is None:
            return
        value = version.value.strip() if isinstance(version.value, str) else version.value
        if value != _VERSION:
            text = f'"{shown(value)}"' if isinstance(value, str) else str(value)[:40]
            message = f"version {text} is not supported"
            place, pointer = version.place, version.pointer
            self._report.error("E_UNSUPPORTED_VERSION", message, place, pointer, f'write "{_VERSION}"')

    # -- nodes ----------------------------------------------------------------------------------

    def _nodes(self, found: Found, base: str) -> list[dict[str, Any]]:
        listed = found.get("nodes")
        if listed is None:
            if found.has("nodes"):
                self._origin.refused.add(f"{base}/nodes")
            return []
        written = listed.node.items if isinstance(listed.node, Array) else []
        if len(written) != len(listed.value):
            self._origin.unsure.add(f"{base}/nodes")
        stated = cast("list[Found]", listed.value)
        bodies = self._bodies(stated)
        nodes = sorted([*stated, *bodies.values()], key=_sort_key)
        defaults = self._defaults(found)
        lowered = [self._node(node, f"{base}/nodes/{i}", defaults) for i, node in enumerate(nodes)]
        for wire in lowered if bodies else ():
            if wire["id"] in bodies:  # its input is that of the graph
                wire["body"] = bodies[wire["id"]].plain("id")
                wire.pop("input", None)
        if not any(node["index"] for node in lowered):
            for i, node in enumerate(lowered):
                node["index"] = i
        return lowered

    def _bodies(self, nodes: list[Found]) -> dict[str, Found]:
        """Return, for each map whose body is the name of a graph, the node that runs it for an item."""
        ids = {str(node.plain("id", "")).strip() for node in nodes}
        found: dict[str, Found] = {}
        for node in nodes:
            name, own = str(node.plain("body") or "").strip(), str(node.plain("id", "")).strip()
            if not own or node.get("items_path") is None or name in ids or name not in self._graphs:
                continue
            id = f"{own}_item"
            while id in ids:
                id += "_"
            ids.add(id)
            given = node.get("input")
            item = "${{ item }}" if given is None else to_value(given.node)
            fields = {"id": id, "type": "subgraph", "graph": name, "input": item}
            root = node_of_value(fields, self._report)
            assert isinstance(root, Object)
            found[own] = check_structure(root, _node_shape(), self._report)
        return found

    def _defaults(self, found: Found) -> dict[str, Found]:
        declared = found.get("defaults")
        policies: dict[str, Found] = {}
        for name, policy in declared.items() if declared else ():
            kind = ALIASES.get(name, name)
            if kind not in KINDS:
                hint = self._report.did_you_mean(name, list(KINDS))
                message = f'there is no kind "{shown(name)}"'
                self._report.error("E_UNKNOWN_KIND", message, policy.key, policy.pointer, hint)
            elif "policy" not in KINDS[kind].takes:
                message = f"a {kind} does no work that could be repeated: its policy has no effect"
                self._report.error("E_CONFLICTING_FIELDS", message, policy.key, policy.pointer)
            else:
                policies[kind] = policy
        return policies

    def _node(self, found: Found, pointer: str, defaults: dict[str, Found]) -> dict[str, Any]:
        self._origin.enter(pointer, found)
        kind = self._kind(found)
        if kind is None:
            self._stand_in(found, pointer)
            return {"type": _STAND_IN, "id": self._id(found, pointer), "executor": "none", "index": 0}
        fields = fields_of(_node_shape(), found.node)
        wire: dict[str, Any] = {
            "type": kind,
            "id": self._id(found, pointer),
            "index": found.plain("index", 0),
        }
        if found.meant:
            self._origin.unsure.add(pointer)
        for key, field in fields.items():
            if key not in ("id", "type", "index"):
                self._member(found, key, field, pointer, wire)
        self._merge_policy(found, kind, defaults.get(kind), wire, pointer)
        if "agent" in wire:
            self._finish_agent(found, wire, pointer)
        return wire

    def _kind(self, found: Found) -> str | None:
        """Return the kind of a node; None, reported, if there is none."""
        member = found.get("type")
        if member is None:
            if not found.has("type"):
                hint = f"one of {', '.join(KINDS)}"
                if found.has("kind"):
                    hint = "a node has `type`, not `kind`"
                name = shown(str(found.plain("id") or found.pointer))
                self._report.error("E_EMPTY_FIELD", f'"{name}" has no type', found.key, found.pointer, hint)
            return None
        name = member.value.strip()
        kind = ALIASES.get(name, name)
        if kind in KINDS:
            return kind
        hint = self._report.did_you_mean(name, [*KINDS, *ALIASES])
        if name:
            message = f'there is no kind "{shown(name)}"'
            self._report.error("E_UNKNOWN_KIND", message, member.place, member.pointer, hint)
        else:
            self._report.error("E_EMPTY_FIELD", "the type is blank", member.place, member.pointer, hint)
        return None

    def _stand_in(self, found: Found, pointer: str) -> None:
        """Let a node of no known kind be named, and say nothing more about it."""
        self._origin.unsure.add(pointer)
        self._origin.refused.add(f"{pointer}/executor")

    def _id(self, found: Found, pointer: str) -> str:
        member = found.get("id")
        if member is not None:
            return member.value.strip()
        if found.has("id"):
            self._origin.refused.add(f"{pointer}/id")
        return ""

    def _member(self, found: Found, key: str, field: Field, pointer: str, wire: dict[str, Any]) -> None:
        """Lower one key of an object; what was wrong, or is missing, has a value that nothing is told of."""
        at = child_pointer(pointer, key)
        member = found.get(key)
        if member is not None:
            value = self._value(member, field.kind, key, at)
            if not is_default(value, field):
                wire[key] = value
            return
        if found.has(key) or field.required:
            self._origin.refused.add(at)
            self._origin.unsure.add(pointer)
        if field.required:
            wire[key] = _placeholder(field.kind)

    # -- values ---------------------------------------------------------------------------------

    def _value(self, found: Found, kind: Kind, key: str, at: str) -> Any:
        self._origin.enter(at, found)
        if isinstance(kind, OneOf):
            own = self._own_form(found, kind, at)
            if own is not None:
                return own
            kind = kind.by_type[json_type(found.node).rpartition(" ")[2]]
        if isinstance(kind, Text):
            return self._text(found, key, at)
        if kind is BUDGET:
            return _WIRE(compiled_budget(found))
        if kind is CACHE:
            return self._cache(found, at)
        if isinstance(kind, Shape):
            return self._object(found, kind, key, at)
        if isinstance(kind, Map):
            return self._map(found, kind, key, at)
        if isinstance(kind, ArrayOf):
            return self._array(found, kind, key, at)
        if isinstance(kind, Enum) and isinstance(found.value, str):
            return found.value.strip()
        return found.value

    def _own_form(self, found: Found, kind: OneOf, at: str) -> Any:
        """Return what is written in a form of its own: approvals, models, names of agents."""
        if kind is APPROVAL:
            approval = compiled_approval(found)
            return None if approval is None else _WIRE(approval)
        if kind is MODEL:
            return _WIRE(self._models.choose(found))
        if kind is AGENT and isinstance(found.value, str):
            return self._registered_agent(found, at)
        return None

    def _registered_agent(self, found: Found, at: str) -> dict[str, Any]:
        name = self._text(found, "agent", at)
        self._origin.enter(f"{at}/name", found)
        if not name:
            self._origin.refused.add(f"{at}/name")
        return {"name": name, "system_prompt": "", "registered": True}

    def _cache(self, found: Found, at: str) -> Any:
        cache = compiled_cache(found)
        if cache is None:
            self._origin.refused.add(at)
        return None if cache is None else _WIRE(cache)

    def _text(self, found: Found, key: str, at: str) -> str:
        text = found.value.strip()
        if is_expression(key) or key in ("set_globals", "for_each"):
            inner = unwrapped(text)
            text = f"${{{{ {inner} }}}}" if key == "for_each" and inner else inner
        if not text and key != "service":  # blank: that of the registered functions
            self._origin.refused.add(at)
            self._report.error("E_EMPTY_FIELD", f"{key} is blank", found.place, found.pointer)
        return text

    def _object(self, found: Found, shape: Shape, key: str, at: str) -> Any:
        if shape is ir_document():
            return self.graph(found, at)
        if shape is POLICY:
            return _WIRE(self._policy([found], at)) or {}
        wire: dict[str, Any] = {}
        if found.meant:
            self._origin.unsure.add(at)
        for name, field in fields_of(shape, found.node).items():
            self._member(found, name, field, at, wire)
        return wire

    def _map(self, found: Found, kind: Map, key: str, at: str) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        if isinstance(found.node, Object) and len(found.node.members) != len(found.value):
            self._origin.unsure.add(at)
        for name, member in found.items():
            lowered[name.strip()] = self._value(member, kind.of, key, child_pointer(at, name.strip()))
        return lowered

    def _array(self, found: Found, kind: ArrayOf, key: str, at: str) -> list[Any]:
        items = cast("list[Found]", found.value)
        if isinstance(found.node, Array) and len(found.node.items) != len(items):
            self._origin.unsure.add(at)
        return [self._value(item, kind.of, key, f"{at}/{i}") for i, item in enumerate(items)]

    # -- policies and agents --------------------------------------------------------------------

    def _merge_policy(
        self, found: Found, kind: str, default: Found | None, wire: dict[str, Any], pointer: str
    ) -> None:
        """Merge the policy of a node over that of its kind, key by key; its budget becomes the node's."""
        if "policy" not in KINDS[kind].takes:
            return
        own = found.get("policy")
        if default is not None and wire.get("body") is not None:
            default = None
        levels = [level for level in (default, own) if level is not None]
        if not levels:
            return
        policy = self._policy(levels, f"{pointer}/policy")
        wire.pop("policy", None)
        if policy is not None:
            wire["policy"] = _WIRE(policy)
        for level in levels:
            budget = level.get("budget")
            if budget is not None:
                if level is own and "budget" in wire:
                    message = f'"{wire["id"]}" has a budget beside its policy'
                    hint = "keep one of the two"
                    self._report.error("E_CONFLICTING_FIELDS", message, budget.key, budget.pointer, hint)
                    continue
                self._origin.enter(f"{pointer}/budget", budget)
                wire["budget"] = _WIRE(compiled_budget(budget))

    def _policy(self, levels: list[Found], at: str) -> Any:
        retries: list[Found | None] = []
        timeout = None
        for level in levels:
            if level.get("timeout") is not None:
                timeout = level.plain("timeout")
                self._origin.enter(f"{at}/timeout", cast("Found", level.get("timeout")))
            retry = level.get("retry")
            if retry is not None:
                self._origin.enter(f"{at}/retry", retry)
                retries.append(self._with_attempts(retry))
        return merged_policy(retries, timeout)

    def _with_attempts(self, retry: Found) -> Found:
        """Return a retry policy in which `max_retries` is read as `max_attempts`."""
        if not isinstance(retry.node, Object) or retry.get("max_retries") is None:
            return retry
        values = dict(retry.items())
        retries = values.pop("max_retries")
        if "max_attempts" in values:
            message = "max_retries and max_attempts say the same"
            self._report.error(
                "E_CONFLICTING_FIELDS", message, retries.key, retries.pointer, "keep one of the two"
            )
        attempts = int(retries.value) + 1
        values["max_attempts"] = Found(attempts, retries.node, retries.pointer, retries.key)
        return Found(values, retry.node, retry.pointer, retry.key)

    def _finish_agent(self, found: Found, wire: dict[str, Any], pointer: str) -> None:
        """Complete an agent by what stands beside it: tools and schema of the node, the default model."""
        agent = wire["agent"]
        inside = found.get("agent")
        agent.setdefault("name", wire["id"])
        for key in ("tools", "output_schema"):
            given = wire.pop(key, None)
            if given is None:
                continue
            if key in agent:
                member = cast("Found", found.get(key))
                message = f'"{wire["id"]}" has {key} in its agent'
                self._report.error("E_CONFLICTING_FIELDS", message, member.key, member.pointer, "keep one")
                continue
            agent[key] = given
            self._origin.enter(f"{pointer}/agent/{key}", cast("Found", found.get(key)))
        tools = agent.pop("tools", None)
        if tools is not None:
            if "functions" in agent and inside is not None:
                member = cast("Found", inside.get("functions"))
                message = f'the agent of "{wire["id"]}" has tools and functions'
                self._report.error("E_CONFLICTING_FIELDS", message, member.key, member.pointer, "keep one")
            agent["functions"] = [_function(name) for name in dict.fromkeys(tools)]
            written = found.get("tools") or (None if inside is None else inside.get("tools"))
            if written is not None:
                self._origin.enter(f"{pointer}/agent/functions", written)
        if "model" not in agent and not agent.get("registered"):
            model = self._models.choose(None)
            if model is not None:
                agent["model"] = _WIRE(model)


_OWN_KEYS = frozenset(
    {
        *("version", "format", "$schema", "name", "nodes", "defaults"),
        *("services", "models", "inputs"),
    }
)


def _node_shape() -> Shape:
    nodes = cast("ArrayOf", ir_document().fields["nodes"].kind)
    return cast("Shape", nodes.of)


def _sort_key(found: Found) -> bytes:
    node_id = found.plain("id", "")
    return str(node_id).strip().encode()


def _function(name: str) -> dict[str, str]:
    """Return the function that a tool's name means: a registered one has the service ""."""
    service, dot, function = name.partition(".")
    return {"service": service, "function": function} if dot else {"service": "", "function": name}


def _placeholder(kind: Kind) -> Any:
    """Return a value that the graph can hold in place of one that is missing."""
    match kind:
        case Text():
            return ""
        case Enum():
            return kind.values[0]
        case ArrayOf():
            return []
        case Map():
            return {}
        case Shape():
            return {k: _placeholder(f.kind) for k, f in kind.fields.items() if f.required}
        case Json():
            return "" if kind.types == ("string",) else None
        case OneOf():
            return _placeholder(next(iter(kind.by_type.values())))
        case _:
            return 1
