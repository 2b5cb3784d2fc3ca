"""What `cache_read` and `cache_write` have in common: the key of an entry, and who shares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

__all__ = ["CacheNode", "CacheScope", "check_key"]

CacheScope = Literal["run", "definition", "global"]


class CacheNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True):
    """The key is the text at `key_path`, or what the template `key` gives.

    `scope`: entries are those of the run, of all runs of this definition, or of all runs of the store.
    """

    key_path: str | None = None
    key: str | None = None
    scope: CacheScope = "run"


def check_key(spec: CacheNode, at: NodeReport) -> None:
    """Check that there is one key."""
    if spec.key_path is not None:
        at.path("key_path", spec.key_path)
        if spec.key is not None:
            at.conflict("key", f'"{spec.id}" has a key_path', "keep key_path or key")
    elif spec.key is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither key_path nor key', "key_path")
    else:
        at.not_blank("key", spec.key)
        at.template("key", spec.key)
