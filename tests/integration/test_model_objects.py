"""What a model object of a document may say: parameters, `extra`, prices (daily-use 6)."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.config import load_config
from agentflow.definition.ir import ModelRef
from agentflow.definition.loader import load_text
from agentflow.errors import CommandRefused, ConfigurationError, DefinitionError
from agentflow.events.memory import MemoryLog
from agentflow.models import Models
from agentflow.models.openai import OpenAIProvider
from agentflow.models.parameters import PRICES
from tests.integration.support.runs import log_of
from tests.unit.models.wire_formats import MESSAGES
from tests.unit.models.wire_server import USAGE, WireServer, delta, plain, refusal, sending, stream

ANSWER = stream(delta("stop", content='"fine"'), USAGE)


def document(model: str, models: str = "") -> str:
    return textwrap.dedent(f"""\
        version: "1.0"
        {models}
        workflow:
          steps:
            - type: run
              id: a
              agent:
                systemPrompt: go
                attachedFunctions: none
                resultSchema: true
                model: {model}
        """)


INHOUSE = """
[providers.inhouse]
kind = "anthropic"
base_url = "{url}"
key = {{ "$secret" = "inhouse" }}
"""


async def test_a_provider_of_the_file_serves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_INHOUSE", "sk-of-the-tests-inhouse")
    async with WireServer(sending(MESSAGES.stream(['"fine"']))) as server:
        (tmp_path / "agentflow.toml").write_text(INHOUSE.format(url=server.url), encoding="utf-8")
        config = load_config(folder=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path / "none")})
        models = Models(config=config.for_models())
        async with Runtime(MemoryLog(), models=models) as runtime:
            result = await runtime.run(load_text(document("'inhouse:small'")), {})
        assert result.state == "completed"
        assert server.requests[0].path == "/v1/messages"
        assert server.requests[0].headers["x-api-key"] == "sk-of-the-tests-inhouse"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[providers.a]\nkind = 'openay'", "kind"),
        ("[providers.a]\nbase_ur = 'x'", 'did you mean "base_url"?'),
        ("[providers.a]\nkey = 'sk-secret-of-the-file'", "a key must not stand in"),
        ("[providers.local]\nkind = 'openai'", "is no name of a provider"),
        ("providers = {a = 1}", "is no table"),
    ],
)
def test_a_wrong_section_of_a_provider_is_refused(tmp_path: Path, section: str, said: str) -> None:
    (tmp_path / "agentflow.toml").write_text(section, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_config(folder=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path / "none")})
    assert said in f"{caught.value} {caught.value.hint}"
    assert "sk-secret" not in f"{caught.value} {caught.value.hint}"


async def refused(text: str, **config: Any) -> list[Any]:
    models = Models([OpenAIProvider(base_url="http://127.0.0.1:1/v1")], config=config)
    async with Runtime(MemoryLog(), models=models) as runtime:
        with pytest.raises(DefinitionError) as caught:
            await runtime.submit(load_text(text), {})
    return [d for d in caught.value.diagnostics if d.severity == "error"]


async def sent(text: str, **config: Any) -> dict[str, Any]:
    async with WireServer(ANSWER) as server:
        models = Models([OpenAIProvider(base_url=server.url)], config=config)
        async with Runtime(MemoryLog(), models=models) as runtime:
            await runtime.run(load_text(text), {})
        return server.requests[0].body


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", 'did you mean "temperature"?'),
        ("max_token", 'did you mean "max_tokens"?'),
        ("input_prize", 'did you mean "input_price"?'),
        ("wholly_unknown", "write it below `extra` to send it as it stands: extra: {wholly_unknown: …}"),
    ],
)
async def test_a_parameter_that_the_profile_does_not_name_is_refused(name: str, hint: str) -> None:
    text = document(f"{{model: 'openai:m', {name}: 0.5}}")
    [problem] = await refused(text)
    assert (problem.code, problem.hint) == ("E_UNKNOWN_KEY", hint)
    assert problem.message == f'"{name}" is not a parameter of openai:m'
    assert problem.path == f"/workflow/steps/0/agent/model/{name}"
    assert problem.line == text.splitlines().index(next(x for x in text.splitlines() if name in x)) + 1
    assert problem.column is not None


async def test_a_parameter_of_an_alias_is_reported_once_where_the_alias_is() -> None:
    text = document("{use: fast}", "models: {fast: {model: 'openai:m', temprature: 1}}")
    [problem] = await refused(text)
    assert (problem.code, problem.path, problem.line) == ("E_UNKNOWN_KEY", "/models/fast/temprature", 2)


@pytest.mark.parametrize("member", ["extra: 3", "input_price: -1", "output_price: free"])
async def test_values_that_are_none_are_refused(member: str) -> None:
    [problem] = await refused(document(f"{{model: 'openai:m', {member}}}"))
    assert problem.code == "E_VALUE"


async def test_named_parameters_and_extra_are_sent_and_prices_never() -> None:
    model = (
        "{model: 'openai:m', temperature: 0.5, max_tokens: 9, top_k: 3, input_price: 1, output_price: 2,"
        " cached_input_price: 0.5, extra: {temprature: 1, options: {num_ctx: 8}}}"
    )
    body = await sent(document(model))
    assert (body["temperature"], body["max_tokens"], body["top_k"]) == (0.5, 9, 3)
    assert (body["temprature"], body["options"]) == (1, {"num_ctx": 8})
    assert not body.keys() & {*PRICES, "extra"}


async def test_extra_replaces_nothing_that_the_request_says() -> None:
    extra = "{model: other, stream: false, messages: [], max_tokens: 99999}"
    body = await sent(document(f"{{model: 'openai:m', max_tokens: 9, extra: {extra}}}"))
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 9)
    assert body["messages"]


def test_a_price_comes_from_the_document_then_the_configuration_then_the_table() -> None:
    prices = {"openai:m": {"input_price": 3.0, "output_price": 4.0, "cached_input_price": 1.0}}
    models = Models([OpenAIProvider()], config={"prices": prices})

    def of(model: str, **parameters: Any) -> list[float | None]:
        profile = models.profile(ModelRef(provider="openai", model=model, parameters=parameters))
        return [getattr(profile, name) for name in PRICES]

    assert of("m") == [3.0, 4.0, 1.0, None]
    assert of("m", input_price=1, output_price=2) == [1.0, 2.0, None, None]
    assert of("other") == [None] * 4
    assert of("other", input_price=1, output_price=2, cached_input_price=0.1) == [1.0, 2.0, 0.1, None]
    assert of("gpt-4.1-mini") == [0.4, 1.6, 0.1, None]
    assert of("gpt-4.1-mini", input_price=1, output_price=2) == [1.0, 2.0, None, None]


async def test_a_budget_in_dollars_is_refused_with_the_way_to_state_a_price() -> None:
    models = Models([OpenAIProvider(base_url="http://127.0.0.1:1/v1")])
    async with Runtime(MemoryLog(), models=models) as runtime:
        with pytest.raises(CommandRefused) as caught:
            await runtime.submit(load_text(document("openai:m")), {}, budget={"max_cost_usd": 1})
    assert caught.value.code == "budget_unpriced"
    hint = caught.value.hint or ""
    assert '[prices."openai:m"]' in hint
    assert "input_price and output_price" in hint


async def test_a_stated_price_makes_a_budget_in_dollars_usable() -> None:
    prices = {"openai:m": {"input_price": 1.0, "output_price": 2.0}}
    async with WireServer(ANSWER) as server:
        models = Models([OpenAIProvider(base_url=server.url)], config={"prices": prices})
        async with Runtime(MemoryLog(), models=models) as runtime:
            text = document("{model: 'openai:m', max_tokens: 100}")
            result = await runtime.run(load_text(text), {}, budget={"max_cost_usd": 1})
    assert result.state == "completed"


def configuration(folder: Path, text: str) -> Any:
    (folder / "agentflow.toml").write_text(text)
    return load_config(env={"XDG_CONFIG_HOME": str(folder / "none")}, folder=folder)


def test_prices_in_the_configuration(tmp_path: Path) -> None:
    config = configuration(tmp_path, '[prices."openai:m"]\ninput_price = 1\noutput_price = 2.5\n')
    assert config.for_models()["prices"] == {"openai:m": {"input_price": 1.0, "output_price": 2.5}}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[prices."openai:m"]\ninput_prise = 1', 'unknown key "input_prise"', 'did you mean "input_price"'),
        ('[prices."openai:m"]\ninput_price = 1', 'has no "output_price"', "US dollars"),
        ('[prices."m"]\ninput_price = 1\noutput_price = 1', "no table of a model provider:model", "openai:"),
        ('[prices."openai:m"]\ninput_price = -1\noutput_price = 1', "is no price", "0 or more"),
        ('[prices."openai:m"]\ninput_price = "1"\noutput_price = 1', "is no price", "0 or more"),
        ('[prices."openai:m"]\ninput_price = nan\noutput_price = 1', "is no price", "0 or more"),
    ],
)
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"agentflow\.toml") as caught:
        configuration(tmp_path, text)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")


def refusal_of(param: str, code: str = "unsupported_value") -> Any:
    message = f"Unsupported value: '{param}' does not support 0.5 with this model."
    return refusal(400, message=message, type="invalid_request_error", param=param, code=code)


FORBIDDEN = plain(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "no"}]})


@pytest.mark.parametrize(
    "refused", [refusal_of("temperature"), refusal_of("temperature", "unsupported_parameter"), FORBIDDEN]
)
async def test_a_named_parameter_that_the_server_refuses_is_left_out_with_a_warning(refused: Any) -> None:
    log = MemoryLog()
    text = document("{model: 'openai:m', temperature: 0.5, seed: 3}")
    async with WireServer(refused, ANSWER) as server:
        models = Models([OpenAIProvider(base_url=server.url)])
        async with Runtime(log, models=models) as runtime:
            first = await runtime.run(load_text(text), {})
            await runtime.run(load_text(text), {})
        bodies = [request.body for request in server.requests]
    assert [("temperature" in b, b["seed"]) for b in bodies] == [(True, 3), (False, 3), (False, 3)]
    events = await log_of(log, first.workflow_id)
    [warning] = [e.data for e in events if e.type == "system.error"]
    assert (warning.severity, warning.error.code, warning.fatal) == ("warning", "parameter_dropped", False)
    assert warning.error.message == "openai:m does not take temperature: left out"
    assert [e.type for e in events].count("model.call_started") == 1


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("{model: 'openai:m', extra: {strange: 1}}", refusal_of("strange", "unknown_parameter")),
        ("{model: 'openai:m', temperature: 9}", refusal_of("temperature", "decimal_above_max_value")),
    ],
)
async def test_what_must_not_be_left_out_fails_the_call(model: str, refused: Any) -> None:
    async with WireServer(refused, ANSWER) as server:
        models = Models([OpenAIProvider(base_url=server.url)])
        async with Runtime(MemoryLog(), models=models) as runtime:
            result = await runtime.run(load_text(document(model)), {}, raise_on_failure=False)
        assert (result.state, len(server.requests)) == ("failed", 1)


async def test_a_limit_is_sent_under_its_other_name_and_is_never_left_out() -> None:
    async with WireServer(refusal_of("max_tokens"), ANSWER) as server:
        models = Models([OpenAIProvider(base_url=server.url)])
        log = MemoryLog()
        async with Runtime(log, models=models) as runtime:
            result = await runtime.run(load_text(document("{model: 'openai:m', max_tokens: 5}")), {})
        limits = [{k: v for k, v in r.body.items() if "tokens" in k} for r in server.requests]
    assert limits == [{"max_tokens": 5}, {"max_completion_tokens": 5}]
    events = await log_of(log, result.workflow_id)
    [warning] = [e.data for e in events if e.type == "system.error"]
    assert warning.error.message == "openai:m does not take max_tokens: sent as max_completion_tokens"
