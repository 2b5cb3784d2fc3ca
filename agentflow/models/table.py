"""The shipped model table (models.toml): what is known about models before anybody calls one.

It must never be asked over the network; an unknown model gets its provider's defaults, without prices.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from agentflow.models.base import ModelProfile

__all__ = ["default_model", "known_models", "known_profile"]

_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


class _Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    default_model: str
    defaults: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}


@cache
def _table() -> dict[str, _Provider]:
    import tomllib  # 10 ms with what importlib.resources imports, which a Runtime without models is spared
    from importlib.resources import files

    text = files("agentflow.models").joinpath("models.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, _Provider])


def default_model(provider: str) -> str | None:
    """Return the model that serves a provider when none is named; None if the table lacks the provider."""
    entry = _table().get(provider)
    return entry.default_model if entry else None


def known_models(provider: str) -> list[str]:
    """Return the models of a provider that the table lists, in its order."""
    entry = _table().get(provider)
    return list(entry.models) if entry else []


def known_profile(provider: str, model: str) -> ModelProfile:
    """Return the profile of a model: its own entry (or that of the model it is a dated snapshot of) over the
    provider's defaults over the defaults of ModelProfile."""
    entry = _table().get(provider)
    if entry is None:
        return ModelProfile()
    fields = entry.models.get(model) or entry.models.get(_SNAPSHOT.sub("", model)) or {}
    return msgspec.convert({**entry.defaults, **fields}, ModelProfile)
