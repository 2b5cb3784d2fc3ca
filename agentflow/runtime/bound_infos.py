"""What the engine is told of the models and functions that a definition was bound to."""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET

from agentflow.definition.ir import ModelRef, canonical_json
from agentflow.definition.node import ToolDeclaration
from agentflow.engine import ModelTerms, ToolInfo
from agentflow.models import Models
from agentflow.tools import Tool

__all__ = ["changes_something", "declared_info", "info_of", "terms_of"]


def terms_of(models: Models, ref: ModelRef) -> ModelTerms:
    """Return what bounds the calls of a model, by its profile, and where its server is."""
    profile, address = models.profile(ref), getattr(models.provider(ref), "address", None)
    return ModelTerms(
        context_tokens=profile.context_tokens,
        max_output_tokens=profile.max_output_tokens,
        input_price=profile.input_price,
        output_price=profile.output_price,
        cached_input_price=profile.cached_input_price,
        cache_write_price=profile.cache_write_price,
        request_overhead_tokens=profile.request_overhead_tokens,
        message_overhead_tokens=profile.message_overhead_tokens,
        tool_overhead_tokens=profile.tool_overhead_tokens,
        count_tokens=profile.count_tokens,
        image_tokens=profile.image_tokens if profile.media else UNSET,
        server=address if isinstance(address, str) and address else UNSET,
    )


def changes_something(tool: Tool) -> bool:
    """Return whether a function is declared to change something outside."""
    return tool.declared and tool.side_effect not in ("none", "read")


# Runs that are offered the same function share its description. A ToolInfo knows nothing of its Tool, so that
# an entry goes with the service.
_infos: WeakKeyDictionary[Tool, dict[tuple[bool, bool], ToolInfo]] = WeakKeyDictionary()


def info_of(tool: Tool, *, implied: bool = False, asks: bool = False) -> ToolInfo:
    """Return a function as the engine knows it. `implied`: granted by "all" or `*` alone; a person is asked
    before such a call if the Runtime `asks`."""
    needs_approval = tool.approval or (implied and asks)
    variants = _infos.setdefault(tool, {})
    known = variants.get((implied, needs_approval))
    if known is None:
        known = variants[implied, needs_approval] = ToolInfo(
            name=tool.name,
            service=tool.service,
            function=tool.function,
            description=tool.description,
            input_schema=tool.input_schema,
            schema_hash=tool.schema_hash,
            side_effect=tool.side_effect,
            idempotent=tool.idempotent,
            timeout=tool.timeout,
            sensitive=tool.sensitive,
            self_checked=tool.self_checked,
            declared=tool.declared,
            approval=tool.approval,
            implied=implied,
            needs_approval=needs_approval,
        )
    return known


def declared_info(info: ToolInfo, declaration: ToolDeclaration | None) -> ToolInfo:
    """Return a function as the node declares it to its model: name, description and schemas are its own."""
    if declaration is None:
        return info
    given = declaration.input_schema
    schema: dict[str, Any] = given if isinstance(given, dict) else {"type": "object"}
    return msgspec.structs.replace(
        info,
        name=info.name if "." in declaration.name else declaration.name,
        description=declaration.description or info.description,
        input_schema=schema,
        schema_hash="sha256:" + hashlib.sha256(canonical_json(schema)).hexdigest(),
        self_checked=False,
        output_schema=declaration.output_schema,
    )
