"""No form of a known secret is in a log of a run, in an answer of the API or in the logs of the process,
whatever quotes it: a provider, a server, a function, a module, an adapter (daemon D9)."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentflow import DefinitionError, Runtime, Service, function, logs
from agentflow.definition.loader import load_value
from agentflow.models import ModelError, ModelReply
from agentflow.models.openai import OpenAIProvider
from agentflow.runtime import RunResult
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.unit.server.kit import serving
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.tools.servers import Recorder, serve

SECRET = 'hunter2/"quoted" & +more'
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 1": lambda s: base64.b64encode(b"u" + s.encode()).decode(),
    "base64 2": lambda s: base64.b64encode(b"u:" + s.encode() + b"x").decode(),
    "url-safe": lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    "quote": lambda s: quote(s, safe=""),
    "quote_plus": lambda s: quote_plus(s).lower(),
    "json": lambda s: json.dumps(s),
}
LEAKS = tuple({form(SECRET)[1:9] for form in FORMS.values()} | {"hunter2", "quoted"})
"""Parts of the forms, none of which may be found."""


def agent_list(*tools: str, services: dict[str, Any] | None = None, model: str = "scripted:m") -> Any:
    agent = {"name": "a", "system_prompt": "go", "model": model, "tools": list(tools)}
    return load_value({"agents": [agent], **({"services": services} if services else {})})


async def recorded(runtime: Runtime, result: RunResult) -> str:
    """All bytes of the log of a run."""
    rows = await runtime.log.read(result.workflow_id, 0, 1_000)
    return b"\n".join(row.body for row in rows).decode()


def assert_hidden(text: str, *leaks: str) -> None:
    found = [leak for leak in leaks or LEAKS if leak in text]
    assert not found, text
    assert "***" in text


def one_call(name: str) -> ScriptedModel:
    return ScriptedModel(
        lambda request: "done" if request.messages[-1].role == "tool" else call(name), max_concurrency=8
    )


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_CRM", SECRET)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_function_that_raises_with_a_secret(form: Callable[[str], str]) -> None:
    @function(side_effect="read")
    def fails() -> str:
        """Fails."""
        raise RuntimeError(f"refused with {form(SECRET)}")

    async with Runtime(models=[one_call("crm__fails")], services=[Service.of("crm", fails)]) as runtime:
        result = await runtime.run(agent_list("crm.fails"), "x")
        text = await recorded(runtime, result)
    assert "tool.call_failed" in text
    assert_hidden(text)


@pytest.mark.parametrize("sensitive", [True, False])
async def test_the_output_of_a_sensitive_function(sensitive: bool) -> None:
    """An ordinary output is recorded as it is: a run that goes on after a restart needs it."""

    @function(side_effect="read", sensitive=sensitive)
    def looks() -> dict[str, str]:
        """Looks."""
        return {form: encode(SECRET) for form, encode in FORMS.items()}

    async with Runtime(models=[one_call("crm__looks")], services=[Service.of("crm", looks)]) as runtime:
        result = await runtime.run(agent_list("crm.looks"), "x")
        text = await recorded(runtime, result)
    if sensitive:
        assert_hidden(text)
    else:
        assert "hunter2" in text


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("length", [0, 285])
async def test_a_server_that_quotes_a_secret(form: Callable[[str], str], length: int) -> None:
    """Also where the message is cut to 300 characters: a part of a secret is not recognised any more."""

    def answer(request: Request) -> Response:
        said = "." * length + form(request.headers["x-key"])
        return JSONResponse({"detail": said, "all": [said], form(SECRET): "key"}, 400)

    async with serve(Recorder(answer).app) as url:
        services = {
            "crm": {
                "type": "http",
                "base_url": url,
                "headers": {"X-Key": {"$secret": "crm"}},
                "functions": {"get": {"method": "GET", "path": "/"}},
            }
        }
        async with Runtime(models=[one_call("crm__get")]) as runtime:
            result = await runtime.run(agent_list("crm.get", services=services), "x")
            text = await recorded(runtime, result)
    assert "HTTP 400" in text
    assert_hidden(text)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_an_adapter_that_raises_with_a_secret(form: Callable[[str], str]) -> None:
    class Adapter(ScriptedModel):
        async def complete(self, *_: Any, **__: Any) -> ModelReply:
            raise ValueError(f"bad key {form(SECRET)}")

    async with Runtime(models=[Adapter()]) as runtime:
        result = await runtime.run(agent_list(), "x", raise_on_failure=False)
        text = await recorded(runtime, result)
    assert result.error is not None
    assert_hidden(result.error.message)
    assert_hidden(text)


@pytest.mark.parametrize("trusted_path", ["validate", "workflows"])
async def test_a_module_whose_import_fails_with_a_secret(tmp_path: Path, trusted_path: str) -> None:
    (tmp_path / f"leaky_{trusted_path}.py").write_text(
        "import os, base64\nvalue = os.environ['AGENTFLOW_SECRET_CRM']\n"
        "raise RuntimeError('.' * 240 + value + base64.b64encode(b'u:' + value.encode()).decode())\n"
    )
    services = {"crm": {"type": "python", "module": f"leaky_{trusted_path}"}}
    agent = {"name": "a", "system_prompt": "x", "model": "scripted:m", "tools": ["crm.go"]}
    body = {"definition": {"agents": [agent], "services": services}, "folder": str(tmp_path)}
    async with serving(tmp_path) as served, served.http() as http:
        answer = await http.post(f"/{trusted_path}", json=body)
    assert "E_SERVICE_UNAVAILABLE" in answer.text
    assert_hidden(answer.text)
    async with Runtime(models=[ScriptedModel()]) as runtime:
        definition = load_value(body["definition"], folder=tmp_path)
        with pytest.raises(DefinitionError) as caught:
            await runtime.submit(definition)
    assert_hidden(str(caught.value.diagnostics))


async def test_spans_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With contents captured, which shows the model's conversation: the error is a part of it."""

    @function(side_effect="read")
    def fails() -> str:
        """Fails."""
        raise RuntimeError(" | ".join(form(SECRET) for form in FORMS.values()))

    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        models, services = [one_call("crm__fails")], [Service.of("crm", fails)]
        async with Runtime(models=models, services=services) as runtime:
            await runtime.run(agent_list("crm.fails"), "x")
    assert "execute_tool" in str(collector.spans)
    assert_hidden(str([attributes(span.attributes) for span in collector.spans]) + str(collector.spans))


