"""Traffic of providers is recorded without secrets and played back without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.models import ModelError
from agentflow.models.streamed import StreamedProvider
from agentflow.testing import cassette
from tests.unit.models.helpers import ask, ids
from tests.unit.models.wire_formats import CHAT, WIRES, Wire
from tests.unit.models.wire_server import Exchange, WireServer, refusal, sending

KEY = "sk-of-the-tests-0123456789"
each_wire = pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])


async def complete(provider: StreamedProvider, text: str = "Hello"):
    return await provider.complete(ask(text), new_call_id=ids())


@each_wire
async def test_what_was_recorded_is_played_without_a_server(tmp_path: Path, wire: Wire) -> None:
    path = tmp_path / "cassettes" / "hello.yaml"
    async with WireServer(sending(wire.stream(["Grüße"])), sending(wire.stream(["Again"]))) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY)
        with cassette(path):
            recorded = [await complete(provider), await complete(provider)]
        await provider.aclose()
    provider = wire.provider(base_url=server.url, api_key=KEY)
    with cassette(path) as tape:
        played = [await complete(provider), await complete(provider)]
    await provider.aclose()
    assert [reply.message for reply in played] == [reply.message for reply in recorded]
    assert [reply.usage for reply in played] == [reply.usage for reply in recorded]
    assert tape.played == 2
    written = path.read_text(encoding="utf-8")
    assert KEY not in written
    assert "Grüße" in written
    assert "You help." in written


async def test_a_refusal_is_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "hello.yaml"
    refused = refusal(429, {"Retry-After": "7", "Set-Cookie": "session=abc"}, message="slow down")
    async with WireServer(refused) as server:
        provider = CHAT.provider(base_url=server.url, api_key=KEY)
        for _ in range(2):
            with cassette(path), pytest.raises(ModelError) as caught:
                await complete(provider)
            assert (caught.value.info.code, caught.value.retry_after) == ("rate_limited", 7)
        assert len(server.requests) == 1
        await provider.aclose()
    assert "session" not in path.read_text(encoding="utf-8")


@each_wire
async def test_a_stream_that_broke_off_is_played_as_it_was(tmp_path: Path, wire: Wire) -> None:
    """A run that repeated the call does so in the replay."""
    path = tmp_path / "hello.yaml"
    whole = wire.stream(["Grüße"])

    async def broken(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.chunk(whole[: len(whole) // 2])
        exchange.writer.close()

    async with WireServer(broken, sending(whole)) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY)
        for _ in range(2):
            with cassette(path) as tape:
                with pytest.raises(ModelError) as caught:
                    await complete(provider)
                assert caught.value.info.code == "network_error"
                assert (await complete(provider)).message.content == "Grüße"
        await provider.aclose()
        assert (len(server.requests), tape.played) == (2, 2)


async def test_a_server_that_was_not_there_is_not_there_again(tmp_path: Path) -> None:
    async with WireServer(sending(CHAT.stream(["ok"]))) as server:
        pass
    provider = CHAT.provider(base_url=server.url, api_key=KEY)
    for _ in range(2):
        with cassette(tmp_path / "hello.yaml") as tape, pytest.raises(ModelError) as caught:
            await complete(provider)
        assert (caught.value.info.code, caught.value.uncharged) == ("network_error", True)
    assert tape.played == 1
    await provider.aclose()


async def test_every_text_is_played_as_it_was_recorded(tmp_path: Path) -> None:
    """Breaks of lines that YAML reads as others, controls, marks of YAML itself."""
    text = " a\n\n b\r\n\x85c\u2028d\u2029\t#e: - |\x00\x1b\x7f\ufeff🎉 "
    stream = CHAT.stream([text])
    assert "\x85" in stream.decode()
    async with WireServer(sending(stream)) as server:
        provider = CHAT.provider(base_url=server.url, api_key=KEY)
        for _ in range(2):
            with cassette(tmp_path / "odd.yaml"):
                assert (await complete(provider)).message.content == text
        await provider.aclose()


async def test_an_unknown_request_fails_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "hello.yaml"
    async with WireServer(sending(CHAT.stream(["hi"]))) as server:
        provider = CHAT.provider(base_url=server.url)
        with cassette(path):
            await complete(provider, "How are you?")

        async def ask_another() -> None:
            with cassette(path), pytest.raises(ModelError, match="cassette_miss"):
                await complete(provider, "How old are you?")

        with pytest.raises(AssertionError, match="knows no such request") as failed:
            await ask_another()
        await provider.aclose()
    assert "-  - role: user" not in str(failed.value)
    assert "-    content: How are you?" in str(failed.value)
    assert "+    content: How old are you?" in str(failed.value)
    assert len(server.requests) == 1


async def test_named_fields_and_known_secrets_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_CRM", "hunter2-hunter2")
    path = tmp_path / "hello.yaml"
    events = CHAT.events(["I know hunter2-hunter2"], [], "complete")
    events[0]["system_fingerprint"] = "fp-of-the-account"
    async with WireServer(sending(b"".join(map(_line, events)))) as server:
        provider = CHAT.provider(base_url=server.url.replace("//", "//me:pass@"))
        request = ask("say hunter2-hunter2", parameters={"user": "ada", "api_key": "abc"})
        with cassette(path, fields=("user", "system_fingerprint")):
            await provider.complete(request, new_call_id=ids())
        with cassette(path):  # the same request fits, though its secrets are not in the file
            pass
        with cassette(path, fields=("user", "system_fingerprint")):
            await provider.complete(request, new_call_id=ids())
        await provider.aclose()
    written = path.read_text(encoding="utf-8")
    for secret in ("hunter2", "ada", "fp-of-the-account", "abc", "pass@"):
        assert secret not in written


def _line(event: dict) -> bytes:
    import json

    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def test_requests_to_models_can_be_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTFLOW_ALLOW_MODEL_REQUESTS", "0")
    async with WireServer(sending(CHAT.stream(["hi"]))) as server:
        provider = CHAT.provider(base_url=server.url)
        with pytest.raises(ModelError) as caught:
            await complete(provider)
        assert caught.value.info.code == "model_requests_forbidden"
        assert not caught.value.info.retryable
        assert server.requests == []
        own = CHAT.provider(base_url=server.url, loopback=True)
        assert (await complete(own)).message.content == "hi"  # the engine of this process is no network
        await own.aclose()
        await provider.aclose()
