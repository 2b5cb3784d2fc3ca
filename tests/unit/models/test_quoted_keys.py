"""A server that quotes the key back, in any place of its answer: no text of the adapter has it."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from agentflow import known_secrets
from agentflow.models import ModelError
from agentflow.testing import cassette

from .helpers import ask, ids
from .wire_formats import CHAT, MESSAGES, WIRES, Wire, encode
from .wire_server import Answer, Exchange, WireServer, delta, plain, sending, stream

KEY = "hunter2/of the tests+hunter2"  # which looks like no key
FORMS = {"plain": KEY, "base64": base64.b64encode(KEY.encode()).decode(), "percent": quote(KEY, safe="")}
each_wire = pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])


def redirect(to: str) -> Answer:
    async def answer(exchange: Exchange) -> None:
        await exchange.head(302, {"Location": f"http://127.0.0.1:1/?key={to}", "Content-Length": "0"})

    return answer


def answers(wire: Wire, key: str) -> dict[str, Answer]:
    error = {"type": key, "code": key, "param": key, "message": f"no {key}", "status": key}
    whole = wire.events(["half"], [], "complete")
    failed = {**wire.error, "error": error} if "error" in wire.error else {**wire.error, "message": key}
    return {
        "refused": plain(400, {"type": "error", "error": error}),
        "unauthorized": plain(401, {"error": error}),
        "limited": plain(429, {"error": error}, {"Retry-After": key.replace(" ", "")}),
        "html": plain(500, f"<html>{key}</html>".encode(), {"Content-Type": "text/html"}),
        "text": plain(400, key.encode(), {"Content-Type": "text/plain"}),
        "no-json": plain(200, f'{{"{key}'.encode()),
        "redirected": redirect(quote(key, safe="")),
        "in-the-stream": sending(encode([*whole[:-2], failed])),
        "no-event": sending(f"data: {key}\n\n".encode()),
    }


async def texts_of_failure(wire: Wire, answer: Answer) -> str:
    async with WireServer(answer) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY)
        try:
            with pytest.raises(ModelError) as caught:
                await provider.complete(ask(), new_call_id=ids())
        finally:
            await provider.aclose()
    error = caught.value
    return f"{error} {error!r} {error.info} {error.__cause__!r} {error.__context__!r}"


@each_wire
@pytest.mark.parametrize("form", FORMS)
async def test_no_error_has_the_key_in_it(wire: Wire, form: str) -> None:
    for name, answer in answers(wire, FORMS[form]).items():
        texts = await texts_of_failure(wire, answer)
        assert not any(text in texts for text in FORMS.values()), f"{name}: {texts}"


@pytest.mark.parametrize("form", FORMS)
async def test_no_finish_reason_has_the_key_in_it(form: str) -> None:
    key = FORMS[form]
    stopped = {"type": "message_delta", "delta": {"stop_reason": key}, "usage": {"output_tokens": 1}}
    ended = encode([*MESSAGES.events(["a"], [], "complete")[:-2], stopped, {"type": "message_stop"}])
    for wire, answer in ((CHAT, stream(delta(key, content="a"))), (MESSAGES, sending(ended))):
        texts = await texts_of_failure(wire, answer)
        assert not any(text in texts for text in FORMS.values()), texts


@pytest.fixture
def known() -> Any:
    known_secrets.add(KEY)


@each_wire
@pytest.mark.usefixtures("known")
async def test_no_cassette_has_the_key_in_it(wire: Wire, tmp_path: Any) -> None:
    for form in FORMS.values():
        for number, (name, answer) in enumerate(answers(wire, form).items()):
            path = tmp_path / f"{number}.yaml"
            with cassette(path, mode="record"):
                await texts_of_failure(wire, answer)
            written = path.read_text(encoding="utf-8")
            assert not any(text in written for text in FORMS.values()), f"{name}: {written}"
