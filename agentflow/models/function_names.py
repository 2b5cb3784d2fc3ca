"""Function names as providers take them: no dot, at most 64 characters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from agentflow.definition.conversation import ToolSchema

__all__ = ["FunctionNames"]

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionNames:
    """Function names that the protocol takes (no dot, 64 characters), and the way back.

    The same name is always written the same way, so that earlier turns of a conversation agree with later
    ones; two names that would be written alike get a digest of the name at the end.
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._back: dict[str, str] = {}
        self._forth: dict[str, str] = {}
        for tool in sorted(tools, key=lambda t: (not _PLAIN_NAME.fullmatch(t.name), t.name)):
            written = _written(tool.name)
            if self._back.get(written, tool.name) != tool.name:
                written = _digested(tool.name)
            self._back[written], self._forth[tool.name] = tool.name, written

    def write(self, name: str) -> str:
        """Return the name on the wire."""
        return self._forth.get(name) or _written(name)

    def read(self, written: str) -> str:
        """Return the function that the model meant; an unknown name stays as it is."""
        return self._back.get(written, written)


def _written(name: str) -> str:
    dotless = name.replace(".", "__")
    return dotless if _PLAIN_NAME.fullmatch(dotless) else _digested(name)


def _digested(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:55] + "_" + digest
