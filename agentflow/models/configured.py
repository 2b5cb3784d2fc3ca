"""The providers that `agentflow.toml` names, `[providers.NAME]`, over the shipped table of servers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import UNSET

from agentflow.definition.diagnostics import did_you_mean
from agentflow.known_secrets import secret_variable
from agentflow.models.base import ModelProfile, ModelProvider, ModelResolutionError
from agentflow.models.rate_limits import RateLimits
from agentflow.models.streamed import ProviderOptions
from agentflow.models.table import known_profile, known_server, known_servers, stated_profile
from agentflow.provider_settings import ProviderKind, ProviderSettings

__all__ = ["build_provider", "missing_of"]


def missing_of(name: str, settings: ProviderSettings, env: Mapping[str, str]) -> ModelResolutionError | None:
    """Return why the provider cannot be used here: a kind, a URL or a secret that is missing."""
    where = f"[providers.{name}]"
    table = settings.profile or name
    server = known_server(table)
    if settings.profile is not None and table not in known_servers():
        known = known_servers()
        hint = did_you_mean(table, known) or f"the table has {', '.join(known)}"
        return ModelResolutionError(f'{where} names the profile "{table}", which there is not', hint=hint)
    if _kind(name, settings) is None:
        hint = "write kind: openai, openai-responses, anthropic or gemini"
        return ModelResolutionError(f"{where} has no kind", hint=hint)
    if settings.base_url is None and server.base_url is None and name not in _OFFICIAL:
        return ModelResolutionError(f"{where} has no base_url", hint='write base_url = "https://…/v1"')
    if settings.key is not None and not env.get(secret_variable(settings.key.secret)):
        variable = secret_variable(settings.key.secret)
        return ModelResolutionError(
            f"{name} needs the secret {settings.key.secret}", hint=f"set {variable} in the environment"
        )
    return None


def build_provider(name: str, settings: ProviderSettings, env: Mapping[str, str]) -> ModelProvider:
    """Return the provider. Raises ModelResolutionError for what `missing_of` finds, and ConfigurationError
    for a URL or a key that is none."""
    missing = missing_of(name, settings, env)
    if missing is not None:
        raise missing
    kind = _kind(name, settings)
    server = known_server(settings.profile or name)
    base_url = settings.base_url or server.base_url
    key = env.get(secret_variable(settings.key.secret), "").strip() if settings.key is not None else ""
    key_setting = secret_variable(settings.key.secret) if settings.key is not None else "key"
    where = f"[providers.{name}]"
    options: ProviderOptions = {
        "settings": (f"base_url in {where}", key_setting if settings.key else f"key in {where}"),
        "profiles": partial(_profile, settings.profile or name, settings, kind, base_url is None),
        "key_header": settings.key_header or server.key_header,
        "max_concurrency": settings.max_concurrency or 8,
        "rate_limits": RateLimits(
            requests_per_minute=settings.requests_per_minute, tokens_per_minute=settings.tokens_per_minute
        ),
        "first_byte_timeout": UNSET
        if settings.first_byte_timeout is None
        else settings.first_byte_timeout or None,
    }
    if settings.byte_timeout is not None:
        options["byte_timeout"] = settings.byte_timeout or None
    return _made(name, kind or "openai", base_url, key or None, settings, options)


_OFFICIAL = ("openai", "openai-responses", "anthropic", "gemini")


def _kind(name: str, settings: ProviderSettings) -> ProviderKind | None:
    if settings.kind is not None:
        return settings.kind
    known = known_server(settings.profile or name).kind
    return known or next((kind for kind in _OFFICIAL if kind == name), None)


def _profile(
    table: str, settings: ProviderSettings, kind: ProviderKind | None, official: bool, model: str
) -> ModelProfile:
    return stated_profile(known_profile(table, model, kind, official=official), settings, model)


def _made(
    name: str,
    kind: ProviderKind,
    base_url: str | None,
    key: str | None,
    settings: ProviderSettings,
    options: ProviderOptions,
) -> ModelProvider:
    # Imported late: an adapter costs 60 ms, and most commands never call a model.
    match kind:
        case "anthropic":
            from agentflow.models import anthropic

            return anthropic.AnthropicProvider(
                base_url=base_url or anthropic.OFFICIAL_URL,
                api_key=key,
                name=name,
                api_version=settings.api_version or anthropic.API_VERSION,
                betas=settings.betas,
                prompt_caching=settings.prompt_caching,
                **options,
            )
        case "gemini":
            from agentflow.models import gemini

            return gemini.GeminiProvider(
                base_url=base_url or gemini.OFFICIAL_URL, api_key=key, name=name, **options
            )
        case "openai-responses":
            from agentflow.models import responses

            return responses.ResponsesProvider(
                base_url=base_url or responses.OFFICIAL_URL, api_key=key, name=name, **options
            )
        case "openai":
            from agentflow.models import openai

            return openai.OpenAIProvider(
                base_url=base_url or openai.OFFICIAL_URL, api_key=key, name=name, **options
            )
