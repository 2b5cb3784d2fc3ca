"""One node of node-graph YAML as a node of the graph: kind, aliases, config, policy (page 003 §12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentflow.definition.ir_vocabulary import ALIASES
from agentflow.definition.kinds import KINDS
from agentflow.definition.llm_call_checks import lower_llm_call
from agentflow.definition.node_yaml_vocabulary import OWN_KINDS
from agentflow.definition.report import Report, shown
from agentflow.definition.rewriting import Parts, Rewriting, elements_of, made, part_of, parts_of
from agentflow.definition.source_tree import Object, Scalar, json_type, to_value
from agentflow.definition.structure import Found

__all__ = ["NodeBody"]

_KIND_OF = {
    "llm_call": "llm",
    "switch": "router",
    "custom_worker": "tool",
    "human_input": "human_in_the_loop",
}
_ROUTE = {"condition": "when", "target": "next"}
_OPS = ("set", "append", "increment", "merge")
_INPUT_TYPES = ("choice", "text", "form")
_PROMPTED = frozenset({"llm", "human_in_the_loop"})


class NodeBody:
    """A node as it will stand in the graph: `fields` by key. `kind` is "" if it is not known."""

    def __init__(self, found: Found, rewriting: Rewriting, report: Report) -> None:
        self.found = found
        self.is_damaged = bool(found.meant)
        self.fields: Parts = {}
        self._report = report
        self._rewriting = rewriting
        identifier = found.get("id")
        self.id = identifier.value.strip() if identifier is not None else ""
        for key in ("id", "name"):
            part = found.get(key)
            if part is not None:
                self.fields[key] = part
        self.written, self.body = self._kind()
        self.kind = _KIND_OF.get(self.written, ALIASES.get(self.written, self.written))
        self._add_body()

    def _kind(self) -> tuple[str, Found]:
        """Return the one kind that the node has, and its fields; problems are reported."""
        node_type = self.found.get("node_type")
        if node_type is None or not isinstance(node_type.node, Object) or not parts_of(node_type):
            if node_type is not None or not self.found.has("node_type"):
                where = node_type or self.found
                place = node_type.place if node_type else self.found.key
                message = f'"{shown(self.id)}" has no node_type'
                hint = f"one of {', '.join(self._known())}"
                self._report.error("E_MISSING_NODE_TYPE", message, place, where.pointer, hint)
            self.is_damaged = True
            return "", self.found
        kinds = parts_of(node_type)
        if len(kinds) > 1:
            second = list(kinds.values())[1]
            message = f'"{shown(self.id)}" has more than one node_type: {", ".join(map(shown, kinds))}'
            self._report.error("E_MULTIPLE_NODE_TYPES", message, second.key, second.pointer, "keep one")
            self.is_damaged = True
        name, body = next(iter(kinds.items()))
        if name.strip() not in self._known():
            hint = self._report.did_you_mean(name, self._known())
            message = f'there is no kind "{shown(name)}"'
            self._report.error("E_UNKNOWN_KIND", message, body.key, body.pointer, hint)
            self.is_damaged = True
            return "", body
        return name.strip(), body

    @staticmethod
    def _known() -> list[str]:
        return list(dict.fromkeys((*OWN_KINDS, *KINDS, *ALIASES)))

    def _add_body(self) -> None:
        if not self.kind:
            # Reported: the node keeps its id, so that others may name it.
            self.fields["type"] = made("executor", self.found)
            self.fields["executor"] = made("none", self.found)
            return
        if self.kind not in KINDS:
            self.is_damaged = True
        body = self.body
        self.fields["type"] = made(self.kind, Found(None, body.node, body.pointer, body.key))
        if self.written != "end" and not isinstance(body.node, Object):
            if isinstance(body.node, Scalar) and body.node.value is None:
                body = Found(None, Object({}, body.node.line, body.node.column), body.pointer, body.key)
            else:
                message = f"{self.written} must be an object, not {json_type(body.node)}"
                self._report.error("E_TYPE", message, body.place, body.pointer)
                self.is_damaged = True
                return
        lower: Callable[[Found], Parts] = getattr(self, f"_lower_{self.written}", parts_of)
        self.fields |= lower(body)
        self._add_config()
        self._add_policy()

    # -- kinds ----------------------------------------------------------------------------------

    def _lower_end(self, body: Found) -> Parts:
        empty = isinstance(body.node, Scalar) and body.node.value is None
        if empty or (isinstance(body.node, Object) and not body.node.members):
            return {}
        return {"output": body}

    def _lower_switch(self, body: Found) -> Parts:
        fields = parts_of(body)
        branches = fields.pop("branches", None)
        if branches is not None:
            routes = [self._renamed(b, _ROUTE) for b in elements_of(branches)]
            fields["routes"] = self._rewriting.array(routes, branches)
        return fields

    def _lower_custom_worker(self, body: Found) -> Parts:
        fields = parts_of(body)
        handler = fields.pop("handler", None)
        language = fields.pop("language", None)
        if language is not None and to_value(language.node) != "python":
            message = f'language "{shown(str(to_value(language.node)))}" is not allowed'
            self._report.error("E_VALUE", message, language.place, language.pointer, 'write "python"')
        name = to_value(handler.node) if handler is not None else None
        if not isinstance(name, str) or not name.strip():
            where = handler or body
            place = handler.place if handler else body.key
            message = f'"{shown(self.id)}" has no handler'
            self._report.error("E_EMPTY_FIELD", message, place, where.pointer)
            self.is_damaged = True
        else:
            fields["tool"] = made(f"worker:{name.strip()}", handler or body)
        return fields

    def _lower_llm_call(self, body: Found) -> Parts:
        fields = parts_of(body)
        self.is_damaged |= lower_llm_call(fields, self.id, self._rewriting, self._report)
        config = self.found.get("config")
        prompted = config is not None and (config.has("prompt") or config.has("user_input_prompt"))
        appended = fields.get("append_prompt_as_user")
        if "prompt" not in fields and not prompted and appended and to_value(appended.node) is False:
            fields["prompt"] = made("", appended)
        return fields

    def _lower_human_input(self, body: Found) -> Parts:
        fields = parts_of(body)
        seconds = fields.pop("timeout_seconds", None)
        if seconds is not None:
            if "timeout" in fields:
                message = f'"{shown(self.id)}" has a timeout already'
                self._report.error("E_CONFLICTING_FIELDS", message, seconds.key, seconds.pointer, "keep one")
            fields["timeout"] = seconds
        self._check_human_input(fields, body)
        return fields

    def _check_human_input(self, fields: Parts, body: Found) -> None:
        """Check what the graph allows and node YAML does not; the rest is checked in the graph."""
        asked = fields.get("input_type")
        kind = to_value(asked.node) if asked is not None else None
        options, schema = fields.get("options"), fields.get("form_schema")
        if kind not in _INPUT_TYPES:
            self._wrong_input_type(asked, kind, body)
            fits = "choice" if options is not None else "form" if schema is not None else "text"
            fields["input_type"] = made(fits, asked or body)  # so that the rest is checked as it was meant
        if kind == "text" and options is not None:
            message = f'"{shown(self.id)}" asks for text: options have no effect'
            self._report.warning("W_TEXT_OPTIONS_IGNORED", message, options.key, options.pointer)
            del fields["options"]
        if schema is not None:
            self._check_form(schema)

    def _wrong_input_type(self, asked: Found | None, kind: Any, body: Found) -> None:
        hint = "write choice, text or form; the kind human_in_the_loop asks for approvals"
        self.is_damaged = True
        if asked is None:
            message = f'"{shown(self.id)}" has no input_type'
            self._report.error("E_EMPTY_FIELD", message, body.key, body.pointer, hint)
            return
        best = self._report.nearest(kind, _INPUT_TYPES) if isinstance(kind, str) else None
        message = f"input_type {json.dumps(kind, ensure_ascii=False)[:60]} is not allowed"
        hint = hint if best is None else f'did you mean "{best}"?'
        self._report.error("E_VALUE", message, asked.place, asked.pointer, hint)

    def _check_form(self, found: Found) -> None:
        schema: Any = to_value(found.node)
        if isinstance(schema, bool) or (isinstance(schema, dict) and schema.get("type") != "object"):  # type: ignore[union-attr]
            message = "a form that is no object has no fields"
            hint = "write type: object"
            self._report.warning("W_FORM_SCHEMA_NOT_OBJECT", message, found.place, found.pointer, hint)

    def _lower_parallel(self, body: Found) -> Parts:
        return self._aliased(body, {"nodes": "branches"})

    def _lower_filter(self, body: Found) -> Parts:
        return self._aliased(body, {"condition": "expression", "source": "items_path"})

    def _lower_map(self, body: Found) -> Parts:
        fields = self._aliased(body, {"source": "items_path"})
        worker = fields.pop("worker", None)
        if worker is not None:
            fields["tool"] = made(f"worker:{to_value(worker.node)}", worker)
        return fields

    def _lower_reduce(self, body: Found) -> Parts:
        fields = parts_of(body)
        source = fields.get("source")
        text = to_value(source.node) if source is not None else None
        if source is not None and isinstance(text, str) and any(mark in text for mark in ".[$"):
            fields["items_path"] = fields.pop("source")
        return fields

    def _lower_merge(self, body: Found) -> Parts:
        fields = parts_of(body)
        policy = fields.get("policy")
        if policy is not None and isinstance(policy.node, Object):
            inside = parts_of(policy)
            del fields["policy"]
            for key, field in {"type": "policy", "minimum": "quorum", "timeout": "timeout"}.items():
                part = inside.pop(key, None)
                if part is not None:
                    fields[field] = part
            for key, part in inside.items():
                hint = self._report.did_you_mean(key, ["type", "minimum", "timeout"])
                self._report.error(
                    "E_UNKNOWN_KEY", f'unknown key "{shown(key)}"', part.key, part.pointer, hint
                )
        return fields

    def _aliased(self, body: Found, names: dict[str, str]) -> Parts:
        fields = parts_of(body)
        for alias, key in names.items():
            part = fields.pop(alias, None)
            if part is not None and key in fields:
                message = f"{alias} and {key} say the same"
                self._report.error("E_CONFLICTING_FIELDS", message, part.key, part.pointer, "keep one")
            elif part is not None:
                fields[key] = part
        return fields

    def _renamed(self, found: Found, names: dict[str, str]) -> Found:
        if not isinstance(found.node, Object):
            return found
        fields = {names.get(key, key): part for key, part in parts_of(found).items()}
        return self._rewriting.object(fields, found)

    # -- configuration --------------------------------------------------------------------------

    def _add_config(self) -> None:
        config = self.found.get("config")
        if config is None:
            return
        self.is_damaged |= bool(config.meant)
        places = {
            "prompt": ("prompt", _PROMPTED),
            "user_input_prompt": ("prompt", _PROMPTED),
            "node_system_prompt": ("system", {"llm"}),
            "output_schema": ("output_schema", {"llm", "agent"}),
            "schema": ("output_schema", {"llm", "agent"}),
            "payload": ("input", {"tool", "agent", "map", "subgraph"}),
        }
        for key, part in config.items():
            if key == "set_globals":
                recorded = self.fields.get(key)
                named = parts_of(recorded) if recorded is not None else {}
                self.fields[key] = self._rewriting.object({**named, **self._with_keys(part)}, part)
            elif key == "update_globals":
                self.fields[key] = self._rewriting.object(self._updates(part), part)
            elif self.kind not in places[key][1]:
                message = f"{key} has no effect on a node of kind {self.written}"
                self._report.warning("W_IGNORED_FIELD", message, part.key, part.pointer, "remove it")
            elif places[key][0] in self.fields:
                message = f'"{shown(self.id)}" has {places[key][0]} already'
                self._report.error("E_CONFLICTING_FIELDS", message, part.key, part.pointer, "keep one")
            else:
                self.fields[places[key][0]] = part

    def _with_keys(self, found: Found) -> Parts:
        """Return the members of an object of globals; blank keys are reported and left out."""
        named: Parts = {}
        for key, part in parts_of(found).items():
            if key.strip():
                named[key] = part
            else:
                self.is_damaged = True
                message = f'a key of a global is blank at "{shown(self.id)}"'
                self._report.error("E_EMPTY_GLOBAL_KEY", message, part.key, part.pointer)
        return named

    def _updates(self, found: Found) -> Parts:
        """Return the updates of globals; what is wrong is reported and left out."""
        sound: Parts = {}
        for key, update in self._with_keys(found).items():
            if self._is_update(key, update):
                sound[key] = update
            else:
                self.is_damaged = True
        return sound

    def _is_update(self, key: str, update: Found) -> bool:
        if not isinstance(update.node, Object):
            return True
        fields = parts_of(update)
        op = fields.get("op")
        name = to_value(op.node) if op is not None else None
        if op is not None and name not in _OPS:
            message = f'update of global "{shown(key)}": there is no op "{shown(str(name))}"'
            hint = f"one of {', '.join(_OPS)}"
            self._report.error("E_UNKNOWN_GLOBAL_OP", message, op.place, op.pointer, hint)
            return False
        if name in ("set", "append", "merge") and "from" not in fields:
            message = f'update of global "{shown(key)}": {name} has no from'
            hint = "name the path of its operand"
            self._report.error("E_MISSING_UPDATE_FROM", message, update.key, update.pointer, hint)
            return False
        return True

    # -- policy ---------------------------------------------------------------------------------

    def _add_policy(self) -> None:
        found = self.found
        timeout = found.get("timeout")
        takes = KINDS[self.kind].takes if self.kind in KINDS else frozenset[str]()
        if "policy" not in takes and timeout is not None and "timeout" not in self.fields:
            self.fields["timeout"] = timeout
            policy = self.policy(found, self._rewriting, timeout=False)
        else:
            policy = self.policy(found, self._rewriting)
        if policy is None:
            return
        if "policy" in self.fields:
            message = f'"{shown(self.id)}" has a policy already'
            self._report.error("E_CONFLICTING_FIELDS", message, policy.key, policy.pointer, "keep one")
        else:
            self.fields["policy"] = policy

    @staticmethod
    def policy(found: Found, rewriting: Rewriting, *, timeout: bool = True) -> Found | None:
        """Return the policy that `timeout` and `retry` of a node, or of the defaults, make."""
        fields: Parts = {}
        limit, retry = found.get("timeout"), found.get("retry")
        if limit is not None and timeout:
            fields["timeout"] = limit
        if retry is not None:
            fields["retry"] = _retry(retry, rewriting)
        where = retry or limit
        return rewriting.object(fields, where) if fields and where is not None else None


def _retry(retry: Found, rewriting: Rewriting) -> Found:
    """Return a retry whose backoff has a multiplier in place of its type."""
    if not isinstance(retry.node, Object):
        return retry
    fields = {key: part for key, part in parts_of(retry).items() if retry.get(key) is not None}
    backoff = part_of(retry, "backoff")
    if backoff is not None and isinstance(backoff.node, Object) and "backoff" in fields:
        inside = parts_of(backoff)
        kind = inside.pop("type", None)
        if kind is not None and "multiplier" not in inside:
            inside["multiplier"] = made(1 if to_value(kind.node) == "fixed" else 2, kind)
        if (
            kind is not None
            and to_value(kind.node) == "fixed"
            and "max" not in inside
            and "initial" in inside
        ):
            inside["max"] = inside["initial"]
        fields["backoff"] = rewriting.object(inside, backoff)
    return rewriting.object(fields, retry)
