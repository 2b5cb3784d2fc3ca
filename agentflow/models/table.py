"""The shipped tables: what is known about models before anybody calls one (models.toml), and what those of
paid services cost (prices.toml).

It must never be asked over the network; an unknown model gets its provider's defaults, without prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from typing import Any, NamedTuple

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.type_errors import explain
from agentflow.errors import ConfigurationError
from agentflow.models.base import ModelProfile
from agentflow.provider_settings import ProviderKind, ProviderSettings

__all__ = [
    "PriceTable",
    "ServerEntry",
    "default_model",
    "known_models",
    "known_profile",
    "known_server",
    "known_servers",
    "price_table",
    "stated_profile",
    "table_version",
]

_STATED = tuple(name for name in ModelProfile.__struct_fields__ if name != "count_tokens")
"""The fields of a profile that configuration can state."""

_SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})$")


class _Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    default_model: str | None = None
    kind: ProviderKind | None = None
    base_url: str | None = None
    key_header: str | None = None
    defaults: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}


class _Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_price: float
    output_price: float
    cached_input_price: float | None = None
    cache_write_price: float | None = None


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in US dollars per million tokens, by `provider:model`; their date, and where they come from."""

    as_of: date
    sources: tuple[str, ...]
    models: dict[str, _Price]


class _ModelTable(NamedTuple):
    version: date
    providers: dict[str, _Provider]


@cache
def _models() -> _ModelTable:
    shipped = _shipped("models.toml")
    version = msgspec.convert(shipped.pop("version"), date)
    return _ModelTable(version, msgspec.convert(shipped, dict[str, _Provider]))


def _table() -> dict[str, _Provider]:
    return _models().providers


def table_version() -> date:
    """Return the version of the shipped profiles: the day on which an entry was last changed."""
    return _models().version


@cache
def price_table() -> PriceTable:
    """Return the shipped prices."""
    return msgspec.convert(_shipped("prices.toml"), PriceTable)


def _shipped(name: str) -> dict[str, Any]:
    import tomllib  # 10 ms with what importlib.resources imports, which a Runtime without models is spared
    from importlib.resources import files

    return tomllib.loads(files("agentflow.models").joinpath(name).read_text(encoding="utf-8"))


def default_model(provider: str) -> str | None:
    """Return the model that serves a provider when none is named; None if the table lacks the provider."""
    entry = _table().get(provider)
    return entry.default_model if entry else None


class ServerEntry(NamedTuple):
    """How a server of the table is reached; None is unknown, or what its wire format says."""

    kind: ProviderKind | None
    base_url: str | None
    key_header: str | None


def known_servers() -> list[str]:
    """Return the servers that the table knows, in its order."""
    return [name for name, entry in _table().items() if entry.kind is not None]


def known_server(name: str) -> ServerEntry:
    """Return how a server is reached; all members None for one that the table does not have."""
    entry = _table().get(name)
    return (
        ServerEntry(entry.kind, entry.base_url, entry.key_header) if entry else ServerEntry(None, None, None)
    )


def known_models(provider: str) -> list[str]:
    """Return the models of a provider that the table lists, in its order."""
    entry = _table().get(provider)
    return list(entry.models) if entry else []


def known_profile(
    provider: str, model: str, kind: str | None = None, *, official: bool = False
) -> ModelProfile:
    """Return the profile of a model: its own entry, or that of the model it is a dated snapshot of, over the
    provider's defaults over the defaults of ModelProfile. `kind` is the wire format of a provider that has no
    entry of its own: its defaults hold then, and its models, which others may serve under other limits, do
    not. `official`: it is reached at the service's own address, where the shipped prices hold.
    """
    entry = _table().get(provider)
    if entry is None:
        defaults = _table()[kind].defaults if kind in _table() else {}
        return msgspec.convert(defaults, ModelProfile)
    prices = _price(provider, model) if official else {}
    return msgspec.convert({**entry.defaults, **prices, **_fields(entry.models, model)}, ModelProfile)


def _price(provider: str, model: str) -> dict[str, Any]:
    provider = "openai" if provider == "openai-responses" else provider
    known = price_table().models
    found = known.get(f"{provider}:{model}") or known.get(f"{provider}:{_SNAPSHOT.sub('', model)}")
    return {} if found is None else msgspec.structs.asdict(found)


def stated_profile(profile: ModelProfile, stated: ProviderSettings, model: str) -> ModelProfile:
    """Return the profile with what the configuration says of the provider's models and of this one.

    Raises ConfigurationError for a field that profiles do not have, or a value of another type.
    """
    fields = {**stated.defaults, **_fields(stated.models, model)}
    unknown = [name for name in fields if name not in _STATED]
    if unknown:
        raise ConfigurationError(
            f'"{unknown[0]}" is no field of the profile of a model',
            hint=did_you_mean(unknown[0], _STATED) or f"the fields are {', '.join(_STATED)}",
        )
    if not fields:
        return profile
    known = {name: getattr(profile, name) for name in _STATED}
    try:
        made = msgspec.convert({**known, **fields}, ModelProfile)
    except msgspec.ValidationError as error:
        raise ConfigurationError(explain(error, ModelProfile).sentence()) from None
    return msgspec.structs.replace(made, count_tokens=profile.count_tokens)


def _fields(models: Mapping[str, dict[str, Any]], model: str) -> dict[str, Any]:
    return models.get(model) or models.get(_SNAPSHOT.sub("", model)) or {}