class TestProviders:
    """The key and the credentials of a provider, which a server quotes in its refusal."""

    KEY = "sk-proj-of-the-daemon-0123456789"

    @staticmethod
    def answer(request: Request) -> Response:
        """Quotes the header as it came, its value, and all of it in base64."""
        header = request.headers.get("authorization", "")
        value = header.partition(" ")[2]
        encoded = [base64.b64encode(text.encode()).decode() for text in (header, value, f"x {header}")]
        decoded = base64.b64decode(value).decode() if header.startswith("Basic") else ""
        parts = [value, *encoded, decoded, quote(header), base64.b64encode(value.encode()).hex()]
        return JSONResponse({"error": {"message": " | ".join(parts), "code": "nope"}}, 400)

    async def refused(
        self, monkeypatch: pytest.MonkeyPatch, userinfo: str, key: str | None
    ) -> tuple[str, str]:
        """What the run recorded, and the Authorization that the server saw."""
        recorder = Recorder(self.answer)
        async with serve(recorder.app) as url:
            monkeypatch.setenv("OPENAI_BASE_URL", url.replace("://", f"://{userinfo}") + "/v1")
            monkeypatch.delenv("OPENAI_API_KEY", raising=False)
            if key is not None:
                monkeypatch.setenv("OPENAI_API_KEY", key)
            async with Runtime() as runtime:
                result = await runtime.run(agent_list(model="openai:m"), "x", raise_on_failure=False)
                text = await recorded(runtime, result)
        assert result.state == "failed"
        return text, recorder.last["headers"].get("authorization", "")

    async def test_the_key_in_base64(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text, sent = await self.refused(monkeypatch, "", self.KEY)
        assert sent == f"Bearer {self.KEY}"
        assert_hidden(text, self.KEY, "sk-proj", self._core(self.KEY))

    async def test_credentials_of_the_base_url_do_not_replace_the_key(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "agentflow.models"):
            text, sent = await self.refused(monkeypatch, "joe:p%40ssw0rd@", self.KEY)
        assert sent == f"Bearer {self.KEY}"
        assert "base_url_credentials_ignored" in caplog.text
        assert_hidden(text, self.KEY, self._core(self.KEY), "p@ssw0rd", "p%40ssw0rd")
        assert "ssw0rd" not in caplog.text

    async def test_credentials_of_the_base_url_without_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text, sent = await self.refused(monkeypatch, "joe:p%40ssw0rd@", None)
        pair = base64.b64encode(b"joe:p@ssw0rd").decode()
        assert sent == f"Basic {pair}"
        assert_hidden(text, pair, "p@ssw0rd", "p%40ssw0rd", self._core("p@ssw0rd"), self._core(pair))

    async def test_a_key_that_was_given_in_python(self) -> None:
        recorder = Recorder(self.answer)
        async with serve(recorder.app) as url:
            provider = OpenAIProvider(base_url=url, api_key=self.KEY)
            async with Runtime(models=[provider]) as runtime:
                result = await runtime.run(agent_list(model="openai:m"), "x", raise_on_failure=False)
                assert_hidden(await recorded(runtime, result), self.KEY, self._core(self.KEY))

    @staticmethod
    def _core(secret: str) -> str:
        """The middle of its base64, as it is at the first alignment."""
        return base64.b64encode(secret.encode()).decode()[4:10]


class TestLogs:
    """What the configured logs write, as JSON and for people."""

    @pytest.mark.parametrize("terminal", [True, False])
    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    def test_every_place_of_a_record(
        self, monkeypatch: pytest.MonkeyPatch, form: Callable[[str], str], terminal: bool
    ) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return terminal

        written = Terminal()
        monkeypatch.setattr(sys, "stderr", written)
        root = logging.getLogger()
        before = list(root.handlers), root.level
        logs.configure("info")
        try:
            log, text = logs.get_logger("agentflow.x"), form(SECRET)
            log.info(f"event {text}", value=text, nested=[{"a": (text, b"", {text})}], error=ValueError(text))
            logging.getLogger("library").warning("%s", text)
            try:
                try:
                    raise RuntimeError(f"cause {text}")
                except RuntimeError as cause:
                    raise ValueError(f"raised {text}") from cause
            except ValueError:
                log.exception("failed")
                logging.getLogger("library").exception("failed too")
        finally:
            root.handlers, root.level = before
            logging.captureWarnings(False)
        assert "failed too" in written.getvalue()
        assert "raised" in written.getvalue()
        assert_hidden(written.getvalue())

    def test_records_that_an_application_formats(self, caplog: pytest.LogCaptureFixture) -> None:
        error = ModelError.__new__(ModelError)
        with caplog.at_level(logging.WARNING, "agentflow.x"):
            logs.get_logger("agentflow.x").warning("refused", said=f"x {SECRET}", error=error)
        (record,) = caplog.records
        assert record.__dict__["said"] == "x ***"
        assert record.__dict__["error"] is error


async def test_nothing_is_hidden_while_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism costs nothing on the hot path: a run without an error never asks for the secrets."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the environment was read")

    @function(side_effect="read")
    def works() -> str:
        """Works."""
        return "fine"

    async with Runtime(models=[one_call("crm__works")], services=[Service.of("crm", works)]) as runtime:
        monkeypatch.setattr("agentflow.known_secrets._of_environment", refuse)
        result = await runtime.run(agent_list("crm.works"), "x")
    assert result.state == "completed"
