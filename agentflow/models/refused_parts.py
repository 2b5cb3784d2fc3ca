"""What a provider refuses of requests to one model, learned from its refusals, and what is sent in its place.

A part is refused once: after an answer to a request without it, later ones of the same process go without it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from agentflow.models.base import ModelError, ModelProfile, ModelRequest, SchemaMode

__all__ = ["RefusedParts"]

_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
_OTHER_LIMIT: Final = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_PARALLEL: Final = "parallel_tool_calls"
_NEXT_MODE: Final[dict[SchemaMode, SchemaMode]] = {"native": "tool", "tool": "prompt"}
_ABOUT_MODE: Final[dict[SchemaMode, re.Pattern[str]]] = {
    "native": re.compile(
        r"response_?format|json_?schema|text\.format|output_config|response_?(?:json_?)?schema"
        r"|structured[ _]outputs?",
        re.IGNORECASE,
    ),
    "tool": re.compile(r"tool_?choice|function_?calling_?config", re.IGNORECASE),
}
"""What servers write of a schema, or of a function that must be called, that they do not take; read only in a
refusal of a request that has one."""
_SCHEMA_SENT: Final = {"tool": "as a function", "prompt": "in the prompt"}


class RefusedParts:
    """What one provider refuses of requests to one model."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._fields: dict[str, Any] = {}

    def copy(self) -> RefusedParts:
        """Return what is known by now, for one call to learn more."""
        made = RefusedParts()
        made.adopt(self)
        return made

    def adopt(self, learned: RefusedParts) -> None:
        """Take over what a call has learned that got its answer. What led to no answer is forgotten: another
        thing was wrong with that request, such as the schema itself."""
        self._names |= learned._names
        self._fields |= learned._fields

    def adapt_profile(self, profile: ModelProfile) -> ModelProfile:
        """Return the profile with what was learned."""
        return msgspec.structs.replace(profile, **self._fields) if self._fields else profile

    def leave_out(self, request: ModelRequest) -> ModelRequest:
        """Return the request without the parameters that were refused. A limit of the answer always stays,
        since a budget counts on it, and `extra` is sent as it stands."""
        kept = {name: value for name, value in request.parameters.items() if name not in self._names}
        parallel = request.parallel_tool_calls or _PARALLEL in self._names
        if len(kept) == len(request.parameters) and parallel == request.parallel_tool_calls:
            return request
        return msgspec.structs.replace(request, parameters=kept, parallel_tool_calls=parallel)

    def learn(
        self, request: ModelRequest, profile: ModelProfile, mode: SchemaMode | None, error: ModelError
    ) -> bool:
        """Take note of a refusal of `request`, which was sent as `profile` and `mode` say; return whether it
        would be sent in another way now."""
        if not error.uncharged or error.info.http_status not in (400, 422):
            return False
        name = error.refused_parameter or ""
        if name in _OTHER_LIMIT:
            return self._rename_limit(name, profile)
        if name.startswith("stream_options") and profile.stream_options:
            self._fields["stream_options"] = False
            return True
        if mode in _ABOUT_MODE and _ABOUT_MODE[mode].search(f"{name} {error.info.message}"):
            field = "schema_mode_with_functions" if request.tools else "schema_mode"
            self._fields[field] = _NEXT_MODE[mode]
            return True
        if name == _PARALLEL and not request.parallel_tool_calls:
            self._names.add(name)  # the agent's calls are executed one after another all the same
            return True
        written = {_bare(known): known for known in request.parameters if known not in _LIMITS}
        known = written.get(_bare(name))
        if known is None:
            return False
        self._names.add(known)
        return True

    def warnings(self, request: ModelRequest, mode: SchemaMode | None) -> list[str]:
        """Return what became of the parts of `request` that are refused, as ends of a sentence."""
        names = [*request.parameters, *(() if request.parallel_tool_calls else (_PARALLEL,))]
        found = [f"{name}: left out" for name in names if name in self._names]
        field = "schema_mode_with_functions" if request.tools else "schema_mode"
        if mode in _SCHEMA_SENT and field in self._fields:
            found.append(f"the schema of the answer: sent {_SCHEMA_SENT[mode]}")
        limit = self._fields.get("output_limit_name")
        if limit is not None and not _LIMITS.isdisjoint(request.parameters):
            found.append(f"{_OTHER_LIMIT[limit]}: sent as {limit}")
        if "stream_options" in self._fields:
            found.append("stream_options: left out")
        return found

    def _rename_limit(self, refused: str, profile: ModelProfile) -> bool:
        other, sent = _OTHER_LIMIT[refused], profile.output_limit_name
        if sent == other or (sent == refused and "output_limit_name" in self._fields):
            return False  # the server takes neither, or means another parameter than that
        self._fields["output_limit_name"] = other
        return True


def _bare(name: str) -> str:
    """Return the name as it is in every spelling: Gemini writes `topP` for `top_p`."""
    return name.replace("_", "").lower()
