"""Toolsets as plans name them, and the rules that say which steps need an approval (page 004 §5).

Plain values: they stand in the graph of a run, so that the same plan and the same registry always give the
same graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

__all__ = [
    "CLASSES",
    "PolicyRule",
    "RuleMatch",
    "SideEffectClass",
    "StepContext",
    "ToolEntry",
    "Toolset",
    "Toolsets",
    "strongest",
]

SideEffectClass = Literal["none", "read", "write", "external", "irreversible"]
CLASSES: tuple[SideEffectClass, ...] = ("none", "read", "write", "external", "irreversible")
"""From harmless to not to be undone."""


def strongest(classes: Iterable[SideEffectClass]) -> SideEffectClass:
    """Return the strongest of several classes; `none` if there are none."""
    return CLASSES[max((CLASSES.index(one) for one in classes), default=0)]


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A function of a toolset: `service.function` and what it may do."""

    name: str
    side_effect: SideEffectClass


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that a step of a plan asks for by one name."""

    name: str
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    aliases: tuple[str, ...] = ()
    enabled: bool = True

    @property
    def side_effect(self) -> SideEffectClass:
        """The strongest class of its functions."""
        return strongest(tool.side_effect for tool in self.tools)


class RuleMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a rule is about; every field that is set must fit."""

    toolset: str | None = None
    tool: str | None = None
    step: str | None = None
    template: str | None = None


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule that demands an approval; none can take one away."""

    match: RuleMatch
    require: Literal["approval"] = "approval"


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What functions are told of the step of a plan that calls them; no model sees it.

    A Struct and no mapping: the `context` of a document is JSON, so that none can pass for this.
    """

    workspace: str | None


class Toolsets:
    """The registry of one run: toolsets by name and by alias."""

    def __init__(self, toolsets: Iterable[Toolset]) -> None:
        self._by_name = {toolset.name: toolset for toolset in toolsets}
        self._names = {alias: t.name for t in self._by_name.values() for alias in t.aliases}
        self._names.update({name: name for name in self._by_name})

    @classmethod
    def of_value(cls, value: Any) -> Toolsets:
        """Return the registry that a JSON value describes."""
        return cls(msgspec.convert(value, tuple[Toolset, ...], strict=False))

    def to_value(self) -> list[dict[str, Any]]:
        """Return the registry as a JSON value."""
        return cast("list[dict[str, Any]]", msgspec.to_builtins(list(self._by_name.values())))

    def __iter__(self) -> Any:
        return iter(self._by_name.values())

    @property
    def names(self) -> list[str]:
        """Every name and alias."""
        return list(self._names)

    def find(self, name: str) -> Toolset | None:
        """Return the toolset of a name or alias."""
        found = self._names.get(name)
        return None if found is None else self._by_name[found]

    def class_of(self, names: Iterable[str]) -> SideEffectClass:
        """Return the strongest class of several toolsets."""
        found = (self.find(name) for name in names)
        return strongest(toolset.side_effect for toolset in found if toolset is not None)

    def tools_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the functions of several toolsets, sorted."""
        found = (self.find(name) for name in names)
        return tuple(
            sorted({tool.name for toolset in found if toolset is not None for tool in toolset.tools})
        )


def policy_of(value: Any) -> tuple[PolicyRule, ...]:
    """Return the rules that a JSON value describes. Raises msgspec.ValidationError."""
    rules: Iterable[Mapping[str, Any]] = value or ()
    return msgspec.convert(list(rules), tuple[PolicyRule, ...])
