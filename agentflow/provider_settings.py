"""What `agentflow.toml` says of a provider of models: a section `[providers.NAME]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["ProviderKind", "ProviderSettings", "SecretName"]

ProviderKind = Literal["openai", "openai-responses", "anthropic", "gemini"]
"""The wire format of a server of models."""


class SecretName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a secret: the environment variable AGENTFLOW_SECRET_NAME has the value."""

    secret: str = msgspec.field(name="$secret")


class ProviderSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A section `[providers.NAME]`; its models are called `NAME:model`.

    `kind` and `base_url` may be left out for a server of the shipped table (deepseek, ollama, …), which
    `profile` names, by default NAME itself. `key` names a secret, as `{ "$secret" = "NAME" }`. `key_header`
    is the header that shows the key, if the server wants another one than its wire format. At most
    `max_concurrency` calls (8) are open at once, and at most so many requests and tokens are sent within any
    60 s; the limits are those of the key, shared by all runs of the process. Time limits are seconds, 0 is
    none. `defaults` and `models` have fields of the profile of a model (ModelProfile): limits in tokens,
    prices in US dollars per million tokens, `schema_mode`, `parameters`, …
    """

    kind: ProviderKind | None = None
    base_url: str | None = None
    key: SecretName | None = None
    key_header: str | None = None
    profile: str | None = None
    max_concurrency: Annotated[int, Meta(ge=1)] | None = None
    requests_per_minute: Annotated[int, Meta(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Meta(ge=1)] | None = None
    first_byte_timeout: float | None = None
    byte_timeout: float | None = None
    api_version: str | None = None
    betas: tuple[str, ...] = ()
    prompt_caching: bool = True
    defaults: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}
