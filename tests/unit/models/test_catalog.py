import hashlib
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentflow.definition.conversation import Usage
from agentflow.definition.ir import ModelRef
from agentflow.errors import ConfigurationError
from agentflow.models import ModelProfile, ModelProvider, ModelResolutionError, Models
from agentflow.models.anthropic import AnthropicProvider
from agentflow.models.local import usable
from agentflow.models.openai import OpenAIProvider
from agentflow.models.responses import ResponsesProvider
from agentflow.models.table import (
    default_model,
    known_models,
    known_profile,
    price_table,
    table_version,
)
from agentflow.testing import ScriptedModel

KEYS = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without keys and without installed models."""
    return {"XDG_DATA_HOME": str(tmp_path)}


def with_weights(env: dict[str, str], name: str = "smollm2-135m") -> dict[str, str]:
    folder = Path(env["XDG_DATA_HOME"]) / "agentflow" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.gguf").write_bytes(b"GGUF")
    return env


def refusal(models: Models, name: str | ModelRef | None, **options: object) -> ModelResolutionError:
    with pytest.raises(ModelResolutionError) as caught:
        models.resolve(name, **options)  # type: ignore[arg-type]
    assert caught.value.code == "E_UNKNOWN_MODEL"
    return caught.value


def test_order_of_choice(bare: dict[str, str]) -> None:
    with_weights(bare)
    config = {"model": "openai:from-config"}
    assert Models(env={**bare, **KEYS}).resolve("openai:named").name == "openai:named"
    assert (
        Models(env={**bare, **KEYS, "AGENTFLOW_MODEL": "openai:from-env"}, config=config).resolve(None).name
        == "openai:from-env"
    )
    assert Models(env={**bare, **KEYS}, config=config).resolve(None).name == "openai:from-config"
    assert Models(env={**bare, **KEYS}).resolve(None).name == f"openai:{default_model('openai')}"
    assert Models(env=bare).resolve(None).name == "local:smollm2-135m"


def test_no_model_names_what_helps_and_never_a_scripted_one(bare: dict[str, str]) -> None:
    error = refusal(Models([ScriptedModel(["x"])], env=bare), None)
    for help_ in (
        "agentflow[local]",
        "agentflow model install smollm2-135m",
        "OPENAI_API_KEY",
        "AGENTFLOW_MODEL",
    ):
        assert help_ in str(error)


@pytest.mark.parametrize(
    ("key", "provider"), [("ANTHROPIC_API_KEY", "anthropic"), ("GEMINI_API_KEY", "gemini")]
)
async def test_a_key_chooses_its_provider(bare: dict[str, str], key: str, provider: str) -> None:
    models = Models(env=with_weights({**bare, key: "secret-value"}))
    ref = models.resolve(None)
    assert ref.name == f"{provider}:{default_model(provider)}"
    assert models.provider(ref).name == provider
    assert models.providers() == [provider, *(["local"] if usable(models._env) else [])]
    said = str(refusal(Models(env=bare), f"{provider}:x"))
    assert f"{provider}:x needs {key}, or " in said
    await models.aclose()


async def test_the_responses_api_has_a_name_of_its_own(bare: dict[str, str]) -> None:
    models = Models(env={**bare, "OPENAI_API_KEY": "sk-1"})
    assert isinstance(models.provider(models.resolve("openai-responses:gpt-5")), ResponsesProvider)
    await models.aclose()


class TestConfiguredProviders:
    STATED: ClassVar = {
        "deepseek": {"key": {"$secret": "deepseek"}},
        "ollama": {},
        "inhouse": {
            "kind": "anthropic",
            "base_url": "http://127.0.0.1:9/v1",
            "max_concurrency": 2,
            "first_byte_timeout": 0,
            "defaults": {"context_tokens": 1000},
            "models": {"big": {"max_output_tokens": 7, "input_price": 1.0, "output_price": 2.0}},
        },
    }

    def models(self, env: dict[str, str], **more: Any) -> Models:
        return Models(env=env, config={"providers": {**self.STATED, **more}})

    async def test_several_compatible_servers_at_once(self, bare: dict[str, str]) -> None:
        models = self.models({**bare, "AGENTFLOW_SECRET_DEEPSEEK": "sk-deep"})
        deepseek = models.provider(models.resolve("deepseek:deepseek-chat"))
        ollama = models.provider(models.resolve("ollama:qwen3"))
        inhouse = models.provider(models.resolve("inhouse:big"))
        assert isinstance(deepseek, OpenAIProvider)
        assert isinstance(ollama, OpenAIProvider)
        assert isinstance(inhouse, AnthropicProvider)
        assert (deepseek.address, ollama.address) == ("api.deepseek.com:443", "127.0.0.1:11434")
        assert len({deepseek.limiter_key, ollama.limiter_key, inhouse.limiter_key}) == 3
        assert inhouse.max_concurrency == 2
        assert models.providers()[:3] == ["deepseek", "ollama", "inhouse"]
        await models.aclose()

    def test_profiles_are_those_of_the_table_and_of_the_file(self, bare: dict[str, str]) -> None:
        models = self.models({**bare, "AGENTFLOW_SECRET_DEEPSEEK": "sk-deep"})
        big = models.profile(models.resolve("inhouse:big"))
        assert (big.context_tokens, big.max_output_tokens, big.input_price) == (1000, 7, 1.0)
        assert models.profile(models.resolve("inhouse:other")).max_output_tokens == 32_000
        assert models.profile(models.resolve("deepseek:x")).first_byte_timeout == 600.0

    def test_a_missing_secret_names_its_variable(self, bare: dict[str, str]) -> None:
        error = refusal(self.models(bare), "deepseek:x")
        assert error.hint == "set AGENTFLOW_SECRET_DEEPSEEK in the environment"
        assert "deepseek" not in self.models(bare).providers()

    @pytest.mark.parametrize(
        ("stated", "said"),
        [
            pytest.param({}, "has no kind", id="kind"),
            pytest.param({"profile": "olama"}, 'did you mean "ollama"?', id="profile"),
            pytest.param({"profile": "azure"}, "has no base_url", id="url"),
        ],
    )
    def test_what_is_missing_is_said(self, bare: dict[str, str], stated: dict[str, Any], said: str) -> None:
        error = refusal(self.models(bare, mine=stated), "mine:x")
        assert said in f"{error} {error.hint}"

    def test_a_field_that_profiles_do_not_have(self, bare: dict[str, str]) -> None:
        stated = {"kind": "openai", "base_url": "http://127.0.0.1:9", "defaults": {"max_tokens": 7}}
        models = self.models(bare, mine=stated)
        ref = models.resolve("mine:x")
        with pytest.raises(ConfigurationError, match='"max_tokens" is no field'):
            models.profile(ref)

    def test_a_known_server_without_a_section_is_hinted_at(self, bare: dict[str, str]) -> None:
        assert refusal(Models(env=bare), "mistral:x").hint == "name it in agentflow.toml: [providers.mistral]"


def test_an_adapter_of_the_users_own_serves_the_key(bare: dict[str, str]) -> None:
    models = Models([ScriptedModel(["x"], name="anthropic")], env={**bare, "ANTHROPIC_API_KEY": "a"})
    assert models.resolve("anthropic:claude").name == "anthropic:claude"


def test_names_and_aliases(bare: dict[str, str]) -> None:
    config = {
        "models": {
            "fast": "scripted:small",
            "deep": {"provider": "scripted", "model": "large", "temperature": 0},
            "short": {"model": "scripted:tiny"},
        },
        "model": "deep",
    }
    models = Models([ScriptedModel(["x"])], env=bare, config=config)
    assert models.resolve(None) == ModelRef(provider="scripted", model="large", parameters={"temperature": 0})
    assert models.resolve("fast").name == "scripted:small"
    assert models.resolve("short").name == "scripted:tiny"
    own = ModelRef(provider="scripted", model="own")
    assert models.resolve("fast", aliases={"fast": own}) == own
    assert models.resolve(own) is own
    assert models.resolve("scripted:a:b").model == "a:b"
    assert set(models.aliases()) == {"fast", "deep", "short"}


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("fats", '"fats" is not an alias', 'did you mean "fast"?'),
        ("gpt-4.1", "write provider:model", 'did you mean "openai:gpt-4.1"?'),
        ("scriptd:x", '"scriptd" is not a provider', 'did you mean "scripted"?'),
        (":x", "not written as provider:model", None),
        ("x:", "not written as provider:model", None),
        ("openai:x", "needs OPENAI_API_KEY, or OPENAI_BASE_URL", None),
        ("local:smollm2-135m", "agentflow model install smollm2-135m", None),
        ("local:smolm2-135m", "not a local model", 'did you mean "smollm2-135m"?'),
        ("local:./none.gguf", "there is no such file", None),
    ],
)
def test_what_cannot_be_had_is_said(bare: dict[str, str], name: str, said: str, hint: str | None) -> None:
    models = Models([ScriptedModel(["x"])], env=bare, config={"models": {"fast": "scripted:small"}})
    error = refusal(models, name)
    assert said in str(error)
    assert error.hint == hint
    if ":" in name and hint is None and not name.startswith(":") and not name.endswith(":"):
        provider, _, model = name.partition(":")
        with pytest.raises(ModelResolutionError):
            models.provider(ModelRef(provider=provider, model=model))


@pytest.mark.parametrize("value", [3, {"provider": "openai"}, "noprovider"])
def test_a_malformed_alias_is_named(bare: dict[str, str], value: object) -> None:
    with pytest.raises(ModelResolutionError, match=r"models\.odd"):
        Models(env=bare, config={"models": {"odd": value}}).aliases()


def test_the_engine_must_be_installed_too(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.models.local.weights._engine_is_there", lambda: False)
    models = Models(env=with_weights(bare))
    assert "agentflow[local]" in str(refusal(models, "local:smollm2-135m"))
    assert "no model is named" in str(refusal(models, None))
    assert models.providers() == []


async def test_providers_are_shared_and_closed(bare: dict[str, str]) -> None:
    models = Models(env={**bare, "OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    first = models.provider(models.resolve("openai:a"))
    assert isinstance(first, OpenAIProvider)
    assert isinstance(first, ModelProvider)
    assert models.provider(models.resolve("openai:b")) is first
    assert models.providers() == ["openai"]
    await models.aclose()
    await models.aclose()
    assert models.provider(models.resolve("openai:a")) is not first


def test_a_base_url_alone_configures_a_server_without_a_key(bare: dict[str, str]) -> None:
    models = Models(env={**bare, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert models.resolve("openai:qwen").name == "openai:qwen"
    # … but it is no key, so it does not choose the official service's default model for it.
    refusal(models, None)


async def test_local_models_are_found_by_name_and_by_path(bare: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    models = Models(env=with_weights(bare, "mine"))
    assert models.resolve("local:mine").name == "local:mine"
    assert models.resolve(None).name == "local:mine"
    ref = models.resolve(f"local:{own}")
    assert ref.model == str(own)
    assert models.profile(ref).tools == "single"
    assert models.providers() == ["local"]
    refusal(models, "local:../../own")


def test_the_table() -> None:
    for provider in ("openai", "local"):
        default = default_model(provider)
        assert default in known_models(provider)
    known = known_profile("openai", "gpt-4.1-mini")
    assert known.context_tokens
    assert known_profile("openai", "gpt-4.1-mini-2025-04-14") == known
    assert known_profile("openai", "qwen3") == ModelProfile(tools="many", json_schema=True)
    assert known_profile("elsewhere", "x") == ModelProfile()
    local = known_profile("local", "smollm2-135m")
    assert (local.tools, local.json_schema, local.cost(Usage(input_tokens=5))) == ("single", True, 0.0)


def test_shipped_prices_hold_at_the_services_own_address_alone() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=100_000)
    assert OpenAIProvider().profile("gpt-4.1-mini").cost(usage) == pytest.approx(0.4 + 0.16)
    assert OpenAIProvider().profile("gpt-4.1-mini-2025-04-14").cost(usage) == pytest.approx(0.56)
    assert OpenAIProvider().profile("gpt-4o-2024-05-13").cost(usage) == pytest.approx(6.5)
    assert AnthropicProvider().profile("claude-haiku-4-5-20251001").cost(usage) == pytest.approx(1.5)
    gateway = OpenAIProvider(base_url="http://127.0.0.1:4000/v1")
    assert gateway.profile("gpt-4.1-mini").cost(usage) is None
    assert OpenAIProvider().profile("unknown").cost(usage) is None


SHIPPED = ("2026-11-23", "37f3d8b1c721eb21")
"""The version of the shipped profiles, which is the day of their last change, and their digest."""


def test_the_version_of_the_profiles_changes_with_them() -> None:
    text = files("agentflow.models").joinpath("models.toml").read_text(encoding="utf-8")
    entries = {name: entry for name, entry in tomllib.loads(text).items() if name != "version"}
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]
    assert (str(table_version()), digest) == SHIPPED


def test_every_shipped_price_has_its_date_and_sources() -> None:
    table = price_table()
    assert len(table.sources) == 2
    for name, price in table.models.items():
        assert 0 < price.input_price < price.output_price, name
        assert (price.cached_input_price or 0) < price.input_price, name
        assert price.cache_write_price is None or price.cache_write_price > price.input_price, name
    for provider in ("openai", "anthropic"):
        assert f"{provider}:{default_model(provider)}" in table.models


def test_what_a_profile_lacks_and_costs() -> None:
    assert ModelProfile(tools="single").lacks(functions=2) == "takes one function"
    assert ModelProfile(tools="single").lacks(functions=1, json_schema=True) is None
    assert ModelProfile(tools="none").lacks(functions=1) == "cannot call functions"
    assert ModelProfile(json_schema=False).lacks(json_schema=True) == "cannot answer by a schema"
    usage = Usage(input_tokens=1_000_000, cache_read_input_tokens=500_000, output_tokens=100_000)
    assert ModelProfile(input_price=2, output_price=10, cached_input_price=0.5).cost(usage) == 1 + 0.25 + 1
    assert ModelProfile(input_price=2, output_price=10).cost(usage) == 3
    assert ModelProfile(input_price=2).cost(usage) is None
