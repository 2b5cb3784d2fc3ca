"""Keys of effects: what a recorded result belongs to, and whether it still fits (page 003 §9). Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

import msgspec

from agentflow.definition.ir import NodeBase, canonical_json
from agentflow.events.envelope import micros

__all__ = ["EffectKey", "OwnNames", "input_hash"]

_NAME = re.compile(
    r"(?<![\w-])(?:wf_[\w-]+|req_\w+|call_\w+|sha256:[0-9a-f]{64}"
    r"|[12]\d{3}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{6}Z)(?![\w-])"
)
_TIMES = ("expires_at", "due_at", "deadline")
_NAMES = ("request_id", "tool_call_id", "model_call_id", "digest")


class EffectKey(NamedTuple):
    """The `ordinal`th effect of an activation, or of one of its iterations.

    `input_hash` is `sha256:` and hex digits.
    """

    activation: str
    iteration: int | None
    ordinal: int
    input_hash: str


class OwnNames:
    """Names that a run gave and that its replay gives anew: its id, those of calls and requests, times.

    `times` are in µs. A replay gives names of its record, too (`recorded`), with what it is served.
    """

    __slots__ = ("names", "recorded", "times")

    def __init__(self, run_id: str, recorded: OwnNames | None = None) -> None:
        self.names = {run_id}
        self.times: set[int] = set()
        self.recorded = recorded

    def take(self, data: Any) -> None:
        """Learn the names that an event gives."""
        for field in _TIMES:
            if isinstance(value := getattr(data, field, None), str):
                self.times.add(micros(value))
        for field in _NAMES:
            if isinstance(value := getattr(data, field, None), str):
                self.names.add(value)

    def hidden(self, request: Any) -> Any:
        """Return a request in which these names are `<own>`, so that it is equal in a run and its replay."""
        text = msgspec.json.encode(request).decode()
        found = _NAME.sub(lambda name: "<own>" if self._is_own(name[0]) else name[0], text)
        return request if found == text else msgspec.json.decode(found)

    def _is_own(self, name: str) -> bool:
        if name in self.names or (self.recorded is not None and self.recorded._is_own(name)):
            return True
        if not name.endswith("Z") or name[4] != "-":
            return False
        try:
            return micros(name) in self.times
        except ValueError:
            return False


def input_hash(spec: NodeBase, request: Any) -> str:
    """Return the hash of a resolved request and the node's configuration."""
    return f"sha256:{hashlib.sha256(canonical_json([spec, request])).hexdigest()}"
