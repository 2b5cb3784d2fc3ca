"""What a run was bound to before it began: its models and functions, as data.

The engine never calls them; it needs to know which exist, what arguments they take, and whether a
call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import ToolSchema, Usage, dollars_for
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ModelRef, Workflow

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["Bindings", "BoundGraph", "ModelTerms", "SideEffect", "StepBinding", "ToolInfo"]

SideEffect = Literal["none", "read", "write", "external", "irreversible"]


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a run may call. `name` is what a model sees (`service__function`).

    `self_checked`: its schema was made from its annotations and the call itself checks the arguments by
    them, so that the engine need not check them by the schema as well. `declared`: its service says what it
    does; otherwise `side_effect` is only the worst case. `approval`: each call needs a person's consent, its
    document says. `implied`: declared to change something, and granted only by "all" or `*`.
    `needs_approval`: for one reason or the other a person is asked before each call (page 001 §5.6).
    """

    name: str
    service: str
    function: str
    description: str
    input_schema: dict[str, Any]
    schema_hash: str
    side_effect: SideEffect
    idempotent: bool
    timeout: float
    sensitive: bool = False
    self_checked: bool = False
    output_schema: dict[str, Any] | bool | None = None
    """What the node itself demands of results, beside the function's own schema."""
    declared: bool = False
    approval: bool = False
    implied: bool = False
    needs_approval: bool = False
    searched: bool | UnsetType = UNSET
    """True if it is offered only once the model has found it."""

    @property
    def safe(self) -> bool:
        """Whether a call whose outcome is unknown may be made again (page 000 §4)."""
        return self.idempotent or self.side_effect in ("none", "read")


class ModelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a call of a model: tokens that it may read and write, prices in dollars per million, and
    what is counted beside the text (the fields of its profile)."""

    context_tokens: int | None = None
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    cache_write_price: float | None = None
    request_overhead_tokens: int = 16
    message_overhead_tokens: int = 8
    tool_overhead_tokens: int = 32
    count_tokens: Callable[[str], int] | None = None
    image_tokens: int | UnsetType = UNSET
    """Left out of a model that takes no images."""
    server: str | UnsetType = UNSET
    """Host and port of the provider's server."""

    def worst_cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the highest price of so many tokens in US dollars; None if a price is unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        dearest = max(self.input_price, self.cached_input_price or 0.0, self.cache_write_price or 0.0)
        return (input_tokens * dearest + output_tokens * self.output_price) / 1e6

    def cost(self, usage: Usage) -> float | None:
        """Return the price of a reported usage in US dollars; None if a price is unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        return dollars_for(
            usage, self.input_price, self.output_price, self.cached_input_price, self.cache_write_price
        )


class StepBinding(msgspec.Struct, frozen=True, kw_only=True):
    """The models of an agent, in order of choice, and the functions that it is offered, by tool name.
    `terms` is by `provider:model`."""

    models: tuple[ModelRef, ...] = ()
    terms: dict[str, ModelTerms] = {}
    tools: dict[str, ToolInfo] = {}

    def offered(self, found: Collection[str] = ()) -> Iterable[ToolInfo]:
        """Return the functions that a model is offered that has found these."""
        tools = self.tools.values()
        return [tool for tool in tools if tool.searched is UNSET or tool.name in found]

    def schemas(self, found: Collection[str] = ()) -> tuple[ToolSchema, ...]:
        """Return those functions as a model sees them."""
        return tuple(
            ToolSchema(name=t.name, description=t.description, input_schema=t.input_schema)
            for t in self.offered(found)
        )


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """By step id. A step that is absent is bound to nothing."""

    steps: dict[str, StepBinding] = {}
    functions: frozenset[str] = frozenset()
    """Names of all functions that are registered, attached to an agent or not."""

    def of(self, step_id: str) -> StepBinding:
        return self.steps.get(step_id, _UNBOUND)

    def of_node(self, node: Node) -> StepBinding:
        """Return what a node is bound to: one that became known in the run brings its own binding."""
        return node.binding or self.steps.get(node.id, _UNBOUND)


class BoundGraph(NamedTuple):
    """What the nodes of a graph are bound to that became known in the run, by their ids in it, or why they
    cannot be bound."""

    steps: Mapping[str, StepBinding]
    diagnostics: tuple[Diagnostic, ...] = ()
    graph: Workflow | None = None
    """The graph as it was bound, if it is another one than was asked for, or was asked for by its name; None
    beside no diagnostics for a name that nothing has."""

    def to_value(self) -> dict[str, Any]:
        """Return the bindings as the log keeps them: without the counters of tokens, which are code."""
        return {step: msgspec.to_builtins(_without_code(binding)) for step, binding in self.steps.items()}


def _without_code(binding: StepBinding) -> StepBinding:
    terms = {name: msgspec.structs.replace(t, count_tokens=None) for name, t in binding.terms.items()}
    return msgspec.structs.replace(binding, terms=terms)


_UNBOUND = StepBinding()
