"""The fields of an `llm_call` that the graph writes in another way (page 003 §12): tools, prompts, globals.

What the graph can hold is checked there; here only what would be lost on the way.
"""

from __future__ import annotations

from typing import Any

from agentflow.definition.report import Report, shown
from agentflow.definition.rewriting import Parts, Rewriting, elements_of, made, part_of, parts_of
from agentflow.definition.source_tree import Object, to_value
from agentflow.definition.structure import Found

__all__ = ["lower_llm_call"]

_CHOICES = ("auto", "none", "required")
_FORMATS = ("openai", "simplified")
_OPENAI_KEYS = {"function", "parameters"}
_SAME = {"schema": "output_schema", "user_input_prompt": "prompt", "node_system_prompt": "system"}


def lower_llm_call(fields: Parts, node_id: str, rewriting: Rewriting, report: Report) -> bool:
    """Rewrite the fields as those of an `llm` node, in place; return True if something is wrong."""
    lowering = _LlmCall(fields, node_id, rewriting, report)
    lowering.run()
    return lowering.failed


class _LlmCall:
    def __init__(self, fields: Parts, node_id: str, rewriting: Rewriting, report: Report) -> None:
        self.failed = False
        self._fields = fields
        self._id = node_id
        self._rewriting = rewriting
        self._report = report

    def run(self) -> None:
        for alias, key in _SAME.items():
            part = self._fields.pop(alias, None)
            if part is not None and key in self._fields:
                self._error("E_CONFLICTING_FIELDS", f"{alias} and {key} say the same", part, "keep one")
            elif part is not None:
                self._fields[key] = part
        self._join_model()
        self._lower_tools()
        trips = self._fields.get("max_tool_roundtrips")
        if trips is not None and to_value(trips.node) == 0:
            self._error("E_INVALID_TOOL_ROUNDTRIPS", "max_tool_roundtrips must be at least 1", trips)
        self._check_choice()
        found = self._fields.get("append_prompt_as_user")
        if found is not None and "messages_path" not in self._fields and to_value(found.node) is True:
            message = "append_prompt_as_user has no effect without messages_path"
            self._report.warning("W_IGNORED_FIELD", message, found.key, found.pointer, "remove it")
        self._record_calls()

    def _error(self, code: str, message: str, found: Found, hint: str | None = None) -> None:
        self.failed = True
        self._report.error(code, message, found.place, found.pointer, hint)

    def _check_choice(self) -> None:
        choice = self._fields.get("tool_choice")
        if choice is None or isinstance(choice.node, Object) or to_value(choice.node) in _CHOICES:
            return
        hint = 'one of auto, none, required, or {"type": "function", "function": {"name": …}}'
        self._error("E_INVALID_TOOL_CHOICE", "tool_choice is none of its forms", choice, hint)
        del self._fields["tool_choice"]

    def _join_model(self) -> None:
        provider, model = self._fields.pop("provider", None), self._fields.get("model")
        if provider is None or model is None:
            if provider is not None:
                self.failed = True
            return
        names = [to_value(part.node) for part in (provider, model)]
        if all(isinstance(name, str) and name.strip() for name in names):
            self._fields["model"] = made(f"{str(names[0]).strip()}:{str(names[1]).strip()}", model)
        else:
            wrong = model if isinstance(names[0], str) and names[0].strip() else provider
            self._error("E_TYPE", "provider and model must be text that is not blank", wrong)

    def _record_calls(self) -> None:
        """Let the calls of functions be set as the global value of `tool_calls_global_key`."""
        key = self._fields.pop("tool_calls_global_key", None)
        if key is None:
            return
        name = to_value(key.node)
        if not isinstance(name, str) or not name.strip():
            self._error("E_EMPTY_GLOBAL_KEY", "tool_calls_global_key is blank", key)
            return
        path = made(f"nodes.{self._id}.tool_calls", key)
        self._fields["set_globals"] = self._rewriting.object({name.strip(): path}, key)

    # -- tools ----------------------------------------------------------------------------------

    def _lower_tools(self) -> None:
        written = self._fields.pop("tools_format", None)
        form = to_value(written.node) if written is not None else None
        if written is not None and form not in _FORMATS:
            message = f'tools_format "{shown(str(form))}" is not allowed'
            self._error("E_INVALID_TOOLS_FORMAT", message, written, f"one of {', '.join(_FORMATS)}")
            form = None
        tools = self._fields.get("tools")
        if tools is not None and elements_of(tools):
            for tool in elements_of(tools):
                self._check_form(tool, form)
            listed = [self._tool(tool, form == "openai") for tool in elements_of(tools)]
            self._fields["tools"] = self._rewriting.array(listed, tools)

    def _check_form(self, tool: Found, form: Any) -> None:
        """Report a function that is written in the other form than `tools_format` says."""
        if not isinstance(tool.node, Object):
            return
        keys = parts_of(tool).keys()
        if form == "simplified" and keys & _OPENAI_KEYS:
            hint = "write {name, description, input_schema}, or tools_format: openai"
        elif form == "openai" and "input_schema" in keys and not keys & _OPENAI_KEYS:
            hint = "write {type: function, function: {name, parameters}}, or tools_format: simplified"
        else:
            return
        self._error("E_INVALID_TOOLS_FORMAT", f"the tool is not written in the form {form}", tool, hint)

    def _tool(self, tool: Found, is_openai: bool) -> Found:
        """Return a function as the graph declares it: `{name, description, input_schema, output_schema}`."""
        if not isinstance(tool.node, Object):
            return tool
        function = part_of(tool, "function")
        fields = parts_of(tool)
        if is_openai or function is not None:
            kind = fields.pop("type", None)
            if kind is not None and to_value(kind.node) != "function":
                self._error("E_VALUE", "the type of a tool is not function", kind, 'write "function"')
            if function is not None and isinstance(function.node, Object):
                del fields["function"]
                fields |= parts_of(function)
            strict = fields.pop("strict", None)
            if strict is not None:
                message = "strict has no effect: arguments are always checked by the schema"
                self._report.warning("W_IGNORED_FIELD", message, strict.key, strict.pointer, "remove it")
            if "parameters" in fields:
                fields["input_schema"] = fields.pop("parameters")
        if "name" not in fields:
            fields["name"] = made("", tool)
        return self._rewriting.object(fields, tool)
